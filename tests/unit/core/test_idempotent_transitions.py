"""Staying where one is: always allowed to a job, never a transition of an execution."""

from __future__ import annotations

import pytest

from holdfast.core.states import (
    ExecutionStatus,
    JobState,
    check_execution_transition,
    check_job_transition,
    is_legal_job_transition,
)
from holdfast.errors import InvalidStateTransitionError


@pytest.mark.parametrize("state", JobState)
def test_a_job_may_stay_in_its_state(state: JobState) -> None:
    check_job_transition(state, state)

    assert is_legal_job_transition(state, state)


@pytest.mark.parametrize("status", ExecutionStatus)
def test_an_execution_does_not_enter_a_status_twice(status: ExecutionStatus) -> None:
    with pytest.raises(InvalidStateTransitionError) as refused:
        check_execution_transition(status, status)

    assert refused.value.from_state == refused.value.to_state == status
