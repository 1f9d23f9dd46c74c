"""Operators: cancel, retry, fail, stop_stalled; legal transitions only, always journaled with who and why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.client import Client
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.errors import BadInput, InvalidStateTransitionError, JobNotFoundError, KeyInUseError
from holdfast.store.commands import Write
from holdfast.store.rows import new_ulid
from tests.support.bench import (
    OPERATOR,
    WORKER,
    Bench,
    commit,
    end,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    report_progress,
)

Prepare = Callable[[Bench], str]

STATES: dict[str, Prepare] = {
    "pending": lambda bench: bench.submit(),
    "running": lambda bench: bench.running().job.job_id,
    "committed": lambda bench: bench.committed().job.job_id,
    "succeeded": lambda bench: bench.succeeded(),
    "failed": lambda bench: bench.ended(Disposition.FAILED),
    "quarantined": lambda bench: bench.ended(Disposition.QUARANTINED),
}


def cancel(bench: Bench, job_id: str) -> JobState:
    return bench.store.cancel(job_id, actor=OPERATOR, reason="not needed")


def retry(bench: Bench, job_id: str, from_state: JobState = JobState.FAILED) -> None:
    bench.store.retry(job_id, actor=OPERATOR, reason="fixed it", from_state=from_state)


def fail(bench: Bench, job_id: str, *, quarantine: bool = False) -> None:
    bench.store.fail(job_id, actor=OPERATOR, reason="stop this", quarantine=quarantine)


def test_an_unknown_job_is_not_found(bench: Bench) -> None:
    for verb in (cancel, retry, fail):
        with pytest.raises(JobNotFoundError):
            verb(bench, new_ulid(1))

    assert bench.store.counts() == {}


# --- cancel ------------------------------------------------------------------------------------------------


def test_a_job_that_never_ran_is_cancelled_at_once(bench: Bench) -> None:
    job_id = bench.submit()

    state = cancel(bench, job_id)

    assert state is bench.state(job_id) is JobState.FAILED
    assert bench.states(job_id) == ["pending", "running", "failed"]
    assert (bench.latest(job_id).code, bench.latest(job_id).error) == (EndCode.CANCELLED, "not needed")
    assert {entry.actor for entry in bench.journal(job_id)[1:]} == {OPERATOR}
    assert bench.claim() == []
    bench.assert_sound()


@pytest.mark.parametrize("fields", [{"not_before": 9_999_999_999_999}, {"queue": "paused"}])
def test_a_job_that_waits_for_its_time_or_queue_is_cancelled_at_once(bench: Bench, fields: dict[str, object]) -> None:
    job_id = bench.submit(**fields)

    assert cancel(bench, job_id) is JobState.FAILED
    assert bench.job(job_id).hold == "none"


def test_a_running_job_is_asked_to_stop_and_goes_on_until_its_worker_ends_it(bench: Bench) -> None:
    claim = bench.running()

    state = cancel(bench, claim.job.job_id)

    assert state is bench.state(claim.job.job_id) is JobState.RUNNING
    assert bench.job(claim.job.job_id).cancel_reason == "not needed"
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.actor, entry.job_from, entry.job_to) == (OPERATOR, "running", "running")
    assert "not needed" in entry.reason
    bench.assert_sound()


def test_the_wish_to_cancel_outlives_the_worker(bench: Bench) -> None:
    claim = bench.running()
    cancel(bench, claim.job.job_id)
    bench.crash()

    assert bench.take().job.cancel_reason == "not needed"


def test_a_job_waiting_for_its_next_attempt_is_cancelled_by_the_next_worker_at_once(bench: Bench) -> None:
    claim = bench.running(failure_limit=9)
    later = bench.clock() + 3_600_000
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), not_before=later))
    cancel(bench, claim.job.job_id)

    again = bench.take()

    assert (again.job.job_id, again.job.cancel_reason) == (claim.job.job_id, "not needed")


@pytest.mark.parametrize("ends", ["waiting", "backing off", "failed"])
def test_a_job_cancelled_while_its_worker_ends_it_waits_for_nothing_any_more(bench: Bench, ends: str) -> None:
    """The worker has not heard of it yet: its end of the execution must not undo the operator's wish."""
    child = bench.submit(not_before=bench.clock() + 3_600_000)
    claim = bench.running(failure_limit=9)
    later = bench.clock() + 3_600_000
    writes = {
        "waiting": give_back(claim, EndCode.WAITING, wait_for=child),
        "backing off": give_back(claim, EndCode.BACKING_OFF, not_before=later),
        "failed": end(claim, (Disposition.FAILED, Disposition.RETRY), not_before=later),
    }
    cancel(bench, claim.job.job_id)
    bench.apply(writes[ends])

    again = bench.take()

    assert (again.job.job_id, again.job.cancel_reason) == (claim.job.job_id, "not needed")
    bench.assert_sound()


def test_the_cleanup_of_a_cancelled_job_waits_its_time_between_two_tries(bench: Bench) -> None:
    claim = bench.running()
    cancel(bench, claim.job.job_id)
    bench.apply(plan_ending(claim))
    bench.apply(give_back(claim, EndCode.BACKING_OFF, not_before=bench.clock() + 3_600_000))

    assert bench.claim() == []
    bench.clock.advance(3601)
    assert bench.take().job.job_id == claim.job.job_id


def test_the_wish_to_cancel_is_over_when_the_job_has_ended(bench: Bench) -> None:
    claim = bench.running()
    cancel(bench, claim.job.job_id)
    bench.apply(end(claim, code=EndCode.CANCELLED))

    retry(bench, claim.job.job_id)

    assert bench.job(claim.job.job_id).cancel_reason is None


def test_a_quarantined_job_can_be_cancelled_so_that_it_is_cleaned_up(bench: Bench) -> None:
    job_id = bench.ended(Disposition.QUARANTINED)

    state = cancel(bench, job_id)

    assert state is bench.state(job_id) is JobState.PENDING
    assert bench.take().job.cancel_reason == "not needed"
    bench.assert_sound()


@pytest.mark.parametrize("predecessor", ["unfinished", "quarantined"])
def test_a_quarantined_job_can_be_cancelled_whatever_became_of_its_predecessor(bench: Bench, predecessor: str) -> None:
    first = bench.submit(not_before=bench.clock() + 3_600_000)
    job_id = bench.submit(run_after=first)
    bench.store.fail(job_id, actor=OPERATOR, reason="poison", quarantine=True)
    if predecessor == "quarantined":
        bench.store.fail(first, actor=OPERATOR, reason="poison", quarantine=True)

    bench.store.cancel(job_id, actor=OPERATOR, reason="not needed")

    assert bench.take().job.cancel_reason == "not needed"
    bench.assert_sound()


def test_a_job_that_has_succeeded_cannot_be_cancelled(bench: Bench) -> None:
    job_id = STATES["succeeded"](bench)
    before = bench.journal(job_id)

    with pytest.raises(InvalidStateTransitionError):
        cancel(bench, job_id)

    assert bench.journal(job_id) == before


def test_a_job_that_has_committed_cannot_be_cancelled(bench: Bench) -> None:
    """Its effect is there for all to see: to answer that it will be cancelled would be a lie."""
    job_id = STATES["committed"](bench)
    before = bench.journal(job_id)

    with pytest.raises(InvalidStateTransitionError):
        cancel(bench, job_id)

    assert bench.journal(job_id) == before


def test_a_cancelled_predecessor_takes_its_dependents_along(bench: Bench) -> None:
    first = bench.submit()
    second = bench.submit(run_after=first)
    cancel(bench, first)

    assert bench.state(second) is JobState.FAILED
    bench.assert_sound()


# --- retry and release -------------------------------------------------------------------------------------


@pytest.mark.parametrize("disposition", [Disposition.FAILED, Disposition.QUARANTINED])
def test_an_ended_job_can_be_tried_again(bench: Bench, disposition: Disposition) -> None:
    job_id = bench.ended(disposition)
    state = bench.state(job_id)

    retry(bench, job_id, state)

    entry = bench.journal(job_id)[-1]
    assert bench.state(job_id) is JobState.PENDING
    assert (entry.actor, entry.reason) == (OPERATOR, "fixed it")
    assert (entry.job_from, entry.job_to) == (state, "pending")
    assert bench.take().attempt == 2
    bench.assert_sound()


@pytest.mark.parametrize("from_state", [JobState.FAILED, JobState.QUARANTINED])
@pytest.mark.parametrize("name", ["running", "committed", "succeeded"])
def test_a_job_that_has_not_failed_cannot_be_tried_again(bench: Bench, name: str, from_state: JobState) -> None:
    job_id = STATES[name](bench)
    before = bench.journal(job_id)

    with pytest.raises(InvalidStateTransitionError):
        retry(bench, job_id, from_state)

    assert bench.journal(job_id) == before


def test_retry_is_for_failed_and_release_for_quarantined_jobs(bench: Bench) -> None:
    failed, quarantined = bench.ended(Disposition.FAILED), bench.ended(Disposition.QUARANTINED)

    with pytest.raises(InvalidStateTransitionError):
        retry(bench, failed, JobState.QUARANTINED)
    with pytest.raises(InvalidStateTransitionError):
        retry(bench, quarantined, JobState.FAILED)

    assert bench.state(failed) is JobState.FAILED
    assert bench.state(quarantined) is JobState.QUARANTINED


def test_a_retried_job_starts_at_once_with_a_fresh_budget(bench: Bench) -> None:
    claim = bench.running(failure_limit=2)
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), not_before=bench.clock() + 10))
    bench.clock.advance(1)
    bench.apply(end(bench.take(), (Disposition.FAILED, Disposition.QUARANTINED)))

    retry(bench, claim.job.job_id, JobState.QUARANTINED)

    job = bench.job(claim.job.job_id)
    assert (job.failures, job.failures_forgiven) == (2, 2)
    assert (job.attempt, job.hold) == (2, "none")
    assert bench.take().attempt == 3


def test_a_retried_job_goes_on_at_its_first_unfinished_step(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim, response='{"a":1}'))
    bench.apply(end(claim))

    retry(bench, claim.job.job_id)

    again = bench.take()
    assert (again.position, again.response) == (1, '{"a":1}')


def test_a_retry_is_refused_while_another_job_has_the_key(bench: Bench) -> None:
    failed = bench.ended(key="k")
    other = bench.submit(key="k")

    with pytest.raises(KeyInUseError, match=other):
        retry(bench, failed)

    assert bench.state(failed) is JobState.FAILED


def test_a_retried_job_has_its_key_again(bench: Bench) -> None:
    failed = bench.ended(key="k")
    retry(bench, failed)

    assert bench.submit_one(key="k").job_id == failed


def test_a_state_change_by_an_operator_moves_the_time_of_the_last_change(bench: Bench) -> None:
    job_id = bench.ended()
    bench.clock.advance(100)

    retry(bench, job_id)

    assert bench.job(job_id).updated_at == bench.clock()


# --- fail --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, quarantine, states",
    [
        ("pending", False, ["running", "failed"]),
        ("pending", True, ["running", "failed", "quarantined"]),
        ("running", False, ["failed"]),
        ("running", True, ["failed", "quarantined"]),
        ("failed", True, ["quarantined"]),
    ],
)
def test_a_job_can_be_forced_to_end(bench: Bench, name: str, quarantine: bool, states: list[str]) -> None:
    job_id = STATES[name](bench)
    before = bench.states(job_id)

    fail(bench, job_id, quarantine=quarantine)

    assert bench.states(job_id) == before + states
    assert bench.journal(job_id)[-1].actor == OPERATOR
    assert bench.journal(job_id)[-1].reason == "stop this"
    bench.assert_sound()


@pytest.mark.parametrize("name, quarantine", [("failed", False), ("quarantined", True)])
def test_forcing_a_job_where_it_is_changes_nothing(bench: Bench, name: str, quarantine: bool) -> None:
    job_id = STATES[name](bench)
    before = bench.journal(job_id)

    fail(bench, job_id, quarantine=quarantine)

    assert bench.journal(job_id) == before


@pytest.mark.parametrize(
    "name, quarantine",
    [("succeeded", False), ("succeeded", True), ("committed", False), ("committed", True), ("quarantined", False)],
)
def test_what_the_table_does_not_allow_cannot_be_forced(bench: Bench, name: str, quarantine: bool) -> None:
    job_id = STATES[name](bench)
    before = bench.journal(job_id)

    with pytest.raises(InvalidStateTransitionError):
        fail(bench, job_id, quarantine=quarantine)

    assert bench.journal(job_id) == before
    bench.assert_sound()


def test_a_forced_end_fences_the_worker(bench: Bench) -> None:
    claim = bench.running()
    fail(bench, claim.job.job_id)

    [answer] = bench.write(commit(claim))

    assert answer is not None
    assert bench.store.extend_leases(worker_id=WORKER, lease_ms=1000) == []


def test_a_forced_end_takes_the_dependents_along(bench: Bench) -> None:
    first = bench.running().job.job_id
    second = bench.submit(run_after=first)
    third = bench.submit(run_after=second)

    fail(bench, first, quarantine=True)

    assert [bench.state(job) for job in (first, second, third)] == [
        JobState.QUARANTINED,
        JobState.FAILED,
        JobState.FAILED,
    ]
    bench.assert_sound()


# --- stop_stalled ------------------------------------------------------------------------------------------


def stop(bench: Bench, exec_id: str, *, not_before: int = 0) -> bool:
    return bench.store.stop_stalled(exec_id, actor="guard", not_before=not_before)


def keep_alive_for(bench: Bench, seconds: float) -> None:
    """Time passes; the worker renews its lease and does nothing else."""
    for _ in range(int(seconds // 20)):
        bench.clock.advance(20)
        bench.store.extend_leases(worker_id=WORKER, lease_ms=30_000)


def test_a_job_without_progress_is_stopped_through_failed_to_pending(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 80)

    assert stop(bench, claim.exec_id)
    assert bench.states(claim.job.job_id) == ["pending", "running", "failed", "pending"]
    assert bench.latest(claim.job.job_id).code == EndCode.STALLED
    assert bench.journal(claim.job.job_id)[-1].actor == "guard"
    assert "no progress" in bench.journal(claim.job.job_id)[-1].reason
    bench.assert_sound()


def test_a_stopped_job_waits_before_it_is_tried_again(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 80)

    stop(bench, claim.exec_id, not_before=bench.clock() + 60_000)

    assert bench.claim() == []
    bench.clock.advance(60)
    assert bench.take().interrupted


def test_a_stall_counts_as_a_crash_and_not_as_a_failure(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 80)
    stop(bench, claim.exec_id)

    job = bench.job(claim.job.job_id)
    assert (job.crashes, job.failures) == (1, 0)


def test_a_job_that_stalls_again_and_again_is_quarantined(bench: Bench) -> None:
    job_id = bench.submit(stall_ms=60_000, crash_limit=2)
    for _ in range(2):
        claim = bench.take()
        keep_alive_for(bench, 80)
        assert stop(bench, claim.exec_id)

    assert bench.state(job_id) is JobState.QUARANTINED
    bench.assert_sound()


def test_a_stopped_worker_is_fenced(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 80)
    stop(bench, claim.exec_id)

    [answer] = bench.write(commit(claim))

    assert answer is not None


@pytest.mark.parametrize("sign", ["step", "progress", "try"])
def test_a_sign_of_progress_keeps_a_job_from_being_stopped(bench: Bench, sign: str) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 40)
    signs: dict[str, Write] = {
        "step": finish_step(claim),
        "progress": report_progress(claim),
        "try": record_try(claim),
    }
    bench.apply(signs[sign])
    keep_alive_for(bench, 40)

    assert not stop(bench, claim.exec_id)
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS


def test_a_job_that_waits_for_its_next_try_is_not_stalled(bench: Bench) -> None:
    claim = bench.running(stall_ms=30_000)
    bench.apply(record_try(claim, retry_at=bench.clock() + 50_000))
    keep_alive_for(bench, 40)

    assert not stop(bench, claim.exec_id)


def test_what_is_not_running_any_more_is_not_stopped(bench: Bench) -> None:
    committed = bench.committed(stall_ms=1)
    given_back = bench.running(stall_ms=1)
    bench.apply(give_back(given_back))
    bench.clock.advance(100)

    assert not stop(bench, committed.exec_id)
    assert not stop(bench, given_back.exec_id)
    assert not stop(bench, "no-such-execution")
    bench.assert_sound()


@pytest.mark.parametrize("to", ["failed", "quarantined"])
def test_a_state_that_is_given_as_a_text_is_that_state(bench: Bench, to: str) -> None:
    client = Client(bench.store, actor=OPERATOR)
    job_id = bench.submit()

    assert client.force(job_id, to, reason="why")[-1] is JobState(to)
    assert client.force(job_id, to, reason="why") == [JobState(to)]
    assert bench.state(job_id) is JobState(to)
    with pytest.raises(BadInput):
        client.force(job_id, "gone", reason="why")
