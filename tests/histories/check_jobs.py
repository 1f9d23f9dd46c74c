"""What clients, operators and the fleet were told, held against what is there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.histories.evidence import CRASH_CODES, ENDED_STATES, Evidence, Row, Span, Violation, unexplained
from tests.histories.shapes import EFFECT_FLOWS

WAKE_BOUND_US = 2_500_000
"""A worker that sleeps looks by itself every five seconds; one that is woken needs no second."""


def nothing_acknowledged_is_lost(evidence: Evidence) -> Iterator[Violation]:
    for ack in evidence.of("ack"):
        for job_id in ack["jobs"]:
            job = evidence.jobs.get(job_id)
            if job is None:
                if job_id not in evidence.pruned:
                    yield Violation("lost", job_id, "was acknowledged and is not there")
                continue
            if job["flow"] != ack["flow"] or job["key"] != ack["key"]:
                asked = f"{ack['flow']} with key {ack['key']}"
                yield Violation("lost", job_id, f"is {job['flow']} with key {job['key']}, was acknowledged as {asked}")
    for event in evidence.of("saw"):
        if event["state"] == "succeeded" and evidence.state_of(event["job"]) != "succeeded":
            yield Violation("lost", event["job"], "a client was told of its success, and it has not succeeded")


def effects_are_there_once(evidence: Evidence) -> Iterator[Violation]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in evidence.effects:
        found[row["job_id"]].append(row)
    handed_off = {event["job"] for event in evidence.of("end") if event["how"] == "Handoff"}
    for job_id in set(found) - set(evidence.jobs) - set(evidence.pruned):
        yield Violation("effect", job_id, "has an effect, and there is no such job")
    for job_id, job in {**evidence.pruned, **evidence.jobs}.items():
        rows = found.get(job_id, [])
        done = [row for row in evidence.executions.get(job_id, []) if row["status"] == "done"]
        least = int(job["flow"] in EFFECT_FLOWS and job["state"] == "succeeded")
        most = least
        if done and done[0]["code"] == "handoff":
            least = most = 0
        elif not done and job_id in handed_off:
            least = 0  # pruned: which of its steps was the last one is forgotten
        if not least <= len(rows) <= most:
            yield Violation("effect", job_id, f"is {job['state']}, with {len(rows)} effects instead of {most}")
        if done and any(row["exec_id"] != done[0]["exec_id"] for row in rows):
            yield Violation("effect", job_id, "has an effect of another execution than the one that committed")


def keys_are_held_once(evidence: Evidence) -> Iterator[Violation]:
    keys: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for ack in evidence.of("ack"):
        if ack["key"] is not None:
            keys[ack["flow"], ack["key"]].setdefault(ack["jobs"][0], ack["t"])
    for (flow, key), acknowledged in keys.items():
        spans = sorted(
            (span, job_id) for job_id, since in acknowledged.items() for span in _unfinished(evidence, job_id, since)
        )
        for (first, one), (second, other) in pairwise(spans):
            if one != other and second.start < first.end:
                yield Violation("key", f"{flow} {key}", f"{one} and {other} were unfinished at the same time")
    unfinished = Counter(
        (job["flow"], job["key"])
        for job in evidence.jobs.values()
        if job["key"] is not None and job["state"] not in ENDED_STATES
    )
    for (flow, key), count in unfinished.items():
        if count > 1:
            yield Violation("key", f"{flow} {key}", f"{count} unfinished jobs")


def _unfinished(evidence: Evidence, job_id: str, acknowledged: int) -> Iterator[Span]:
    """When the job was unfinished for sure."""
    executions = evidence.executions.get(job_id, [])
    for row in executions:
        span = evidence.held(row)
        if span is not None:
            # From its acknowledgement to its first execution nothing can have ended it.
            yield Span(min(span.start, acknowledged), span.end) if row["attempt"] == 1 else span
    job = evidence.jobs.get(job_id)
    if job is not None and not executions and job["state"] == "pending":
        yield Span(acknowledged, 1 << 62)


def everything_has_ended(evidence: Evidence) -> Iterator[Violation]:
    for rows in evidence.executions.values():
        for row in rows:
            if row["status"] in ("leased", "in_progress", "committed"):
                yield Violation(
                    "lease", row["job_id"], f"{row['exec_id']} is {row['status']}, and nobody works any more"
                )
    for job_id, why in unexplained(evidence.jobs, evidence.queues, evidence.state_of, evidence.now_ms).items():
        yield Violation("unfinished", job_id, why)
    for event in evidence.of("starved"):
        yield Violation("unfinished", event["job"], f"could run for {event['seconds']:.0f} s beside idle workers")


def crashes_have_causes(evidence: Evidence) -> Iterator[Violation]:
    """Only a kill, a freeze or a disturbance costs a job a crash; a clean stop never does."""
    killed = {event["worker"] for event in evidence.of("ending") if event["why"] in ("kill", "two-signals")}
    for rows in evidence.executions.values():
        for row in rows:
            if row["code"] not in CRASH_CODES | {"abandoned"} or row["lease_owner"] in killed:
                continue
            if not _disturbed(evidence, row["started_at"], row["finished_at"] or evidence.now_ms):
                message = f"{row['exec_id']} of {row['lease_owner']} ended as {row['code']}, which nothing has caused"
                yield Violation("crash", row["job_id"], message)


def _disturbed(evidence: Evidence, since: int, until: int) -> bool:
    return evidence.jumped or any(
        event["since"] <= until and since <= event["until"] + evidence.lease_ms + 1000
        for event in evidence.of("disturbance")
    )


def processes_end_as_told(evidence: Evidence) -> Iterator[Violation]:
    for event in evidence.of("exit"):
        who = f"{event['role']} {event['number']}"
        if event["why"] == "stop" and event["code"] != 0:
            yield Violation("process", who, f"was stopped cleanly, and ended with {event['code']}: {event['said']}")
        if event["why"] or (event["code"] == 0 and event["role"] in ("client", "operator")):
            continue
        yield Violation("process", who, f"ended by itself with {event['code']}, see {event['log']}: {event['said']}")
    for event in evidence.of("did-not-stop"):
        yield Violation("process", f"{event['role']} {event['number']}", "did not stop")


def orders_hold(evidence: Evidence) -> Iterator[Violation]:
    for event in evidence.of("order-done"):
        # That nobody could look, because connections are cut, is no finding about what would have been seen.
        if event["verb"] == "check" and (found := [one for one in event["answer"] or () if "'not-checked'" not in one]):
            yield Violation("check", f"order {event['number']}", f"found {found}")
        if event["verb"] == "cancel" and event["job"] in evidence.journal and not _cancelled(evidence, event):
            yield Violation("cancel", event["job"], f"order {event['number']} was acknowledged, and left no trace")
    for job_id, entries in evidence.journal.items():
        cancelled = False
        for entry in entries:
            if entry["reason"].startswith("cancel requested:"):
                cancelled = True
            elif entry["job_to"] == "pending" and entry["actor"].startswith("operator:"):
                cancelled = False  # somebody wants it after all
            elif cancelled and entry["exec_to"] == "committed":
                yield Violation("cancel", job_id, "was cancelled, and committed afterwards")


def _cancelled(evidence: Evidence, order: dict[str, Any]) -> bool:
    job_id = order["job"]
    if evidence.state_of(job_id) in ENDED_STATES - {"succeeded"}:
        return True
    # One that had failed already was left as it is, and may have been brought back later.
    had_failed = order["answer"] == "failed" or '"state":"failed"' in str(order["answer"])
    return any(
        entry["reason"].startswith("cancel requested:")
        or '"cancelled"' in entry["metadata"]
        or (had_failed and entry["job_to"] == "failed")
        for entry in evidence.journal[job_id]
    )


def sleepers_are_woken(evidence: Evidence) -> Iterator[Violation]:
    """Of the probes of a kind, one after the other to an idle worker, most are in time; the first does not count."""
    begins: dict[str, int] = {}
    for event in evidence.of("begin"):
        begins.setdefault(event["job"], event["t"])
    kinds: dict[str, list[int]] = defaultdict(list)
    for probe in evidence.of("probe"):
        if probe["job"] in begins:
            kinds[probe["kind"]].append(begins[probe["job"]] - probe["due"])
        else:
            yield Violation("wake-up", probe["job"], f"a probe ({probe['kind']}) that never began")
    for kind, waits in kinds.items():
        measured = waits[1:]
        if sum(wait > WAKE_BOUND_US for wait in measured) > len(measured) // 2:
            times = ", ".join(f"{wait / 1e6:.1f}" for wait in waits)
            yield Violation("wake-up", kind, f"an idle worker took {times} s to notice")


RULES = (
    nothing_acknowledged_is_lost,
    effects_are_there_once,
    keys_are_held_once,
    everything_has_ended,
    crashes_have_causes,
    processes_end_as_told,
    orders_hold,
    sleepers_are_woken,
)
