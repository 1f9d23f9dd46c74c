"""recover: finish what was committed, give back what was not, and quarantine what kills its worker again and again."""

from __future__ import annotations

import pytest

from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from tests.support.backends import Backend
from tests.support.bench import (
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
)


def test_a_live_lease_is_left_alone(bench: Bench) -> None:
    claim = bench.running()
    bench.clock.advance(29)

    assert bench.recover() == []
    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS


@pytest.mark.parametrize("begun", [True, False], ids=["in progress", "leased"])
def test_an_expired_lease_is_given_back(bench: Bench, begun: bool) -> None:
    bench.submit(**OLD)
    claim = bench.take()
    if begun:
        bench.apply(begin(claim))
    bench.expire()

    [recovered] = bench.store.recover(is_dead=lambda _: False, actor=OTHER)

    execution, job = bench.latest(claim.job.job_id), bench.job(claim.job.job_id)
    assert (recovered.job_id, recovered.exec_id, recovered.owner) == (job.job_id, claim.exec_id, WORKER)
    assert (recovered.flow, recovered.outcome) == ("demo", "given back")
    assert (execution.status, execution.disposition, execution.code) == ("aborted", "retry", "crashed")
    assert (job.state, job.crashes, job.failures) == (JobState.PENDING, 1, 0)
    bench.assert_sound()


def test_a_recovery_is_journaled_with_who_and_why(bench: Bench) -> None:
    claim = bench.running()
    bench.crash()

    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.actor, entry.exec_id) == (OTHER, claim.exec_id)
    assert (entry.exec_from, entry.exec_to) == ("in_progress", "aborted")
    assert (entry.job_from, entry.job_to) == ("running", "pending")
    assert "pid 11 on host-a" in entry.reason


def test_the_jobs_of_a_dead_process_are_taken_over_before_their_lease_runs_out(bench: Bench) -> None:
    dead, alive = bench.running(WORKER), bench.running(OTHER)

    assert bench.recover(WORKER) == ["given back"]
    assert bench.status(dead) is ExecutionStatus.ABORTED
    assert bench.status(alive) is ExecutionStatus.IN_PROGRESS


@pytest.mark.parametrize("dead", [True, False], ids=["process gone", "lease expired"])
def test_what_was_committed_is_finished_without_repeating_its_effect(
    bench: Bench, backend: Backend, dead: bool
) -> None:
    claim = bench.running()
    bench.apply(commit(claim, effect_of(claim, '{"n":5}')))
    if not dead:
        bench.expire()

    outcomes = bench.recover(WORKER) if dead else bench.recover()

    assert outcomes == ["finished"]
    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    assert bench.store.steps(claim.job.job_id)[-1].response == '{"n":5}'
    assert backend.query("SELECT exec_id FROM effects") == [(claim.exec_id,)]
    assert bench.job(claim.job.job_id).crashes == 0
    assert bench.claim(OTHER) == []
    entry = bench.journal(claim.job.job_id)[-1]
    assert (entry.actor, entry.exec_from, entry.exec_to) == (OTHER, "committed", "done")
    bench.assert_sound()


def test_the_late_finish_of_a_recovered_commit_changes_nothing(bench: Bench) -> None:
    claim = bench.committed()
    bench.crash()
    before = bench.journal(claim.job.job_id)

    bench.write(finish(claim))

    assert bench.journal(claim.job.job_id) == before
    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED


def test_a_second_recovery_finds_nothing(bench: Bench) -> None:
    bench.running()
    bench.committed()
    bench.expire()

    assert sorted(bench.recover()) == ["finished", "given back"]
    assert bench.recover() == []


def test_two_recoveries_at_once_do_not_recover_twice(bench: Bench, backend: Backend) -> None:
    claim = bench.running()
    another = backend.open(bench.clock)
    bench.expire()
    nested: list[str] = []

    def is_dead(owner: str) -> bool:
        """While one recovery asks who is dead, another one does all of it."""
        nested.extend(one.outcome for one in another.recover(is_dead=lambda _: False, actor="second"))
        return False

    outer = bench.store.recover(is_dead=is_dead, actor="first")

    assert (nested, outer) == (["given back"], [])
    assert bench.job(claim.job.job_id).crashes == 1
    bench.assert_sound()


def test_what_was_reclaimed_while_asking_who_is_dead_is_not_taken_away(bench: Bench, backend: Backend) -> None:
    """The list of the dead is older than the transaction: a lease of a living worker must survive it."""
    bench.running(WORKER)
    another = Bench(backend.open(bench.clock), bench.clock)

    def is_dead(owner: str) -> bool:
        another.recover(WORKER)
        another.take(OTHER)
        return owner == WORKER

    recovered = bench.store.recover(is_dead=is_dead, actor="third")

    assert recovered == []
    assert [e.lease_owner for e in bench.store.under_way()] == [OTHER]


def test_ended_jobs_are_not_recovered(bench: Bench) -> None:
    bench.succeeded()
    bench.ended()
    bench.ended(Disposition.QUARANTINED)
    bench.submit(run_after=bench.submit())
    bench.expire()

    assert bench.recover(WORKER) == []


def test_a_crash_loop_ends_in_quarantine(bench: Bench) -> None:
    job_id = bench.submit(crash_limit=3)
    outcomes = []
    for _ in range(3):
        bench.take()
        bench.expire()
        outcomes += bench.recover()

    assert outcomes == ["given back", "given back", "quarantined"]
    assert bench.state(job_id) is JobState.QUARANTINED
    assert bench.states(job_id)[-3:] == ["running", "failed", "quarantined"]
    assert bench.job(job_id).crashes == 3
    assert bench.claim() == []
    bench.assert_sound()


def test_crashes_and_failures_have_budgets_of_their_own(bench: Bench) -> None:
    job_id = bench.submit(crash_limit=3, failure_limit=3)
    for _ in range(2):
        bench.take()
        bench.crash()
    for _ in range(2):
        bench.apply(end(bench.take(), (Disposition.FAILED, Disposition.RETRY)))

    job = bench.job(job_id)
    assert (job.state, job.crashes, job.failures, job.attempt) == (JobState.PENDING, 2, 2, 4)


def test_an_attempt_is_counted_after_each_failure_and_crash_and_after_nothing_else(bench: Bench) -> None:
    job_id = bench.submit(crash_limit=3, failure_limit=3)
    seen = [bench.job(job_id).attempts]
    for code in (EndCode.WAITING, EndCode.RELEASED, EndCode.BACKING_OFF):
        bench.apply(give_back(bench.take(), code))
    seen.append(bench.job(job_id).attempts)
    bench.take()
    bench.crash()
    bench.apply(give_back(bench.take()))
    seen.append(bench.job(job_id).attempts)
    bench.apply(end(bench.take(), (Disposition.FAILED, Disposition.RETRY)))
    last = bench.take()
    seen.append(last.job.attempts)
    bench.apply(end(last, (Disposition.FAILED,)))
    seen.append(bench.job(job_id).attempts)

    assert seen == [0, 1, 2, 3, 3]
    assert bench.job(job_id).attempt == 7


def test_a_release_from_quarantine_begins_a_new_count_of_crashes(bench: Bench) -> None:
    job_id = bench.submit(crash_limit=2)
    for _ in range(2):
        bench.take()
        bench.crash()
    bench.store.retry(job_id, actor=OPERATOR, reason="fixed", from_state=JobState.QUARANTINED)
    bench.take()
    bench.crash()

    job = bench.job(job_id)
    assert (job.state, job.crashes) == (JobState.PENDING, 3)


def test_a_crash_in_the_cleanup_is_followed_by_another_cleanup(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim))
    bench.apply(plan_ending(claim))
    bench.crash()

    again = bench.take()

    assert again.job.ending is not None
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_a_job_released_after_its_cleanup_has_begun_starts_at_its_first_step(bench: Bench) -> None:
    """Nobody knows what the cleanup that crashed had removed already, so no finished step can be believed."""
    claim = bench.running(crash_limit=1)
    bench.apply(finish_step(claim, 0, "one"))
    bench.apply(plan_ending(claim))
    bench.crash()
    assert bench.state(claim.job.job_id) is JobState.QUARANTINED
    bench.store.retry(claim.job.job_id, actor=OPERATOR, reason="again", from_state=JobState.QUARANTINED)

    again = bench.take()

    assert again.position == 0


def test_many_orphans_are_recovered_in_one_call(bench: Bench) -> None:
    bench.store.submit([bench.new_job() for _ in range(1203)], actor="client")
    bench.claim(limit=2000)
    bench.expire()

    assert bench.recover() == ["given back"] * 1203
    assert bench.store.counts() == {("demo", "pending"): 1203}


def test_the_dependents_of_a_job_that_crashes_for_good_end_with_it(bench: Bench) -> None:
    first = bench.submit(crash_limit=1)
    second = bench.submit(run_after=first)
    bench.take()
    bench.crash()

    assert bench.state(first) is JobState.QUARANTINED
    assert bench.state(second) is JobState.FAILED
    assert bench.latest(second).code == EndCode.PREDECESSOR
    bench.assert_sound()
