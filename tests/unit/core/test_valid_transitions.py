"""All valid transitions succeed."""

from __future__ import annotations

import pytest

from holdfast.core.states import (
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    ExecutionStatus,
    JobState,
    check_execution_transition,
    check_job_transition,
    is_legal_job_transition,
)

P, R, S, F, Q = JobState
JOB_PAIRS = {(P, P), (P, R), (R, R), (R, S), (R, F), (R, P), (F, F), (F, P), (F, Q), (S, S), (Q, Q), (Q, P)}
L, I, C, D, A = ExecutionStatus  # noqa: E741 - one letter each, as in a table
EXECUTION_PAIRS = {(L, I), (L, A), (I, C), (I, A), (C, D)}


def test_the_table_of_jobs_is_the_one_of_the_design() -> None:
    pairs = {(source, target) for source, targets in JOB_TRANSITIONS.items() for target in targets}

    assert pairs == JOB_PAIRS


def test_the_table_of_executions_is_the_one_of_the_design() -> None:
    pairs = {(source, target) for source, targets in EXECUTION_TRANSITIONS.items() for target in targets}

    assert pairs == EXECUTION_PAIRS


@pytest.mark.parametrize("source, target", sorted(JOB_PAIRS))
def test_every_legal_transition_of_a_job_is_allowed(source: JobState, target: JobState) -> None:
    check_job_transition(source, target)

    assert is_legal_job_transition(source, target)


@pytest.mark.parametrize("source, target", sorted(EXECUTION_PAIRS))
def test_every_legal_transition_of_an_execution_is_allowed(source: ExecutionStatus, target: ExecutionStatus) -> None:
    check_execution_transition(source, target)

    assert target in EXECUTION_TRANSITIONS[source]
