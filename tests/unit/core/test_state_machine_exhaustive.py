"""All combinations of states, and what follows from the tables."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.states import (
    COMMITTED_STATUSES,
    EXECUTION_TRANSITIONS,
    JOB_TRANSITIONS,
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    TERMINAL_EXECUTION_STATUSES,
    TERMINAL_JOB_STATES,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
    check_job_transition,
    disposition_transitions,
    is_legal_job_transition,
)
from holdfast.errors import InvalidStateTransitionError

D = Disposition


def reachable_from(start: ExecutionStatus) -> set[ExecutionStatus]:
    seen = {start}
    while more := {target for status in seen for target in EXECUTION_TRANSITIONS[status]} - seen:
        seen |= more
    return seen


def is_allowed(source: JobState, target: JobState) -> bool:
    try:
        check_job_transition(source, target)
    except InvalidStateTransitionError:
        return False
    return True


def test_both_tables_know_every_state() -> None:
    assert set(JOB_TRANSITIONS) == set(JobState)
    assert set(EXECUTION_TRANSITIONS) == set(ExecutionStatus)


def test_asking_and_checking_agree_on_all_pairs_of_job_states() -> None:
    answers = {pair: is_allowed(*pair) for pair in product(JobState, JobState)}

    assert answers == {pair: is_legal_job_transition(*pair) for pair in product(JobState, JobState)}
    assert sum(answers.values()) == 12


@given(source=st.sampled_from(JobState), target=st.sampled_from(JobState))
def test_transition_determinism(source: JobState, target: JobState) -> None:
    first, second = is_allowed(source, target), is_allowed(source, target)

    assert first == second == (target in JOB_TRANSITIONS[source])


@given(st.lists(st.sampled_from(JobState), max_size=30))
def test_a_random_walk_never_leaves_a_terminal_state(wishes: list[JobState]) -> None:
    visited = [JobState.PENDING]
    for wish in wishes:
        if is_allowed(visited[-1], wish):
            visited.append(wish)

    assert all(after is before for before, after in pairwise(visited) if before in TERMINAL_JOB_STATES)
    assert all(
        before in {JobState.RUNNING, after} for before, after in pairwise(visited) if after is JobState.SUCCEEDED
    )


def test_the_terminal_states_are_those_without_a_way_out() -> None:
    assert frozenset({JobState.SUCCEEDED}) == TERMINAL_JOB_STATES
    assert frozenset({ExecutionStatus.DONE, ExecutionStatus.ABORTED}) == TERMINAL_EXECUTION_STATUSES


def test_every_execution_status_is_reachable_and_every_execution_can_end() -> None:
    assert reachable_from(ExecutionStatus.LEASED) == set(ExecutionStatus)
    assert all(reachable_from(status) & TERMINAL_EXECUTION_STATUSES for status in ExecutionStatus)


def test_executions_never_go_round_in_a_circle() -> None:
    circles = [s for s in ExecutionStatus if any(s in reachable_from(t) for t in EXECUTION_TRANSITIONS[s])]

    assert circles == []


def test_what_has_committed_can_never_be_aborted() -> None:
    after_commit = reachable_from(ExecutionStatus.COMMITTED)

    assert after_commit == COMMITTED_STATUSES
    assert not after_commit & LIVE_STATUSES


def test_only_a_commit_leads_to_done() -> None:
    sources = {status for status, targets in EXECUTION_TRANSITIONS.items() if ExecutionStatus.DONE in targets}

    assert sources == {ExecutionStatus.COMMITTED}


def test_every_disposition_stands_for_one_state_a_job_can_wait_in() -> None:
    assert set(STATE_OF_DISPOSITION) == set(Disposition)
    assert set(STATE_OF_DISPOSITION.values()) == set(JobState) - {JobState.RUNNING, JobState.SUCCEEDED}


def test_dispositions_change_only_as_the_jobs_table_allows() -> None:
    assert disposition_transitions() == {(D.FAILED, D.RETRY), (D.FAILED, D.QUARANTINED), (D.QUARANTINED, D.RETRY)}


def test_unfinished_is_what_can_still_succeed_by_itself() -> None:
    assert frozenset({JobState.PENDING, JobState.RUNNING}) == UNFINISHED_STATES
