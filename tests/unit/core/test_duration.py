"""Durations and times as users give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from holdfast.core.retry import LONGEST, milliseconds_since_epoch, seconds_of, time_given, time_since
from holdfast.errors import BadInput, DefinitionError

NOW_MS = 1_780_000_000_000


@pytest.mark.parametrize(
    "given, seconds",
    [(0, 0.0), (3, 3.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (timedelta(milliseconds=5), 0.005)],
)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(given: Any, seconds: float) -> None:
    result = seconds_of(given)

    assert result == seconds
    assert isinstance(result, float)


@pytest.mark.parametrize(
    "given",
    [
        *(-1, -0.001, timedelta(seconds=-1), float("nan"), float("inf"), LONGEST + 1, 10**400, timedelta.max),
        *("3", None, True, b"1", [1], datetime(2030, 1, 1, tzinfo=UTC)),
    ],
)
def test_what_is_no_duration_is_refused_by_name(given: Any) -> None:
    with pytest.raises(BadInput, match=r"^delay "):
        seconds_of(given, "delay")


def test_who_asks_says_which_error_it_is() -> None:
    with pytest.raises(DefinitionError, match=r"^timeout '5' .* timedelta") as refused:
        seconds_of("5", "timeout", error=DefinitionError)  # type: ignore[arg-type]

    assert refused.value.hint == "write timeout=30 or timeout=timedelta(seconds=30)"


def test_a_time_is_milliseconds_or_a_datetime_that_knows_its_zone() -> None:
    two_hours_east = timezone(timedelta(hours=2))

    assert milliseconds_since_epoch(0) == 0
    assert milliseconds_since_epoch(1_700_000_000_123) == 1_700_000_000_123
    assert milliseconds_since_epoch(datetime(1970, 1, 1, 2, 0, 1, 500_999, tzinfo=two_hours_east)) == 1500


def test_a_datetime_without_a_zone_is_refused_with_what_to_do() -> None:
    with pytest.raises(BadInput, match="no time zone") as refused:
        milliseconds_since_epoch(datetime(2030, 1, 1))  # noqa: DTZ001 - that is what is refused

    assert "datetime.now(UTC)" in str(refused.value.hint)


@pytest.mark.parametrize(
    "given", [-1, 1 << 53, 1.5, True, "2030", None, timedelta(1), datetime(1969, 1, 1, tzinfo=UTC)]
)
def test_what_is_no_time_is_refused_by_name(given: Any) -> None:
    with pytest.raises(BadInput, match=r"^not_before "):
        milliseconds_since_epoch(given)


@pytest.mark.parametrize(
    "text, since",
    [
        ("90s", NOW_MS - 90_000),
        ("1.5h", NOW_MS - 5_400_000),
        ("7d", NOW_MS - 7 * 86_400_000),
        ("2026-01-31", 1_769_817_600_000),
        ("2026-01-31T12:00", 1_769_860_800_000),
        ("2026-01-31T12:00:00+02:00", 1_769_853_600_000),
        ("1769860800000", 1_769_860_800_000),
    ],
)
def test_a_time_may_be_typed_as_a_date_or_as_how_long_ago(text: str, since: int) -> None:
    assert time_since(time_given(text), now=NOW_MS) == since


@pytest.mark.parametrize("text", ["", "yesterday", "5", "-2h", "2y", "9" * 400 + "w"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        time_since(time_given(text), now=NOW_MS)
