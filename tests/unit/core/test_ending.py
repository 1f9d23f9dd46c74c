"""Every way an execution can end is a path of legal transitions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.states import (
    STATE_OF_DISPOSITION,
    Disposition,
    JobState,
    disposition_transitions,
    is_legal_job_transition,
)
from holdfast.core.step import (
    CARRYING_CODES,
    CRASH_CODES,
    INTERRUPTING_CODES,
    PATH_AFTER_FAILURE,
    PATH_GIVEN_BACK,
    EndCode,
    disposition_after_error,
    path_after_crash,
)
from tests.support.facts import a_job

ALL_PATHS = [*PATH_AFTER_FAILURE.values(), PATH_GIVEN_BACK]


@pytest.mark.parametrize("path", ALL_PATHS)
def test_every_path_takes_a_running_job_through_legal_transitions(path: tuple[Disposition, ...]) -> None:
    states = [JobState.RUNNING, *(STATE_OF_DISPOSITION[disposition] for disposition in path)]

    assert all(is_legal_job_transition(before, after) for before, after in pairwise(states))
    assert set(pairwise(path)) <= disposition_transitions()


@pytest.mark.parametrize("disposition", Disposition)
def test_a_path_ends_with_the_disposition_it_is_for(disposition: Disposition) -> None:
    assert PATH_AFTER_FAILURE[disposition][0] is Disposition.FAILED
    assert PATH_AFTER_FAILURE[disposition][-1] is disposition


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 60))
def test_a_job_fails_as_often_as_it_may_and_is_then_quarantined(failed: int, forgiven: int, limit: int) -> None:
    job = a_job(failures=failed + forgiven, failures_forgiven=forgiven, failure_limit=limit)

    expected = Disposition.RETRY if failed + 1 < limit else Disposition.QUARANTINED
    assert disposition_after_error(job) is expected


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 60))
def test_a_job_crashes_as_often_as_it_may_and_is_then_quarantined(crashed: int, forgiven: int, limit: int) -> None:
    job = a_job(crashes=crashed + forgiven, crashes_forgiven=forgiven, crash_limit=limit)

    assert path_after_crash(job) == (
        PATH_GIVEN_BACK if crashed + 1 < limit else PATH_AFTER_FAILURE[Disposition.QUARANTINED]
    )


def test_a_job_with_one_attempt_is_quarantined_at_its_first_failure() -> None:
    assert disposition_after_error(a_job(failure_limit=1)) is Disposition.QUARANTINED


def test_a_graceful_release_is_neither_a_crash_nor_an_interruption() -> None:
    assert EndCode.RELEASED not in CRASH_CODES | INTERRUPTING_CODES
    assert EndCode.RELEASED in CARRYING_CODES


def test_every_crash_interrupts_and_carries_the_tries_on() -> None:
    assert CRASH_CODES <= INTERRUPTING_CODES
    assert CRASH_CODES <= CARRYING_CODES
