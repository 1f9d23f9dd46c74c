"""INV_001: at most one execution of a job is committed or done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.facts import JobFacts
from holdfast.core.invariants import check_single_commit
from holdfast.core.states import COMMITTED_STATUSES, ExecutionStatus
from tests.support.facts import Life, a_job, an_execution, lives


@given(st.lists(st.sampled_from(ExecutionStatus), max_size=6))
def test_a_second_commit_is_found_wherever_it_is(statuses: list[ExecutionStatus]) -> None:
    executions = tuple(an_execution(status, attempt=attempt) for attempt, status in enumerate(statuses, 1))
    findings = list(check_single_commit(JobFacts(job=a_job(), executions=executions), 0))

    commits = sum(status in COMMITTED_STATUSES for status in statuses)
    assert [finding.code for finding in findings] == (["commit-twice"] if commits > 1 else [])


@given(lives())
def test_no_legal_life_commits_twice(life: Life) -> None:
    assert list(check_single_commit(life.facts, life.now)) == []
