"""The state of a job is a function of its executions and of nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.states import (
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    TERMINAL_JOB_STATES,
    Disposition,
    ExecutionOutcome,
    ExecutionStatus,
    JobState,
    is_legal_job_transition,
    project,
)
from tests.support.facts import Life, lives

S = ExecutionStatus


def aborted(attempt: int, disposition: Disposition) -> ExecutionOutcome:
    return ExecutionOutcome(attempt, S.ABORTED, disposition)


def view(attempt: int, status: ExecutionStatus) -> ExecutionOutcome:
    return ExecutionOutcome(attempt, status, Disposition.RETRY if status is S.ABORTED else None)


histories = st.lists(st.sampled_from(S), max_size=8).map(
    lambda statuses: [view(n, s) for n, s in enumerate(statuses, 1)]
)


def test_a_job_without_executions_is_pending() -> None:
    assert project([]) is JobState.PENDING


@pytest.mark.parametrize("status", sorted(LIVE_STATUSES))
def test_a_job_under_a_lease_is_running(status: ExecutionStatus) -> None:
    assert project([aborted(1, Disposition.RETRY), view(2, status)]) is JobState.RUNNING


def test_a_committed_job_is_running_until_it_is_done() -> None:
    assert project([view(1, S.COMMITTED)]) is JobState.RUNNING
    assert project([view(1, S.DONE)]) is JobState.SUCCEEDED


@pytest.mark.parametrize("disposition", Disposition)
def test_an_aborted_job_is_what_its_disposition_says(disposition: Disposition) -> None:
    assert project([aborted(1, disposition)]) is STATE_OF_DISPOSITION[disposition]


def test_the_latest_attempt_speaks_for_the_job_in_whatever_order_they_come() -> None:
    executions = [aborted(2, Disposition.FAILED), aborted(1, Disposition.QUARANTINED)]

    assert project(executions) is project(executions[::-1]) is JobState.FAILED


def test_an_aborted_execution_without_disposition_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(ValueError, match="attempt 3"):
        project([ExecutionOutcome(3, S.ABORTED)])


@given(histories)
def test_done_outweighs_everything_and_committed_all_but_done(executions: list[ExecutionOutcome]) -> None:
    state = project(executions)

    statuses = {execution.status for execution in executions}
    assert (state is JobState.SUCCEEDED) == (S.DONE in statuses)
    if S.COMMITTED in statuses and S.DONE not in statuses:
        assert state is JobState.RUNNING


@given(histories, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(executions: list[ExecutionOutcome], chance: random.Random) -> None:
    shuffled = executions[:]
    chance.shuffle(shuffled)

    assert project(shuffled) is project(executions)


@given(lives())
def test_legal_transitions_of_executions_move_the_job_to_its_projection(life: Life) -> None:
    assert project(life.views) is life.job.state


@given(lives())
def test_whatever_happens_to_executions_moves_the_job_legally(life: Life) -> None:
    moves = [(JobState(entry.job_from), JobState(entry.job_to)) for entry in life.journal if entry.job_from is not None]

    assert all(is_legal_job_transition(before, after) for before, after in moves)
    assert bool(life.possible()) == (project(life.views) not in TERMINAL_JOB_STATES)
