"""Where a running job is follows from its finished steps, and whatever is in the row, the answer is an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.progress import CurrentStep, RunningRow, current_step, step_after
from holdfast.core.step import CLEANUP_POSITION, EndCode
from tests.support.facts import a_row

DEFINITION = '{"flow":"demo","version":"","steps":["one","two","three"]}'


def at(**fields: object) -> CurrentStep:
    return current_step(a_row(**fields))


@pytest.mark.parametrize(
    "last, step, number", [(None, "one", 1), (0, "two", 2), (1, "three", 3), (2, None, None), (99, None, None)]
)
def test_the_current_step_follows_the_last_finished_one(last: int | None, step: str | None, number: int | None) -> None:
    current = at(last_position=last)

    assert (current.step, current.number, current.steps) == (step, number, 3)


def test_a_job_on_its_way_down_is_in_its_cleanup() -> None:
    current = at(ending="{}", last_position=1)

    assert (current.step, current.number) == ("cleanup", None)


def test_tries_of_another_step_do_not_count() -> None:
    assert at(last_position=1, position=2, tries=3).tries == 3
    assert at(last_position=1, position=1, tries=3).tries == 0


def test_tries_go_on_counting_from_the_execution_before() -> None:
    before = {"position_before": 2, "tries_before": 4}

    assert at(last_position=1, code_before=EndCode.BACKING_OFF, **before).tries == 4
    assert at(last_position=1, code_before=EndCode.ERROR, **before).tries == 0
    assert at(last_position=0, code_before=EndCode.BACKING_OFF, **before).tries == 0


def test_progress_of_another_step_is_not_told() -> None:
    assert at(last_position=0, progress='{"step":"two","done":1}').progress == {"step": "two", "done": 1}
    assert at(last_position=1, progress='{"step":"two","done":1}').progress is None


@given(
    definition=st.none() | st.text() | st.just(DEFINITION),
    progress=st.none() | st.text() | st.just("[]"),
    last=st.none() | st.integers(-5, 5),
    position=st.integers(-5, 5),
)
def test_any_row_gives_an_answer(definition: str | None, progress: str | None, last: int | None, position: int) -> None:
    row: RunningRow = a_row(definition=definition, progress=progress, last_position=last, position=position)
    current = current_step(row)

    assert current.job_id == row.job_id
    assert current.step in (None, "one", "two", "three", "cleanup")


def test_the_step_of_an_end_is_told_the_same_way() -> None:
    assert step_after(DEFINITION, 0, None) == "two"
    assert step_after(DEFINITION, None, None) == "one"
    assert step_after(DEFINITION, 0, "{}") == "cleanup"
    assert step_after("no JSON", 0, None) is None
    assert CLEANUP_POSITION == -1
