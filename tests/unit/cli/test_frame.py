"""A frame of `top` fits its terminal, breaks no id, and lets nobody steer the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from holdfast.cli.frame import KEYS, Choice, ago, clipped, folded, frame, short_id, spark
from holdfast.cli.house import House
from holdfast.cli.top import parsed
from holdfast.core.records import Backlog, ErrorRecord, JobRecord, QueueRecord
from holdfast.core.states import JobState
from holdfast.errors import BadInput
from holdfast.views import BoundedCount, JobFilter, JobPage, JobRow, Overview, QueueView

ID = "01M7N581T7ABCDEFGHJKMNPQRS"
HOSTILE = "\x1b[2J\x07\u202e[bold]\r\n漢字"


def a_house(text: str = "orders", rows: int = 3) -> House:
    job = JobRecord(
        job_id=ID,
        flow=text,
        fingerprint="f",
        state=JobState.RUNNING,
        key=text,
        queue=text,
        created_at=0,
        updated_at=0,
    )
    error = ErrorRecord(type=text, message=text)
    row = JobRow(job=job, step=text, tries=1, progress={"note": text}, worker=text, error=error, explanation=text)
    paused = QueueRecord(
        name=text, max_running=3, paused_at=1, paused_by=text, paused_reason=text, running=2, pending=9
    )
    wide = QueueRecord(name="wide", max_running=500, running=250)
    return House(
        place=text,
        at=50_000,
        overview=Overview(
            queues=[
                QueueView(queue=paused, backlog=Backlog(queue=text, ready=9, oldest_at=1_000), looked=20_000),
                QueueView(queue=wide, backlog=Backlog(queue="wide")),
            ],
            workers=[],
            counts={state.value: BoundedCount(count=10_000, capped=True) for state in JobState},
            findings=[],
            throughput=[1, 2, 3] * 20,
        ),
        jobs=JobPage(rows=[row] * rows, next="fX", looked=5_000),
        changes=[],
    )


@pytest.mark.parametrize("width", [80, 100, 119, 120, 200])
@pytest.mark.parametrize("height", [16, 24, 60])
@pytest.mark.parametrize("text", ["orders", HOSTILE, "x" * 300])
def test_every_line_fits_and_nothing_in_it_steers_the_terminal(width: int, height: int, text: str) -> None:
    for rows in (0, 1, 100):
        lines = frame(a_house(text, rows), Choice(selected=ID), width, height)

        assert len(lines) == height
        assert lines[-1].plain == KEYS
        assert all(cell_len(line.plain) <= width for line in lines)
        assert all(each.isprintable() for line in lines for each in line.plain)


@pytest.mark.parametrize("width", [80, 119, 120, 200])
def test_an_id_is_whole_or_its_end(width: int) -> None:
    lines = [line.plain for line in frame(a_house(), Choice(selected=ID, explains=False), width, 40)]
    rows = [line for line in lines if line.startswith("▸")]

    assert len(rows) == 3
    assert all((ID if width >= 120 else f"…{ID[-6:]} ") in row for row in rows)


def test_a_frame_says_what_was_not_looked_at() -> None:
    text = "\n".join(line.plain for line in frame(a_house(), Choice(selected=ID), 140, 0))

    assert "looked at the newest 5,000" in text
    assert "10,000+" in text
    assert f"WHY {ID}" in text
    assert "paused by" in text


def test_what_is_typed_is_a_filter() -> None:
    assert parsed("flow:orders error:refused a-key") == JobFilter(
        flow="orders", error_text="refused", key_prefix="a-key"
    )
    assert parsed("state:failed", (JobState.RUNNING,)).states == (JobState.FAILED,)
    assert parsed("", (JobState.RUNNING,)).states == (JobState.RUNNING,)
    for wrong in ("colour:red", "flow:", "state:happy"):
        with pytest.raises(BadInput):
            parsed(wrong)


@given(st.text(), st.integers(2, 60))
def test_a_clipped_text_is_as_wide_as_it_was_asked_to_be(text: str, width: int) -> None:
    shown = "".join(each for each in text if each.isprintable())

    assert cell_len(clipped(shown, width)) == width
    assert len(folded(shown, width, 3)) <= 3


def test_numbers_are_short() -> None:
    assert [ago(each) for each in (-1, 1_500, 65_000, 600_000, 9_000_000, 200_000_000)] == [
        "0.0 s",
        "1.5 s",
        "65 s",
        "10 min",
        "2 h",
        "2 d",
    ]
    assert spark([0, 1, 2]) == "▁▄█"
    assert spark([0, 0]) == "▁▁"
    assert short_id(ID, 7) == "…NPQRS"[0] + ID[-6:]
