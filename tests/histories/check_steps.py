"""What the steps have logged: nothing finished runs again, limits and orders hold, cleanups come before the end."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from tests.histories.evidence import Evidence, Row, Span, Violation, metadata_code
from tests.histories.shapes import (
    CLEANUP_FLOWS,
    FIXED_LIMIT,
    FIXED_QUEUE,
    LOGGED_FLOWS,
    MOVING_LIMIT,
    MOVING_QUEUE,
    STEPS,
)

LATE_MS = 1000
"""On PostgreSQL a transaction's time is that of its beginning: writes may be a little older than they say."""
MARGIN_US = 5000
ENDINGS = frozenset({"abort", "unrecoverable", "cancelled", "error", "timeout"})
FOREVER = 1 << 62
MAY_REPEAT = frozenset({"book"})
"""A commit step whose transaction could not be committed is run again."""


# --- finished steps -------------------------------------------------------------------------------------------


def finished_steps_stay_finished(evidence: Evidence) -> Iterator[Violation]:
    begins: dict[str, list[Row]] = defaultdict(list)
    for event in evidence.of("begin"):
        if event["step"] != "cleanup":
            begins[event["job"]].append(event)
    for job_id, job in evidence.jobs.items():
        if job["flow"] in LOGGED_FLOWS:
            entered = sorted(begins[job_id], key=lambda event: (event["attempt"], event["t"]))
            yield from _not_back(job_id, STEPS[job["flow"]], entered, _forgotten(evidence, job_id))
            yield from _not_after_its_row(evidence, job_id, entered)
            yield from _not_after_its_return(evidence, job_id)


def _forgotten(evidence: Evidence, job_id: str) -> list[tuple[int, bool]]:
    """The attempts whose steps were forgotten: at once by a rewind, or with the end of the attempt by a cleanup."""
    found = []
    for entry in evidence.journal.get(job_id, []):
        rewound = entry["reason"].startswith("rewind:")
        execution = evidence.execution(entry["exec_id"]) if entry["exec_id"] else None
        if execution and (rewound or entry["reason"].startswith("ending:")):
            found.append((execution["attempt"], rewound))
    return found


def _not_back(
    job_id: str, names: Sequence[str], entered: Sequence[Row], forgotten: list[tuple[int, bool]]
) -> Iterator[Violation]:
    reached, by = -1, 0
    for event in entered:
        position = names.index(event["step"])
        if position < reached:
            excuse = next(
                (one for one in forgotten if by <= one[0] < event["attempt"] + one[1]),
                None,
            )
            if excuse is None:
                message = f"attempt {event['attempt']} ran step {event['step']} again, which was finished"
                yield Violation("re-run", job_id, message)
            else:
                forgotten.remove(excuse)
            reached, by = position, event["attempt"]
        elif position > reached:
            reached, by = position, event["attempt"]


def _not_after_its_return(evidence: Evidence, job_id: str) -> Iterator[Violation]:
    """Within an execution, each rewind lets one step run again that has returned: the one before."""
    for execution in evidence.executions.get(job_id, []):
        exec_id = execution["exec_id"]
        returned: set[str] = set()
        again = 0
        for event in evidence.visits().get(exec_id, []):
            if event["e"] == "end" and event["how"] == "returned":
                returned.add(event["step"])
            elif event["e"] == "begin" and event["step"] in returned - MAY_REPEAT:
                again += 1
        rewinds = sum(
            entry["exec_id"] == exec_id and entry["reason"].startswith("rewind:")
            for entry in evidence.journal.get(job_id, [])
        )
        if again > rewinds:
            yield Violation("re-run", job_id, f"{exec_id} ran {again} steps again that had returned")


def _not_after_its_row(evidence: Evidence, job_id: str, entered: Sequence[Row]) -> Iterator[Violation]:
    for row in evidence.steps.get(job_id, []):
        execution = evidence.execution(row["exec_id"])
        if execution is None or execution["job_id"] != job_id:
            yield Violation(
                "fence", job_id, f"step {row['step']} is finished by {row['exec_id']}, not one of its executions"
            )
            continue
        later = [e for e in entered if e["step"] == row["step"] and e["attempt"] > execution["attempt"]]
        if later:
            attempts = f"attempt {execution['attempt']}, and attempt {later[0]['attempt']} ran it"
            yield Violation("fence", job_id, f"step {row['step']} is finished by {attempts}")
        ended = execution["finished_at"]
        if execution["status"] == "aborted" and row["finished_at"] > ended + LATE_MS and not evidence.jumped:
            yield Violation(
                "fence", job_id, f"step {row['step']} was written {row['finished_at'] - ended} ms after its end"
            )


def trails_are_whole(evidence: Evidence) -> Iterator[Violation]:
    """The response of each finished step has gone through each step before it, once."""
    for job_id, rows in evidence.steps.items():
        flow = evidence.jobs[job_id]["flow"] if job_id in evidence.jobs else ""
        if flow not in LOGGED_FLOWS:
            continue
        for number, row in enumerate(rows):
            trail = json.loads(row["response"])["trail"]
            expected = list(STEPS[flow][: number + 1])
            if row["position"] != number or trail not in (expected, [*expected[:-1], "handoff"]):
                yield Violation(
                    "response", job_id, f"step {row['step']} is number {row['position']}, its trail {trail}"
                )


# --- cleanups -------------------------------------------------------------------------------------------------


def cleanups_come_first(evidence: Evidence) -> Iterator[Violation]:
    cleaned = {
        event["exec"] for event in evidence.of("end") if event["step"] == "cleanup" and event["how"] == "returned"
    }
    for job_id, entries in evidence.journal.items():
        if job_id not in evidence.jobs or evidence.jobs[job_id]["flow"] not in CLEANUP_FLOWS:
            continue
        for entry, following in pairwise([*entries, None]):
            assert entry is not None
            ends = entry["exec_from"] == "in_progress" and entry["exec_to"] == "aborted" and entry["job_to"] == "failed"
            if not ends or metadata_code(entry) not in ENDINGS or _goes_on(entry, following):
                continue
            if entry["exec_id"] not in cleaned:
                message = f"entry {entry['seq']} ends it as {metadata_code(entry)}, and its cleanup has not run"
                yield Violation("cleanup", job_id, message)


def _goes_on(entry: Row, following: Row | None) -> bool:
    """Did the execution's own worker give the job another attempt?"""
    return following is not None and (following["actor"], following["exec_id"], following["job_to"]) == (
        entry["actor"],
        entry["exec_id"],
        "pending",
    )


# --- order between jobs ---------------------------------------------------------------------------------------


def successors_come_after(evidence: Evidence) -> Iterator[Violation]:
    begins: dict[str, int] = {}
    commits: dict[str, int] = {}
    for event in evidence.of("begin"):
        begins.setdefault(event["job"], event["t"])
        execution = evidence.execution(event["exec"])
        if execution is not None and execution["status"] == "done":
            commits[event["job"]] = event["t"]
    for job_id, job in evidence.jobs.items():
        before = job["run_after"]
        if before is None or job_id not in begins:
            continue
        if evidence.state_of(before) != "succeeded" and not _brought_back(evidence, job_id, before):
            yield Violation("order", job_id, f"has begun, though {before} is {evidence.state_of(before)}")
        elif before in commits and begins[job_id] < commits[before]:
            yield Violation("order", job_id, f"began before {before} had committed")


def _brought_back(evidence: Evidence, job_id: str, before: str) -> bool:
    """Has an operator brought the job back after its predecessor was pruned, which then has nothing to say any more?"""
    return before in evidence.pruned and any(
        entry["job_to"] == "pending" and entry["actor"].startswith("operator:") for entry in evidence.journal[job_id]
    )


def parents_have_seen_their_children(evidence: Evidence) -> Iterator[Violation]:
    for event in evidence.of("gathered"):
        for child, state in event["children"].items():
            if state == "succeeded" and evidence.state_of(child) != "succeeded":
                yield Violation("child", child, f"was seen to succeed by {event['job']}, and has not")
    rounds: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in evidence.children:
        rounds[row["parent"], row["name"]].add(row["job_id"])
    for (parent, name), jobs in rounds.items():
        job = evidence.jobs.get(parent)
        if job is not None and len(jobs) > 1 + job["failures"]:
            yield Violation("child", parent, f"has {len(jobs)} children named {name}")


# --- queues ---------------------------------------------------------------------------------------------------


class Limits:
    """What the limit of a queue may have been at some time, by what operators were told."""

    def __init__(self, first: int, orders: Sequence[tuple[int, int | None, float]]) -> None:
        self._orders = [(-1, 0, float(first)), *orders]

    def most(self, window: Span) -> float:
        """The highest limit that may have been in force at some time of the window."""
        possible = []
        for given, answered, value in self._orders:
            if given > window.end:
                continue
            replaced = answered is not None and any(
                other > answered and done is not None and done < window.start for other, done, _ in self._orders
            )
            if not replaced:
                possible.append(value)
        return max(possible)


def _orders(evidence: Evidence, *verbs: str) -> list[tuple[int, int | None, str, str]]:
    """When each was given and when it was acknowledged, if it was, the verb and its value."""
    answers = {(event["pid"], event["number"]): event["t"] for event in evidence.of("order-done")}
    return [
        (event["t"], answers.get((event["pid"], event["number"])), event["verb"], event["value"])
        for event in evidence.of("order")
        if event["verb"] in verbs
    ]


def limits_are_kept(evidence: Evidence) -> Iterator[Violation]:
    changes = [
        (given, answered, float("inf") if value == "none" else float(value))
        for given, answered, _, value in _orders(evidence, "limit")
    ]
    for queue, limits in ((FIXED_QUEUE, Limits(FIXED_LIMIT, [])), (MOVING_QUEUE, Limits(MOVING_LIMIT, changes))):
        live: dict[str, tuple[Span, int]] = {}
        moments: list[tuple[int, bool, str]] = []
        for exec_id, span, claimed in _held(evidence, queue):
            live[exec_id] = (span, claimed)
            moments += [(span.start, True, exec_id), (span.end, False, exec_id)]
        yield from _never_too_many(queue, limits, live, sorted(moments))


def _held(evidence: Evidence, queue: str) -> Iterator[tuple[str, Span, int]]:
    """The executions that held a slot of the queue: when they did for sure, and the earliest time of their claim."""
    for rows in evidence.executions.values():
        for row in rows:
            span = evidence.held(row)
            if row["queue"] == queue and span is not None:
                claimed = 0 if evidence.jumped else evidence.monotonic_of(row["started_at"]) - MARGIN_US
                yield row["exec_id"], span, claimed


def _never_too_many(
    queue: str, limits: Limits, live: dict[str, tuple[Span, int]], moments: Sequence[tuple[int, bool, str]]
) -> Iterator[Violation]:
    now: set[str] = set()
    for at, begins, exec_id in moments:
        if not begins:
            now.discard(exec_id)
            continue
        now.add(exec_id)
        # The last one to be claimed has met all the others. That was after each of them was claimed, and before now.
        window = Span(max(live[one][1] for one in now), at)
        most = limits.most(window)
        if len(now) > most:
            yield Violation("limit", queue, f"{len(now)} at once, the limit was {most:.0f}: {', '.join(sorted(now))}")


def pauses_are_kept(evidence: Evidence) -> Iterator[Violation]:
    if evidence.jumped:
        return
    orders = _orders(evidence, "pause", "resume")
    for given, answered, verb, _ in orders:
        if verb != "pause" or answered is None:
            continue
        # Two operators may not have been heard in the order in which they spoke.
        resumed = min(
            (o for o, done, v, _ in orders if v == "resume" and (done is None or done > given)), default=FOREVER
        )
        for exec_id, span, claimed in _held(evidence, MOVING_QUEUE):
            if answered < claimed and span.start < resumed:
                yield Violation("pause", exec_id, f"was claimed from queue {MOVING_QUEUE} while it was paused")


RULES = (
    finished_steps_stay_finished,
    trails_are_whole,
    cleanups_come_first,
    successors_come_after,
    parents_have_seen_their_children,
    limits_are_kept,
    pauses_are_kept,
)
