"""The checker against histories made by hand: a good one passes, and each broken promise is named."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.histories.check_journal import hash_of
from tests.histories.check_steps import Limits
from tests.histories.checker import RULES, check
from tests.histories.evidence import Evidence, Row, Span

WORKER, OTHER = "host:1:1:boot:1:a", "host:2:1:boot:1:b"


def entry(job: str, **facts: Any) -> Row:
    row: Row = {
        "job_id": job, "seq": 0, "at": 1000, "actor": WORKER, "exec_id": None, "job_from": None, "job_to": "pending",
        "exec_from": None, "exec_to": None, "step": None, "reason": "", "metadata": "{}", "prev_hash": "", "hash": "",
    }  # fmt: skip
    return row | facts


def chained(entries: list[Row]) -> list[Row]:
    previous = ""
    for number, row in enumerate(entries, start=1):
        row |= {"seq": number, "prev_hash": previous}
        row["hash"] = previous = hash_of(row)
    return entries


def job_row(job: str, **facts: Any) -> Row:
    row: Row = {
        "job_id": job, "flow": "ledger", "state": "succeeded", "key": None, "queue": "narrow", "hold": "none",
        "not_before": 0, "run_after": None, "waits_for": None, "attempt": 1, "failures": 0, "crashes": 0,
    }  # fmt: skip
    return row | facts


def execution_row(job: str, exec_id: str, **facts: Any) -> Row:
    row: Row = {
        "job_id": job, "exec_id": exec_id, "attempt": 1, "queue": "narrow", "status": "done", "code": "completed",
        "lease_owner": WORKER, "started_at": 1000, "finished_at": 2000,
    }  # fmt: skip
    return row | facts


def life(job: str, exec_id: str) -> list[Row]:
    """The journal of a job that succeeds at once."""
    about = {"exec_id": exec_id, "job_from": "running", "job_to": "running"}
    return chained(
        [
            entry(job, actor="client", reason="submitted"),
            entry(job, **about | {"job_from": "pending"}, exec_to="leased", reason="claimed"),
            entry(job, **about, exec_from="leased", exec_to="in_progress", reason="started"),
            entry(job, **about, exec_from="in_progress", exec_to="committed", reason="completed"),
            entry(job, **about | {"job_to": "succeeded"}, exec_from="committed", exec_to="done", reason="finished"),
        ]
    )


def visits(job: str, exec_id: str, steps: list[str], since: int, attempt: int = 1) -> list[Row]:
    found = []
    for number, step in enumerate(steps):
        about = {"job": job, "exec": exec_id, "step": step, "pid": 1}
        at = since + number * 100
        found.append({"e": "begin", "t": at, **about, "flow": "ledger", "attempt": attempt, "claimed": 1000})
        found.append({"e": "end", "t": at + 50, **about, "how": "returned"})
    return found


def good() -> Evidence:
    """Two jobs, the second after the first, and an acknowledgement for each."""
    names = ["enter", "work", "book"]
    evidence = Evidence(now_ms=5000)
    for number, (job, exec_id) in enumerate((("A", "a1"), ("B", "b1"))):
        evidence.jobs[job] = job_row(job, run_after="A" if job == "B" else None)
        evidence.executions[job] = [execution_row(job, exec_id)]
        evidence.journal[job] = life(job, exec_id)
        evidence.steps[job] = [
            {
                "job_id": job, "position": at, "step": name, "exec_id": exec_id, "finished_at": 1500,
                "response": json.dumps({"trail": names[: at + 1]}),
            }
            for at, name in enumerate(names)
        ]  # fmt: skip
        evidence.effects.append({"job_id": job, "exec_id": exec_id, "n": number})
        evidence.events.append(
            {"e": "ack", "t": 10 + number, "pid": 9, "jobs": [job], "flow": "ledger", "key": None, "after": None}
        )
        evidence.events += visits(job, exec_id, names, 2_000_000 + number * 1000)
    evidence.queues["narrow"] = {"name": "narrow", "paused_at": None, "max_running": 2}
    evidence.events.sort(key=lambda event: int(event["t"]))
    return evidence


def add(evidence: Evidence, *events: Row) -> None:
    evidence.events = sorted([*evidence.events, *events], key=lambda event: int(event["t"]))


def ended(evidence: Evidence, job: str, code: str, owner: str = WORKER) -> None:
    """Make the job one that was aborted before its commit."""
    about = {"exec_id": f"{job.lower()}1", "job_from": "running"}
    entries = evidence.journal[job][:3]
    entries.append(
        entry(
            job,
            **about,
            job_to="failed",
            exec_from="in_progress",
            exec_to="aborted",
            metadata=json.dumps({"code": code}),
        )
    )
    evidence.journal[job] = chained(entries)
    counted = {"crashes": 1} if code == "crashed" else {"failures": 1}
    evidence.jobs[job] |= {"state": "failed", **counted}
    evidence.executions[job][0] |= {"status": "aborted", "code": code, "lease_owner": owner}
    evidence.effects = [row for row in evidence.effects if row["job_id"] != job]


# --- what breaks each rule ------------------------------------------------------------------------------------


def lost_job(e: Evidence) -> None:
    add(e, {"e": "ack", "t": 5, "pid": 9, "jobs": ["C"], "flow": "ledger", "key": None, "after": None})


def other_key(e: Evidence) -> None:
    e.jobs["A"]["key"] = "stolen"


def forgotten_success(e: Evidence) -> None:
    ended(e, "B", "error")
    add(e, {"e": "saw", "t": 3_000_000, "pid": 9, "job": "B", "state": "succeeded"})


def missing_effect(e: Evidence) -> None:
    del e.effects[0]


def doubled_effect(e: Evidence) -> None:
    e.effects.append(dict(e.effects[0]))


def foreign_effect(e: Evidence) -> None:
    e.effects[0]["exec_id"] = "a0"


def effect_of_a_failed_job(e: Evidence) -> None:
    ended(e, "B", "error")
    e.effects.append({"job_id": "B", "exec_id": "b1", "n": 1})


def key_twice(e: Evidence) -> None:
    for event in e.of("ack"):
        event["key"] = "k"
    for job in e.jobs.values():
        job["key"] = "k"


def lease_left(e: Evidence) -> None:
    e.executions["B"][0]["status"] = "committed"


def runnable_job(e: Evidence) -> None:
    e.jobs["C"] = job_row("C", state="pending", attempt=0)


def waits_for_ended_job(e: Evidence) -> None:
    e.jobs["C"] = job_row("C", state="pending", attempt=0, hold="after", waits_for="A")


def unprovoked_crash(e: Evidence) -> None:
    ended(e, "B", "crashed")


def crash_after_a_clean_stop(e: Evidence) -> None:
    ended(e, "B", "crashed")
    add(e, {"e": "ending", "t": 3_000_000, "pid": 9, "why": "stop", "worker": WORKER, "role": "worker", "number": 0})


def exit_by_itself(e: Evidence) -> None:
    facts = {"role": "worker", "number": 0, "worker": WORKER, "why": "", "log": "", "said": ""}
    add(e, {"e": "exit", "t": 3_000_000, "pid": 9, "code": 1, **facts})


def commit_after_cancel(e: Evidence) -> None:
    request = entry("B", actor="operator:x", job_from="running", job_to="running", reason="cancel requested: order 1")
    e.journal["B"] = chained([*e.journal["B"][:3], request, *e.journal["B"][3:]])


def finding_of_a_check(e: Evidence) -> None:
    add(e, {"e": "order-done", "t": 9, "pid": 9, "number": 1, "verb": "check", "value": "", "answer": ["wrong"]})


def late_probes(e: Evidence) -> None:
    e.events = [event for event in e.events if event["e"] != "ack"]
    add(e, *({"e": "probe", "t": 1, "pid": 9, "kind": "submit", "job": job, "due": -4_000_000} for job in "AB"))
    for event in e.of("begin"):
        event["t"] += 4_000_000


def edited_entry(e: Evidence) -> None:
    e.journal["A"][1]["actor"] = "somebody else"


def missing_entry(e: Evidence) -> None:
    e.journal["A"] = chained([row for row in e.journal["A"] if row["exec_to"] != "in_progress"])


def illegal_transition(e: Evidence) -> None:
    e.journal["A"][-1] |= {"job_from": "running", "job_to": "quarantined"}
    chained(e.journal["A"])
    e.jobs["A"]["state"] = "quarantined"


def gap_in_attempts(e: Evidence) -> None:
    e.jobs["A"]["attempt"] = 2


def uncounted_crash(e: Evidence) -> None:
    e.jobs["A"]["crashes"] = 1


def step_back(e: Evidence) -> None:
    add(e, *visits("A", "a1", ["enter"], 2_000_220))


def finished_step_in_a_later_attempt(e: Evidence) -> None:
    add(e, *visits("A", "a2", ["enter"], 1_999_000, attempt=2))


def write_after_the_end(e: Evidence) -> None:
    ended(e, "B", "error")
    e.steps["B"] = e.steps["B"][:1]
    e.steps["B"][0]["finished_at"] = 9000
    e.now_ms = 10_000


def wrong_trail(e: Evidence) -> None:
    e.steps["A"][1]["response"] = json.dumps({"trail": ["enter", "enter"]})


def no_cleanup(e: Evidence) -> None:
    ended(e, "B", "abort")


def too_early(e: Evidence) -> None:
    for event in e.of("begin"):
        if event["job"] == "B":
            event["t"] = 1_000_000


def three_at_once(e: Evidence) -> None:
    for job in ("C", "D", "E"):
        e.jobs[job] = job_row(job)
        e.executions[job] = [execution_row(job, job.lower())]
        e.journal[job] = life(job, job.lower())
        e.effects.append({"job_id": job, "exec_id": job.lower(), "n": 0})
        add(e, *visits(job, job.lower(), ["enter", "work", "book"], 4_000_000))


def claimed_while_paused(e: Evidence) -> None:
    e.executions["B"][0] |= {"queue": "moving", "started_at": 1900}
    order = {"pid": 9, "number": 1, "verb": "pause", "value": ""}
    add(e, {"e": "order", "t": 20, **order}, {"e": "order-done", "t": 30, **order, "answer": None})


def forgotten_child(e: Evidence) -> None:
    ended(e, "B", "error")
    add(e, {"e": "gathered", "t": 3_000_000, "pid": 1, "job": "A", "exec": "a1", "children": {"B": "succeeded"}})


BROKEN: dict[str, tuple[Callable[[Evidence], None], ...]] = {
    "lost": (lost_job, other_key, forgotten_success),
    "effect": (missing_effect, doubled_effect, foreign_effect, effect_of_a_failed_job),
    "key": (key_twice,),
    "lease": (lease_left,),
    "unfinished": (runnable_job, waits_for_ended_job),
    "crash": (unprovoked_crash, crash_after_a_clean_stop),
    "process": (exit_by_itself,),
    "cancel": (commit_after_cancel,),
    "check": (finding_of_a_check,),
    "wake-up": (late_probes,),
    "chain": (edited_entry,),
    "journal": (lease_left,),
    "transition": (missing_entry, illegal_transition),
    "attempts": (gap_in_attempts,),
    "counts": (uncounted_crash,),
    "re-run": (step_back,),
    "fence": (finished_step_in_a_later_attempt, write_after_the_end),
    "response": (wrong_trail,),
    "cleanup": (no_cleanup,),
    "order": (too_early,),
    "limit": (three_at_once,),
    "pause": (claimed_while_paused,),
    "child": (forgotten_child,),
}
CASES = [(rule, breaks) for rule, all_of_it in BROKEN.items() for breaks in all_of_it]


def rules_broken(evidence: Evidence) -> set[str]:
    return {violation.rule for violation in check(evidence)}


def test_a_good_history_passes() -> None:
    assert check(good()) == []


@pytest.mark.parametrize("rule,breaks", CASES, ids=[f"{rule}-{breaks.__name__}" for rule, breaks in CASES])
def test_a_broken_promise_is_named(rule: str, breaks: Callable[[Evidence], None]) -> None:
    evidence = good()
    breaks(evidence)

    assert rule in rules_broken(evidence)


def test_a_rewind_lets_finished_steps_run_again() -> None:
    evidence = good()
    step_back(evidence)
    rewind = entry("A", exec_id="a1", job_from="running", job_to="running", exec_from="in_progress", reason="rewind: x")
    entries = evidence.journal["A"]
    evidence.journal["A"] = chained([*entries[:3], rewind | {"exec_to": "in_progress"}, *entries[3:]])

    assert check(evidence) == []


def cancelled(e: Evidence, answer: str) -> None:
    about = {"number": 1, "verb": "cancel", "value": "", "job": "A"}
    add(e, {"e": "order-done", "t": 9, "pid": 9, "answer": answer, **about})


@pytest.mark.parametrize("answer", ["failed", '{"job_id":"A","state":"failed","cancel_reason":null}'])
def test_a_cancellation_of_a_job_that_had_failed_leaves_it_to_be_brought_back(answer: str) -> None:
    evidence, lost = good(), good()
    cancelled(lost, answer)
    cancelled(evidence, answer)
    evidence.journal["A"] = [entry("A", job_from="running", job_to="failed"), *evidence.journal["A"]]

    assert "cancel" in rules_broken(lost)
    assert "cancel" not in rules_broken(evidence)


def test_that_nobody_could_look_is_no_finding() -> None:
    evidence = good()
    said = "{'code': 'not-checked', 'severity': 'error', 'message': 'connection failed'}"
    add(evidence, {"e": "order-done", "t": 9, "pid": 9, "number": 1, "verb": "check", "value": "", "answer": [said]})

    assert check(evidence) == []


@pytest.mark.parametrize("why", ["kill", "two-signals"])
def test_the_death_of_its_worker_is_the_cause_of_a_crash(why: str) -> None:
    evidence = good()
    ended(evidence, "B", "crashed")
    add(
        evidence, {"e": "ending", "t": 3_000_000, "pid": 9, "why": why, "worker": WORKER, "role": "worker", "number": 0}
    )

    assert "crash" not in rules_broken(evidence)


@pytest.mark.parametrize("since,caused", [(1500, True), (90_000, False)])
def test_only_a_disturbance_of_its_time_is_the_cause_of_a_crash(since: int, caused: bool) -> None:
    evidence = good()
    ended(evidence, "B", "crashed", owner=OTHER)
    facts = {"kind": "freeze", "began": 0, "since": since, "until": since + 100}
    add(evidence, {"e": "disturbance", "t": 3_000_000, "pid": 9, **facts})

    assert ("crash" not in rules_broken(evidence)) is caused


def test_an_order_that_was_not_answered_may_hold_or_not() -> None:
    limits = Limits(3, [(100, 110, 1.0), (200, None, 5.0)])

    assert limits.most(Span(0, 50)) == 3
    assert limits.most(Span(105, 120)) == 3  # the answer came later, but it may have held before
    assert limits.most(Span(150, 160)) == 1
    assert limits.most(Span(150, 250)) == 5


def test_the_checker_changes_nothing_it_looks_at() -> None:
    evidence = good()
    before = copy.deepcopy((evidence.jobs, evidence.journal, evidence.events))
    check(evidence)

    assert (evidence.jobs, evidence.journal, evidence.events) == before


def test_every_rule_has_been_seen_to_fail() -> None:
    seen = set()
    for _, breaks in CASES:
        evidence = good()
        breaks(evidence)
        seen |= {rule for rule in RULES if list(rule(evidence))}

    assert seen == set(RULES)
