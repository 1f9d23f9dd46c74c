"""claim: the best ready jobs, each under one lease, within the limits, with all that is needed to go on."""

from __future__ import annotations

import pytest

from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import EndCode
from tests.support.backends import Backend
from tests.support.bench import (
    LEASE_MS,
    OLD,
    OPERATOR,
    OTHER,
    WORKER,
    Bench,
    begin,
    end,
    finish_step,
    give_back,
    plan_ending,
    record_try,
    report_progress,
    rewind_to,
)


def test_a_claimed_job_is_running_under_a_lease(bench: Bench) -> None:
    job_id = bench.submit()

    claim = bench.take()

    execution = bench.latest(job_id)
    assert claim.job.job_id == job_id
    assert (claim.attempt, claim.status, claim.request) == (1, ExecutionStatus.IN_PROGRESS, '{"n":1}')
    assert (claim.position, claim.response, claim.tries, claim.interrupted) == (0, None, 0, False)
    assert (execution.exec_id, execution.status) == (claim.exec_id, ExecutionStatus.IN_PROGRESS)
    assert (execution.lease_owner, execution.lease_expires_at) == (WORKER, bench.clock() + LEASE_MS)
    assert bench.state(job_id) is JobState.RUNNING
    assert bench.job(job_id).attempt == 1
    bench.assert_sound()


def test_a_claim_is_journaled_as_leased_and_started(bench: Bench) -> None:
    claim = bench.running()

    entries = bench.journal(claim.job.job_id)[1:]
    assert [(e.job_from, e.job_to, e.exec_from, e.exec_to) for e in entries] == [
        ("pending", "running", None, "leased"),
        ("running", "running", "leased", "in_progress"),
    ]
    assert {(e.actor, e.exec_id) for e in entries} == {(WORKER, claim.exec_id)}


def test_a_job_of_another_definition_is_only_leased(bench: Bench) -> None:
    bench.submit(**OLD)

    claim = bench.take()

    assert claim.status is ExecutionStatus.LEASED
    assert bench.status(claim) is ExecutionStatus.LEASED
    assert [e.exec_to for e in bench.journal(claim.job.job_id)] == [None, "leased"]


def test_a_running_job_is_claimed_by_nobody_else(bench: Bench) -> None:
    bench.running()

    assert bench.claim(OTHER) == []
    assert bench.claim(WORKER) == []


def test_ended_jobs_are_not_claimed(bench: Bench) -> None:
    bench.succeeded()
    bench.ended(Disposition.FAILED)
    bench.ended(Disposition.QUARANTINED)

    assert bench.claim() == []


def test_only_flows_that_the_worker_knows_are_claimed(bench: Bench) -> None:
    bench.submit(flow="unknown")
    known = bench.submit()

    assert [claim.job.job_id for claim in bench.claim()] == [known]
    assert bench.claim(flows={}) == []


def test_no_more_than_the_limit_is_claimed(bench: Bench) -> None:
    jobs = [bench.submit() for _ in range(5)]

    claims = bench.claim(limit=2)

    assert [claim.job.job_id for claim in claims] == jobs[:2]
    assert bench.claim(limit=0) == []
    assert len({claim.exec_id for claim in claims}) == 2


def test_higher_priority_goes_first_then_the_older_job(bench: Bench) -> None:
    low = bench.submit(priority=-5)
    old = bench.submit()
    high = bench.submit(priority=9)
    young = bench.submit()

    assert [claim.job.job_id for claim in bench.claim()] == [high, old, young, low]


def test_priority_counts_across_queues(bench: Bench) -> None:
    one = bench.submit(queue="a", priority=1)
    three = bench.submit(queue="b", priority=3)
    two = bench.submit(queue="c", priority=2)

    claims = [bench.take() for _ in range(3)]

    assert [claim.job.job_id for claim in claims] == [three, two, one]


def test_two_stores_on_one_database_share_the_work_without_overlap(bench: Bench, backend: Backend) -> None:
    jobs = {bench.submit() for _ in range(20)}
    another = Bench(backend.open(bench.clock), bench.clock)

    claims = [claim for _ in range(4) for side in (bench, another) for claim in side.claim(limit=3)]

    assert sorted(claim.job.job_id for claim in claims) == sorted(jobs)


# --- where it goes on --------------------------------------------------------------------------------------


def test_a_new_attempt_goes_on_at_the_first_unfinished_step_with_the_saved_response(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim, 0, "one", response='{"a":1}'))
    bench.apply(finish_step(claim, 1, "two", response='{"a":2}'))
    bench.apply(give_back(claim, position=2))

    again = bench.take(OTHER)

    assert (again.attempt, again.position, again.response) == (2, 2, '{"a":2}')
    assert again.exec_id != claim.exec_id
    bench.assert_sound()


def test_a_rewound_job_goes_on_where_it_was_rewound_to(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(finish_step(claim, 0, "one", response='{"a":1}'), finish_step(claim, 1, "two", response='{"a":2}'))
    bench.apply(rewind_to(claim, 1, "two"))
    bench.crash()

    again = bench.take()

    assert (again.position, again.response) == (1, '{"a":1}')


@pytest.mark.parametrize("code", [EndCode.RELEASED, EndCode.WAITING, EndCode.BACKING_OFF])
def test_tries_of_a_step_count_on_after_it_was_given_back(bench: Bench, code: EndCode) -> None:
    claim = bench.running()
    bench.apply(give_back(claim, code, position=0, tries=2))

    assert bench.take().tries == 2


def test_tries_of_a_step_count_on_after_a_crash(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(record_try(claim, 2))
    bench.crash()

    again = bench.take()

    assert (again.tries, again.interrupted) == (2, True)


def test_tries_of_one_step_are_not_counted_for_another(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(record_try(claim, 2, position=0))
    bench.apply(finish_step(claim, 0, tries=3))
    bench.crash()

    assert bench.take().tries == 0


def test_a_progress_report_does_not_carry_the_tries_of_one_step_to_the_next(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(record_try(claim, 2, position=0))
    bench.apply(finish_step(claim, 0, tries=3))
    bench.apply(report_progress(claim, position=1))
    bench.crash()

    assert bench.take().tries == 0


def test_tries_begin_anew_after_a_failure_of_the_job(bench: Bench) -> None:
    claim = bench.running(failure_limit=3)
    bench.apply(record_try(claim, 2))
    bench.apply(end(claim, (Disposition.FAILED, Disposition.RETRY), EndCode.ERROR, tries=3))

    assert bench.take().tries == 0


def test_tries_of_a_cleanup_count_on_after_a_crash(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(plan_ending(claim))
    bench.apply(record_try(claim, 2, position=-1))
    bench.crash()

    again = bench.take()

    assert again.tries == 2
    assert again.job.ending is not None


def test_tries_of_a_step_are_not_counted_for_the_cleanup(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(record_try(claim, 2, position=0))
    bench.apply(plan_ending(claim))
    bench.crash()

    assert bench.take().tries == 0


@pytest.mark.parametrize(
    "code, interrupted",
    [
        (EndCode.RELEASED, False),
        (EndCode.WAITING, False),
        (EndCode.BACKING_OFF, False),
        (EndCode.TIMEOUT, True),
        (EndCode.ABANDONED, True),
    ],
)
def test_a_step_is_told_whether_it_was_cut_off(bench: Bench, code: EndCode, interrupted: bool) -> None:
    claim = bench.running()
    bench.apply(give_back(claim, code))

    assert bench.take().interrupted is interrupted


def test_a_step_is_still_told_of_a_crash_after_another_worker_only_held_it_and_gave_it_back(bench: Bench) -> None:
    bench.running()
    bench.crash()
    second = bench.take()
    bench.apply(give_back(second, EndCode.RELEASED))

    assert second.interrupted
    assert bench.take().interrupted


def test_a_crash_in_one_step_does_not_make_a_later_step_interrupted(bench: Bench) -> None:
    bench.running()
    bench.crash()
    second = bench.take()
    bench.apply(finish_step(second, 0))
    bench.apply(give_back(second, EndCode.RELEASED, position=1))

    assert not bench.take().interrupted


def test_an_execution_starts_when_it_is_leased(bench: Bench) -> None:
    """One transaction, one time; where something is between the two, the journal has both times."""
    plain = bench.running().job.job_id
    compared = bench.running(**OLD)
    bench.clock.advance(1)
    bench.apply(begin(compared))
    taken_out = bench.submit()
    bench.store.cancel(taken_out, actor=OPERATOR, reason="not needed")
    times = {}
    for job_id in (plain, compared.job.job_id, taken_out):
        entered = {entry.exec_to: entry.at for entry in reversed(bench.journal(job_id)) if entry.exec_to}
        times[job_id] = (bench.latest(job_id).started_at, entered["leased"], entered.get("in_progress"))

    now = bench.clock()
    assert times[plain] == (now - 1000, now - 1000, now - 1000)
    assert times[compared.job.job_id] == (now - 1000, now - 1000, now)
    assert bench.latest(compared.job.job_id).progressed_at == now
    assert times[taken_out] == (now, now, None)
    assert bench.latest(taken_out).finished_at == now
