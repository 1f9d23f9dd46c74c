"""All checks together: quiet about healthy jobs, complete about broken ones."""

from __future__ import annotations

from hypothesis import given

from holdfast.core import invariants
from holdfast.core.facts import JobFacts
from holdfast.core.invariants import CHECKS, check_job
from holdfast.core.states import ExecutionStatus, JobState
from tests.support.facts import START, Life, a_job, an_execution, codes, lives


@given(lives())
def test_nothing_is_found_on_a_healthy_job(life: Life) -> None:
    assert check_job(life.facts, life.now) == []


def test_every_check_is_on_the_list() -> None:
    defined = {getattr(invariants, name) for name in dir(invariants) if name.startswith("check_")}

    assert set(CHECKS) == defined - {check_job}


def test_a_check_does_not_stop_at_the_first_fault() -> None:
    executions = tuple(an_execution(ExecutionStatus.DONE, attempt=attempt) for attempt in (1, 3))
    wreck = JobFacts(job=a_job(JobState.RUNNING, attempt=-1, updated_at=START + 9), executions=executions, journal=())

    assert codes(check_job(wreck, START)) == {
        "projection-mismatch",
        "commit-twice",
        "running-without-lease",
        "attempts-not-monotonic",
        "attempt-count",
        "negative-count",
        "changed-after-success",
        "journal-missing",
    }
