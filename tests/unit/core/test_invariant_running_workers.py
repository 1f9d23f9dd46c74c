"""Running jobs have a worker: one live lease, and not one that has run out."""

from __future__ import annotations

from hypothesis import given

from holdfast.core.facts import JobFacts, Severity
from holdfast.core.invariants import check_job, check_running_has_lease, check_single_lease
from holdfast.core.states import ExecutionStatus, JobState
from tests.support.facts import LEASE_MS, START, Life, a_job, an_execution, codes, lives


def facts(*statuses: ExecutionStatus, state: JobState = JobState.RUNNING) -> JobFacts:
    executions = tuple(an_execution(status, attempt=attempt) for attempt, status in enumerate(statuses, 1))
    return JobFacts(job=a_job(state, attempt=len(statuses)), executions=executions)


def test_a_running_job_with_nothing_under_way_is_found() -> None:
    assert "running-without-lease" in codes(check_job(facts(ExecutionStatus.ABORTED), START))
    assert "running-without-lease" in codes(check_job(facts(), START))


def test_a_lease_that_ran_out_is_a_warning_because_recovery_takes_it() -> None:
    [finding] = check_running_has_lease(facts(ExecutionStatus.IN_PROGRESS), START + LEASE_MS + 5_000)

    assert finding.code == "lease-expired"
    assert finding.severity is Severity.WARNING
    assert "5 s ago" in finding.message


def test_a_lease_ends_at_the_very_millisecond_it_is_good_until() -> None:
    running = facts(ExecutionStatus.IN_PROGRESS)

    assert not list(check_running_has_lease(running, START + LEASE_MS - 1))
    assert list(check_running_has_lease(running, START + LEASE_MS))


def test_a_commit_nobody_finishes_is_found_when_its_lease_is_over() -> None:
    committed = facts(ExecutionStatus.COMMITTED)

    assert check_job(committed, START) == []
    assert codes(check_job(committed, START + LEASE_MS)) == {"lease-expired"}


def test_two_leases_on_one_job_are_found() -> None:
    both = facts(ExecutionStatus.IN_PROGRESS, ExecutionStatus.LEASED)

    assert codes(list(check_single_lease(both, START))) == {"lease-twice"}


def test_a_lease_beside_a_commit_is_found() -> None:
    both = facts(ExecutionStatus.COMMITTED, ExecutionStatus.IN_PROGRESS)

    assert codes(list(check_single_lease(both, START))) == {"lease-after-commit"}


@given(lives())
def test_a_job_that_is_not_running_needs_no_worker(life: Life) -> None:
    long_after = life.now + 100 * LEASE_MS
    found = codes(check_job(life.facts, long_after))

    assert found == ({"lease-expired"} if life.job.state is JobState.RUNNING else set())
