"""write: what each of the writes leaves behind, what is journaled of it, and how to find out whether it is there."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from holdfast.core.records import ERROR_LIMIT, Ending
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.store.commands import Claim, Write
from tests.support.bench import (
    FINGERPRINT,
    LEASE_MS,
    NEW,
    OLD,
    WORKER,
    Bench,
    begin,
    commit,
    end,
    finish,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    report_progress,
    rewind_to,
)


def test_begin_starts_a_leased_execution_under_the_new_definition(bench: Bench) -> None:
    bench.submit(**OLD)
    claim = bench.take()

    bench.apply(begin(claim, **NEW))

    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    assert bench.job(claim.job.job_id).fingerprint == NEW["fingerprint"]
    assert bench.store.definitions() == {each["fingerprint"]: each["definition"] for each in (OLD, NEW)}
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.exec_from, entry.exec_to) == ("leased", "in_progress")
    assert NEW["fingerprint"] in entry.reason
    bench.assert_sound()


def test_a_finished_step_is_kept_with_its_response(bench: Bench) -> None:
    claim = bench.running()
    bench.clock.advance(2)

    bench.apply(finish_step(claim, 0, "one", tries=3, response='{"a":1}'))

    [step] = bench.store.steps(claim.job.job_id)
    assert (step.position, step.step, step.exec_id, step.tries) == (0, "one", claim.exec_id, 3)
    assert (step.response, step.finished_at) == ('{"a":1}', bench.clock())
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_a_failed_try_is_remembered(bench: Bench) -> None:
    claim = bench.running()

    bench.apply(record_try(claim, 2, position=1, retry_at=bench.clock() + 5000, error="connection refused"))

    execution = bench.latest(claim.job.job_id)
    assert (execution.tries, execution.position, execution.error) == (2, 1, "connection refused")
    assert execution.retry_at == bench.clock() + 5000
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_a_rewind_forgets_the_later_steps_and_is_journaled(bench: Bench) -> None:
    claim = bench.running()
    for position, step in enumerate(["one", "two", "three"]):
        bench.apply(finish_step(claim, position, step))

    bench.apply(rewind_to(claim, 1, "two", "the device is gone"))

    assert [step.step for step in bench.store.steps(claim.job.job_id)] == ["one"]
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.job_from, entry.job_to, entry.step) == ("running", "running", "two")
    assert (entry.exec_from, entry.exec_to) == ("in_progress", "in_progress")
    assert "the device is gone" in entry.reason
    bench.assert_sound()


def test_a_planned_ending_outlives_its_execution(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(plan_ending(claim, "no such image"))
    bench.crash()

    again = bench.take()

    assert msgspec.json.decode(again.job.ending or "", type=Ending) == Ending(
        Disposition.FAILED, EndCode.ABORT, "no such image"
    )
    assert any("no such image" in entry.reason for entry in bench.journal(claim.job.job_id))
    bench.assert_sound()


def test_a_planned_ending_is_over_when_the_job_has_ended(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(plan_ending(claim))
    bench.apply(end(claim, code=EndCode.ABORT, forget_steps=True))

    assert bench.job(claim.job.job_id).ending is None


def test_progress_is_shown(bench: Bench) -> None:
    claim = bench.running()
    bench.clock.advance(3)

    bench.apply(report_progress(claim, 1, '{"done":5}'))

    execution = bench.latest(claim.job.job_id)
    assert (execution.progress, execution.progressed_at) == ('{"done":5}', bench.clock())
    assert bench.store.last_progress(claim.exec_id) == bench.clock()


def test_a_commit_keeps_the_response_and_leaves_the_job_running(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))

    bench.apply(commit(claim, response='{"size":3}', position=1))

    assert bench.status(claim) is ExecutionStatus.COMMITTED
    assert bench.state(claim.job.job_id) is JobState.RUNNING
    assert bench.store.steps(claim.job.job_id)[-1].response == '{"size":3}'
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.exec_from, entry.exec_to, entry.job_to) == ("in_progress", "committed", "running")
    assert (entry.step, entry.reason, entry.actor) == ("two", "completed", WORKER)
    bench.assert_sound()


def test_a_finish_makes_the_job_succeed(bench: Bench) -> None:
    claim = bench.committed()
    bench.clock.advance(1)

    bench.apply(finish(claim))

    execution = bench.latest(claim.job.job_id)
    assert (execution.status, execution.code, execution.finished_at) == ("done", "completed", bench.clock())
    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    assert bench.job(claim.job.job_id).updated_at == bench.clock()
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.exec_from, entry.exec_to) == ("committed", "done")
    assert (entry.job_from, entry.job_to) == ("running", "succeeded")
    bench.assert_sound()


ENDS: list[tuple[tuple[Disposition, ...], list[str], JobState]] = [
    ((Disposition.RETRY,), ["pending"], JobState.PENDING),
    ((Disposition.FAILED,), ["failed"], JobState.FAILED),
    ((Disposition.FAILED, Disposition.RETRY), ["failed", "pending"], JobState.PENDING),
    ((Disposition.FAILED, Disposition.QUARANTINED), ["failed", "quarantined"], JobState.QUARANTINED),
]


@pytest.mark.parametrize("path, journaled, state", ENDS)
def test_an_end_goes_through_legal_states_one_by_one(
    bench: Bench, path: tuple[Disposition, ...], journaled: list[str], state: JobState
) -> None:
    claim = bench.running(failure_limit=9)

    bench.apply(end(claim, path, EndCode.ERROR, error="no luck", step="one"))

    assert bench.state(claim.job.job_id) is state
    assert bench.states(claim.job.job_id) == ["pending", "running", *journaled]
    execution = bench.latest(claim.job.job_id)
    assert (execution.status, execution.disposition) == (ExecutionStatus.ABORTED, path[-1])
    assert (execution.code, execution.error, execution.finished_at) == ("error", "no luck", bench.clock())
    assert bench.journal(claim.job.job_id)[3].step == "one"
    bench.assert_sound()


@pytest.mark.parametrize(
    "path, code, failures, crashes",
    [
        ((Disposition.RETRY,), EndCode.RELEASED, 0, 0),
        ((Disposition.RETRY,), EndCode.WAITING, 0, 0),
        ((Disposition.FAILED,), EndCode.ABORT, 1, 0),
        ((Disposition.FAILED, Disposition.RETRY), EndCode.ERROR, 1, 0),
        ((Disposition.RETRY,), EndCode.CRASHED, 0, 1),
    ],
)
def test_failures_and_crashes_are_counted_apart(
    bench: Bench, path: tuple[Disposition, ...], code: EndCode, failures: int, crashes: int
) -> None:
    claim = bench.running(failure_limit=9)

    bench.apply(end(claim, path, code))

    job = bench.job(claim.job.job_id)
    assert (job.attempt, job.failures, job.crashes) == (1, failures, crashes)


def test_an_end_that_forgets_its_steps_lets_the_next_attempt_begin_at_the_first(bench: Bench) -> None:
    claim = bench.running(failure_limit=9)
    bench.apply(finish_step(claim))
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), forget_steps=True))

    again = bench.take()

    assert (again.position, again.response) == (0, None)


def test_a_leased_execution_can_be_ended_without_having_begun(bench: Bench) -> None:
    bench.submit(**OLD)
    claim = bench.take()

    bench.apply(end(claim, (Disposition.FAILED, Disposition.QUARANTINED), EndCode.DEFINITION_CHANGED))

    assert bench.state(claim.job.job_id) is JobState.QUARANTINED
    entry = bench.journal(claim.job.job_id)[-2]
    assert (entry.exec_from, entry.exec_to) == ("leased", "aborted")
    bench.assert_sound()


def test_a_batch_is_answered_in_its_order(bench: Bench) -> None:
    claims = [bench.running() for _ in range(5)]
    bench.apply(commit(claims[4]))

    answers = bench.write(
        end(claims[0]),
        finish_step(claims[1]),
        finish(claims[4]),
        record_try(claims[3]),
        commit(claims[2]),
        finish_step(claims[0], 1, "two"),
    )

    assert answers[:5] == [None] * 5
    assert [bench.status(claim).value for claim in claims] == [
        "aborted",
        "in_progress",
        "committed",
        "in_progress",
        "done",
    ]


def test_an_ending_and_the_end_may_go_into_one_batch(bench: Bench) -> None:
    claim = bench.running()

    bench.apply(plan_ending(claim), give_back(claim, EndCode.TIMEOUT, position=-1))

    assert bench.state(claim.job.job_id) is JobState.PENDING
    assert bench.take().job.ending is not None


def test_an_empty_batch_changes_nothing(bench: Bench) -> None:
    assert bench.write() == []


HOSTILE_TEXTS = {
    "unicode": "naïve — ünïcødé 🚀",
    "quotes": 'it\'s "quoted" \\ and {"json": [1]}',
    "newlines": "a\nb\r\nc\td",
    "nul": "embedded \x00 nul byte",
    "controls": "\x01\x1b[31mred\x7f",
    "long": "x" * 100_000,
    "looks like null": "null",
    "looks like a number": "12",
    "empty": "",
}


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_any_text_of_an_error_is_journaled_up_to_its_limit_and_keeps_the_chain_whole(bench: Bench, text: str) -> None:
    claim = bench.running(failure_limit=9)
    bench.apply(record_try(claim, error=text))
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), error=text))

    # A text of a database cannot hold a NUL, so it is made visible.
    kept = text.replace("\0", "␀")[:ERROR_LIMIT]
    assert bench.findings() == []
    assert bench.latest(claim.job.job_id).error == kept
    assert bench.journal(claim.job.job_id)[-1].reason == (kept or "error")


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_any_text_in_a_response_comes_back_as_it_was(bench: Bench, text: str) -> None:
    response = msgspec.json.encode({"text": text}).decode()
    claim = bench.running()

    bench.apply(finish_step(claim, response=response))
    bench.apply(give_back(claim))

    assert bench.take().response == response


# --- evidence ----------------------------------------------------------------------------------------------

Make = Callable[[Claim], Write]
EVIDENCE: dict[str, Make] = {
    "FinishStep": lambda claim: finish_step(claim, 1, "two"),
    "RecordTry": lambda claim: record_try(claim, 1, position=1),
    "RewindTo": lambda claim: rewind_to(claim, 0),
    "PlanEnding": plan_ending,
    "End": end,
    "give back": give_back,
    "Commit": lambda claim: commit(claim, position=1),
}


@pytest.mark.parametrize("make", EVIDENCE.values(), ids=EVIDENCE)
def test_evidence_tells_a_write_that_is_there_from_one_that_is_not(bench: Bench, make: Make) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))
    write = make(claim)
    before = bench.store.evidence([write])
    bench.apply(write)

    after = bench.store.evidence([write])

    assert (before, after) == ([False], [True])


def test_evidence_of_a_begin(bench: Bench) -> None:
    bench.submit(**OLD)
    claim = bench.take()
    before = bench.store.evidence([begin(claim)])
    bench.apply(begin(claim))

    assert (before, bench.store.evidence([begin(claim)])) == ([False], [True])


def test_evidence_of_a_finish(bench: Bench) -> None:
    claim = bench.committed()
    before = bench.store.evidence([finish(claim)])
    bench.apply(finish(claim))

    assert (before, bench.store.evidence([finish(claim)])) == ([False], [True])


def test_evidence_of_a_commit_is_still_there_after_the_finish(bench: Bench) -> None:
    claim = bench.committed()
    bench.apply(finish(claim))

    assert bench.store.evidence([commit(claim)]) == [True]


def test_a_step_finished_by_another_execution_is_no_evidence(bench: Bench) -> None:
    late = bench.running()
    bench.crash()
    winner = bench.take()
    bench.apply(finish_step(winner))

    assert bench.store.evidence([finish_step(late), finish_step(winner)]) == [False, True]


def test_a_commit_of_another_execution_is_no_evidence(bench: Bench) -> None:
    late = bench.running()
    bench.crash()
    winner = bench.take()
    bench.apply(commit(winner))

    assert bench.store.evidence([commit(late), commit(winner)]) == [False, True]


def test_evidence_answers_for_each_write_of_a_batch(bench: Bench) -> None:
    one, two = bench.running(), bench.running()
    bench.apply(commit(one))

    assert bench.store.evidence([commit(one), commit(two), finish(one), record_try(two)]) == [True, False, False, False]
    assert bench.store.evidence([]) == []


# --- leases ------------------------------------------------------------------------------------------------


def test_a_write_keeps_the_leases_of_its_worker_alive(bench: Bench) -> None:
    """A long commit step holds the database, so that the thread that renews leases cannot get at it."""
    busy, waiting = bench.running(), bench.running()

    def slow(_tx: object) -> str:
        bench.clock.advance(LEASE_MS / 1000 * 3)
        return "{}"

    known = [busy.exec_id, waiting.exec_id]
    bench.store.write([commit(busy, slow)], worker_id=WORKER, lease_ms=LEASE_MS, renew=lambda: known)

    assert bench.recover() == []
    assert bench.status(waiting) is ExecutionStatus.IN_PROGRESS
    assert bench.latest(waiting.job.job_id).lease_expires_at > bench.clock()


def test_a_fingerprint_stays_pinned_while_the_job_goes_on_under_it(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(give_back(claim))

    assert bench.take().job.fingerprint == FINGERPRINT
