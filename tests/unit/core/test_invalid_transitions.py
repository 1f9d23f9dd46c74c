"""Invalid transitions are rejected, and the error says what would be possible."""

from __future__ import annotations

from itertools import product

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
from holdfast.errors import InvalidStateTransitionError

ILLEGAL_JOB_PAIRS = [(s, t) for s, t in product(JobState, JobState) if t not in JOB_TRANSITIONS[s]]
ILLEGAL_EXECUTION_PAIRS = [
    (s, t) for s, t in product(ExecutionStatus, ExecutionStatus) if t not in EXECUTION_TRANSITIONS[s]
]


@pytest.mark.parametrize("source, target", ILLEGAL_JOB_PAIRS)
def test_an_illegal_transition_of_a_job_is_refused(source: JobState, target: JobState) -> None:
    with pytest.raises(InvalidStateTransitionError) as refused:
        check_job_transition(source, target)

    assert (refused.value.from_state, refused.value.to_state) == (source, target)
    assert not is_legal_job_transition(source, target)


@pytest.mark.parametrize("source, target", ILLEGAL_EXECUTION_PAIRS)
def test_an_illegal_transition_of_an_execution_is_refused(source: ExecutionStatus, target: ExecutionStatus) -> None:
    with pytest.raises(InvalidStateTransitionError) as refused:
        check_execution_transition(source, target)

    assert "execution" in str(refused.value)
    assert (refused.value.from_state, refused.value.to_state) == (source, target)


def test_the_hint_names_what_is_possible() -> None:
    with pytest.raises(InvalidStateTransitionError) as refused:
        check_job_transition(JobState.FAILED, JobState.RUNNING)

    assert refused.value.hint == "from failed a job may go to: pending, quarantined"


def test_the_hint_for_a_final_state_says_so() -> None:
    with pytest.raises(InvalidStateTransitionError) as refused:
        check_job_transition(JobState.SUCCEEDED, JobState.PENDING)

    assert refused.value.hint is not None
    assert "final" in refused.value.hint
