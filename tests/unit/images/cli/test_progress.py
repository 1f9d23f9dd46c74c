"""Progress in plain lines: what is new, now and then, and how fast it goes."""

from __future__ import annotations

from holdfast_images.cli.progress import SAY_EVERY, Lines, Rate, progress_of, size_of
from holdfast_images.messages import StageProgress

MEBIBYTE = 1 << 20


def told(*looks: tuple[float, StageProgress]) -> list[str]:
    said: list[str] = []
    lines = Lines(said.append)
    for now, news in looks:
        lines.tell([news], now)
    return said


def fetching(done: int, **fields: object) -> StageProgress:
    given = {"stage": "download", "state": "running", "step": "download", "note": "bytes downloaded"}
    return StageProgress(**{**given, "done": done, "total": 100 * MEBIBYTE, **fields})  # type: ignore[arg-type]


def test_a_stage_is_told_when_it_begins_and_when_it_ends_and_not_in_between() -> None:
    ended = StageProgress(stage="download", state="succeeded", outcome="completed", seconds=1.25)

    assert told((0, fetching(0)), (1, fetching(5)), (2, ended), (3, ended)) == [
        "download: begun",
        "download: done (1.2 s)",
    ]


def test_a_stage_that_found_its_work_done_says_so() -> None:
    ended = StageProgress(stage="unpack", state="succeeded", outcome="handoff", seconds=0.01)

    assert told((0, ended)) == ["unpack: already done (0.0 s)"]


def test_a_failed_stage_says_so() -> None:
    assert told((0, StageProgress(stage="unpack", state="failed", outcome="abort"))) == ["unpack: failed (0.0 s)"]


def test_a_long_stage_is_told_every_few_seconds_with_rate_and_time_left() -> None:
    said = told(
        (0, fetching(0)),
        (1, fetching(10 * MEBIBYTE)),
        (SAY_EVERY, fetching(50 * MEBIBYTE)),
        (SAY_EVERY + 1, fetching(60 * MEBIBYTE)),
    )

    assert said == ["download: begun", "download: 50 MiB of 100 MiB (50 %), 10 MiB/s, 5 s left downloaded"]


def test_a_setback_is_told_once_and_the_next_one_again() -> None:
    first = fetching(0, setback="SourceUnavailable: no route", pause=2.0)
    second = fetching(0, setback="SourceUnavailable: refused", pause=4.0)

    assert told((0, fetching(0)), (1, first), (1.5, first), (2, fetching(0)), (3, second)) == [
        "download: begun",
        "download: will be tried again in 2 s: SourceUnavailable: no route",
        "download: will be tried again in 4 s: SourceUnavailable: refused",
    ]


def test_nothing_in_a_setback_can_steer_the_terminal() -> None:
    said = told((0, fetching(0)), (1, fetching(0, setback="a\x1b[31mb\n", pause=1.0)))

    assert "\x1b" not in said[1]
    assert "\n" not in said[1]


def test_a_rate_begins_anew_with_each_activity() -> None:
    rate = Rate()
    rate.take("download", 0, 0.0)
    rate.take("download", 100, 10.0)
    before = rate.per_second
    rate.take("validate", 5, 11.0)

    assert before == 10.0
    assert rate.per_second == 0.0


def test_without_a_total_there_is_no_time_left() -> None:
    assert progress_of(fetching(MEBIBYTE, total=None), 512.0) == "1 MiB, 512 B/s downloaded"


def test_sizes_are_for_people() -> None:
    assert [size_of(count) for count in (0, 1023, 1024, MEBIBYTE, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1 MiB",
        "3.00 GiB",
    ]
