"""What a step returns or raises is exactly one outcome."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.core.step import (
    Abort,
    Done,
    Handoff,
    Outcome,
    Rewind,
    StepOutcome,
    TryFailed,
    Unrecoverable,
    WaitFor,
    outcome_of_cleanup,
    outcome_of_error,
    outcome_of_return,
    tame,
)

STEERING = [Handoff("r"), Abort("no"), Unrecoverable("never"), Rewind("fetch"), WaitFor("01HZZZZZZZZZZZZZZZZZZZZZZZ")]


def test_every_member_of_the_set_is_recognised() -> None:
    """None is forgotten in a list of its own."""
    members: list[StepOutcome] = [*STEERING, Done("x"), TryFailed(ValueError("x"))]

    assert {type(member) for member in members} == set(get_args(Outcome))
    for member in members:
        assert outcome_of_error(member) is member
        assert outcome_of_return(member, "so far") is member


def test_a_cleanup_has_succeeded_only_if_it_returned_nothing() -> None:
    assert isinstance(outcome_of_cleanup(Done(None)), Done)
    for outcome in (*STEERING, Done(0), Done("text"), TryFailed(OSError("busy"))):
        assert isinstance(outcome_of_cleanup(outcome), TryFailed)  # type: ignore[arg-type] # one of the set


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


@pytest.mark.parametrize("kind", [Abort, Unrecoverable])
def test_a_reason_is_a_text_or_an_exception_kept_as_data(kind: type[Abort | Unrecoverable]) -> None:
    said, raised = kind("no room"), kind(ValueError("no room"))

    assert (said.reason, said.error) == ("no room", None)
    assert "no room" in raised.reason
    assert raised.error is not None
    assert (raised.error.type, raised.error.message) == ("ValueError", "no room")


class Unspeakable(Exception):
    """Whatever is asked of it, it raises."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_an_error_that_cannot_be_looked_at_is_replaced_by_one_that_can() -> None:
    ordinary = ValueError("x")

    assert tame(ordinary) is ordinary
    assert "Unspeakable" in str(tame(Unspeakable()))


def test_what_a_cleanup_returned_is_named_even_if_it_cannot_be_shown() -> None:
    outcome = outcome_of_cleanup(Done(Unspeakable()))

    assert isinstance(outcome, TryFailed)
    assert "returned Unspeakable" in str(outcome.error)
