"""Attempts only grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.facts import JobFacts
from holdfast.core.invariants import check_attempts
from holdfast.core.states import ExecutionStatus
from tests.support.facts import Life, a_job, an_execution, codes, lives, replace


def facts(attempts: list[int], counted: int) -> JobFacts:
    executions = tuple(an_execution(ExecutionStatus.ABORTED, attempt=attempt) for attempt in attempts)
    return JobFacts(job=a_job(attempt=counted), executions=executions)


@given(lives())
def test_the_attempts_of_a_true_life_are_numbered_from_one(life: Life) -> None:
    assert list(check_attempts(life.facts, life.now)) == []


@given(st.lists(st.integers(-2, 5), max_size=5))
def test_any_gap_repeat_or_disorder_is_found(attempts: list[int]) -> None:
    found = codes(list(check_attempts(facts(attempts, counted=len(attempts)), 0)))

    assert ("attempts-not-monotonic" in found) == (attempts != sorted({*range(1, len(attempts) + 1)}))


@given(lives(), st.integers(0, 30))
def test_a_job_that_miscounts_its_attempts_is_found(life: Life, counted: int) -> None:
    wrong = replace(life.facts, job=replace(life.job, attempt=counted))
    found = codes(list(check_attempts(wrong, life.now)))

    assert ("attempt-count" in found) == (counted != len(life.executions))


@pytest.mark.parametrize("field", ["attempt", "failures", "crashes"])
def test_a_negative_count_is_found(field: str) -> None:
    wrong = JobFacts(job=replace(a_job(), **{field: -1}), executions=())

    assert "negative-count" in codes(list(check_attempts(wrong, 0)))
