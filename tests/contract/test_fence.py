"""The fence: a write counts only while its execution is live and the lease its own. A late one changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.core.states import ExecutionStatus, JobState
from holdfast.errors import LeaseLost
from holdfast.store.commands import Claim, Write
from tests.support.backends import Backend
from tests.support.bench import (
    LEASE_MS,
    OLD,
    OPERATOR,
    OTHER,
    WORKER,
    Bench,
    begin,
    commit,
    effect_of,
    end,
    finish,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    report_progress,
    rewind_to,
)

Make = Callable[[Claim], Write]

WRITES: dict[str, Make] = {
    "FinishStep": lambda claim: finish_step(claim, 1, "two"),
    "RecordTry": lambda claim: record_try(claim, position=1),
    "RewindTo": lambda claim: rewind_to(claim, 0),
    "PlanEnding": plan_ending,
    "End": end,
    "give back": give_back,
    "Commit": lambda claim: commit(claim, effect_of(claim), position=1),
    "ReportProgress": lambda claim: report_progress(claim, 1),
}


def lose_to_nobody(bench: Bench, claim: Claim) -> None:
    """The lease has run out, and nobody has noticed yet."""
    bench.expire()


def lose_to_recovery(bench: Bench, claim: Claim) -> None:
    bench.expire()
    assert bench.recover() == ["given back"]


def lose_to_another_worker(bench: Bench, claim: Claim) -> None:
    lose_to_recovery(bench, claim)
    bench.take(OTHER)


def lose_to_itself(bench: Bench, claim: Claim) -> None:
    """The same worker has claimed the job again: the same owner, but another execution."""
    lose_to_recovery(bench, claim)
    bench.take(WORKER)


def lose_by_its_end(bench: Bench, claim: Claim) -> None:
    bench.apply(end(claim))


def lose_to_an_operator(bench: Bench, claim: Claim) -> None:
    bench.store.fail(claim.job.job_id, actor=OPERATOR, reason="stop", quarantine=False)


def lose_to_the_winner(bench: Bench, claim: Claim) -> None:
    """Another execution has done the job."""
    lose_to_recovery(bench, claim)
    winner = bench.take(OTHER)
    bench.apply(commit(winner), worker=OTHER)
    bench.apply(finish(winner), worker=OTHER)


LOSSES = [
    lose_to_nobody,
    lose_to_recovery,
    lose_to_another_worker,
    lose_to_itself,
    lose_by_its_end,
    lose_to_an_operator,
    lose_to_the_winner,
]


def everything(bench: Bench) -> object:
    """All there is to see, but for leases and progress."""
    jobs = bench.store.jobs(limit=1000)
    return (
        jobs,
        [bench.store.executions(job.job_id) for job in jobs],
        [bench.store.steps(job.job_id) for job in jobs],
        list(bench.store.journal()),
    )


@pytest.mark.sampled("make", "lose")
@pytest.mark.parametrize("make", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("lose", LOSSES)
def test_a_late_write_changes_nothing(
    bench: Bench, backend: Backend, make: Make, lose: Callable[[Bench, Claim], None]
) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))
    backend.execute("CREATE TABLE effects (job_id TEXT NOT NULL, exec_id TEXT NOT NULL)")
    lose(bench, claim)
    before = everything(bench)

    [answer] = bench.write(make(claim))

    assert isinstance(answer, LeaseLost)
    assert answer.exec_id == claim.exec_id
    assert everything(bench) == before
    assert backend.query("SELECT * FROM effects") == []
    bench.assert_sound()


@pytest.mark.parametrize("make", WRITES.values(), ids=WRITES)
def test_the_write_of_a_worker_that_does_not_hold_the_lease_changes_nothing(
    bench: Bench, backend: Backend, make: Make
) -> None:
    claim = bench.running(WORKER)
    bench.apply(finish_step(claim))
    before = everything(bench)

    [answer] = bench.write(make(claim), worker=OTHER)

    assert isinstance(answer, LeaseLost)
    assert everything(bench) == before
    bench.apply(commit(claim, position=1))
    assert bench.status(claim) is ExecutionStatus.COMMITTED


@pytest.mark.parametrize("make", [*WRITES.values(), begin], ids=[*WRITES, "Begin"])
def test_the_write_for_an_execution_that_does_not_exist_changes_nothing(bench: Bench, make: Make) -> None:
    import msgspec

    claim = bench.running()
    before = everything(bench)

    [answer] = bench.write(make(msgspec.structs.replace(claim, exec_id="no-such-execution")))

    assert isinstance(answer, LeaseLost)
    assert everything(bench) == before


@pytest.mark.parametrize("late_by_ms, is_lost", [(-1, False), (0, True), (1, True)])
def test_a_lease_is_lost_at_the_very_moment_it_runs_out(bench: Bench, late_by_ms: int, is_lost: bool) -> None:
    claim = bench.running()
    bench.clock.now += LEASE_MS + late_by_ms

    [answer] = bench.write(record_try(claim))

    assert isinstance(answer, LeaseLost) is is_lost


def test_begin_is_fenced_by_lease_and_owner(bench: Bench) -> None:
    bench.submit(**OLD)
    claim = bench.take()

    [by_another] = bench.write(begin(claim), worker=OTHER)
    bench.expire()
    [too_late] = bench.write(begin(claim))

    assert isinstance(by_another, LeaseLost)
    assert isinstance(too_late, LeaseLost)
    assert bench.status(claim) is ExecutionStatus.LEASED
    assert bench.job(claim.job.job_id).fingerprint == OLD["fingerprint"]


@pytest.mark.parametrize("name", ["FinishStep", "RecordTry", "Commit", "ReportProgress"])
def test_nothing_is_recorded_of_an_execution_that_was_never_begun(bench: Bench, name: str) -> None:
    bench.submit(**OLD)
    claim = bench.take()

    [answer] = bench.write(WRITES[name](claim))

    assert isinstance(answer, LeaseLost)
    assert bench.status(claim) is ExecutionStatus.LEASED
    assert bench.store.steps(claim.job.job_id) == []


@pytest.mark.parametrize("name", ["FinishStep", "RecordTry", "RewindTo", "PlanEnding", "End", "Commit"])
def test_nothing_but_the_finish_is_recorded_after_the_commit(bench: Bench, backend: Backend, name: str) -> None:
    claim = bench.committed()
    backend.execute("CREATE TABLE IF NOT EXISTS effects (job_id TEXT NOT NULL, exec_id TEXT NOT NULL)")
    before = everything(bench)

    [answer] = bench.write(WRITES[name](claim))

    assert isinstance(answer, LeaseLost)
    assert everything(bench) == before
    assert backend.query("SELECT * FROM effects") == []


def test_a_commit_can_be_finished_even_after_its_lease_has_run_out(bench: Bench) -> None:
    claim = bench.committed()
    bench.expire()

    bench.apply(finish(claim))

    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED


def test_finishing_twice_changes_nothing(bench: Bench) -> None:
    claim = bench.committed()
    bench.apply(finish(claim))
    before = everything(bench)

    [answer] = bench.write(finish(claim))

    assert isinstance(answer, LeaseLost)
    assert everything(bench) == before


def test_what_was_not_committed_cannot_be_finished(bench: Bench) -> None:
    claim = bench.running()

    [answer] = bench.write(finish(claim))

    assert isinstance(answer, LeaseLost)
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_a_step_written_twice_by_its_own_execution_is_not_a_lost_lease(bench: Bench) -> None:
    """The answer to the first write was lost, and so was the chance to ask for evidence."""
    claim = bench.running()
    bench.apply(finish_step(claim, response='{"a":1}'))

    [answer] = bench.write(finish_step(claim, response='{"a":1}'))

    assert answer is None
    assert [step.response for step in bench.store.steps(claim.job.job_id)] == ['{"a":1}']


def test_one_late_write_of_a_batch_does_not_harm_the_others(bench: Bench) -> None:
    late = bench.running()
    bench.expire()
    live = [bench.running() for _ in range(3)]

    answers = bench.write(
        finish_step(live[0]), finish_step(late), record_try(live[1]), commit(late), commit(live[2]), end(late)
    )

    assert [answer is None for answer in answers] == [True, False, True, False, True, False]
    assert [bench.status(claim) for claim in live] == [
        ExecutionStatus.IN_PROGRESS,
        ExecutionStatus.IN_PROGRESS,
        ExecutionStatus.COMMITTED,
    ]
    assert bench.store.steps(late.job.job_id) == []
    bench.assert_sound()
