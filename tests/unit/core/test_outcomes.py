"""What a step returns or raises is exactly one outcome."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.core.outcomes import (
    Abort,
    Done,
    Handoff,
    Outcome,
    Rewind,
    StepOutcome,
    TryFailed,
    Unrecoverable,
    WaitFor,
    outcome_of_error,
    outcome_of_return,
)

STEERING = [Handoff("r"), Abort("no"), Unrecoverable("never"), Rewind("fetch"), WaitFor("01H")]


@pytest.mark.parametrize("outcome", STEERING, ids=lambda outcome: type(outcome).__name__)
def test_an_outcome_may_be_raised_or_returned(outcome: StepOutcome) -> None:
    assert outcome_of_error(outcome) is outcome
    assert outcome_of_return(outcome, "so far") is outcome


@pytest.mark.parametrize("error", [ValueError("x"), StepOutcome("bare"), KeyboardInterrupt()])
def test_any_other_exception_is_a_failed_try(error: BaseException) -> None:
    outcome = outcome_of_error(error)

    assert isinstance(outcome, TryFailed)
    assert outcome.error is error
    assert type(error).__name__ in str(outcome)


def test_returning_nothing_keeps_the_response() -> None:
    outcome = outcome_of_return(None, {"size": 1})

    assert isinstance(outcome, Done)
    assert outcome.response == {"size": 1}


@pytest.mark.parametrize("value", [0, "", {}, [], False])
def test_a_false_value_is_a_response_and_not_nothing(value: object) -> None:
    outcome = outcome_of_return(value, "so far")

    assert isinstance(outcome, Done)
    assert outcome.response is value


def test_the_set_of_outcomes_is_closed() -> None:
    assert set(get_args(Outcome)) == set(StepOutcome.__subclasses__())


def test_a_rewind_says_where_to_and_why() -> None:
    assert str(Rewind("fetch")) == "rewind to fetch"
    assert str(Rewind("fetch", "torn")) == "rewind to fetch: torn"
