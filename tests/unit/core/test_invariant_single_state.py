"""A job is in exactly one state: the one its executions say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.facts import JobFacts, Severity
from holdfast.core.invariants import check_job, check_projection
from holdfast.core.states import ExecutionStatus, JobState
from tests.support.facts import Life, a_job, an_execution, codes, lives, replace


@given(lives(), st.sampled_from(JobState))
def test_any_other_stored_state_is_found(life: Life, stored: JobState) -> None:
    facts = replace(life.facts, job=replace(life.job, state=stored))
    findings = list(check_projection(facts, life.now))

    assert bool(findings) == (stored is not life.job.state)


def test_the_finding_names_job_stored_state_and_projection() -> None:
    [finding] = check_projection(JobFacts(job=a_job(JobState.FAILED), executions=()), 0)

    assert finding.code == "projection-mismatch"
    assert finding.severity is Severity.ERROR
    assert finding.subject == f"job {a_job().job_id}"
    assert finding.message == "stored as failed, but its executions say pending"


def test_an_aborted_execution_that_says_nothing_is_found() -> None:
    silent = an_execution(ExecutionStatus.ABORTED, disposition=None)
    facts = JobFacts(job=a_job(attempt=1), executions=(silent,))

    assert codes(check_job(facts, 0)) == {"execution-without-disposition"}


@pytest.mark.parametrize("state", JobState)
def test_a_job_without_executions_can_only_be_pending(state: JobState) -> None:
    found = codes(check_job(JobFacts(job=a_job(state), executions=()), 0))

    assert ("projection-mismatch" in found) == (state is not JobState.PENDING)
