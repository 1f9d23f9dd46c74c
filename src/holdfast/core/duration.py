"""Durations and times as users give them, made into the numbers the engine counts with."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from math import isfinite

from holdfast.errors import BadInput

LONGEST = 100 * 365 * 86400.0
"""A hundred years in seconds: whoever gives more has mistaken the unit."""

LATEST_MS = 1 << 53
"""Times beyond this are not exact in JSON."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DIGITS_OF_MILLISECONDS = 12
"""Fewer are a date without dashes."""


def seconds_of(value: float | timedelta, what: str = "duration", *, error: type[BadInput] = BadInput) -> float:
    """A duration, given as a number of seconds or as a timedelta, in seconds from 0 to a hundred years."""
    if isinstance(value, timedelta):
        amount = value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        amount = value
    else:
        raise error(
            f"{what} {value!r} is neither a number of seconds nor a timedelta",
            hint=f"write {what}=30 or {what}=timedelta(seconds=30)",
        )
    # An int may be too large for a float; compared first, it never becomes one.
    if not (0 <= amount <= LONGEST and isfinite(amount)):
        raise error(f"{what} {value!r} is not a number of seconds between 0 and {LONGEST:,.0f}")
    return float(amount)


def time_given(text: str, what: str = "time") -> int | datetime | timedelta:
    """A time as it is typed: `2h` ago, a date, a date and a time (UTC unless it says otherwise), or milliseconds."""
    if (ago := _AGO.fullmatch(text)) is not None:
        try:
            return timedelta(seconds=float(ago[1]) * _SECONDS[ago[2]])
        except OverflowError:
            raise BadInput(f"{what} {text!r} is too long ago") from None
    if text.isdecimal() and len(text) >= _DIGITS_OF_MILLISECONDS:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(
            f"{what} {text!r} is not a time",
            hint="such as 2h, 30m, 7d, 2026-01-31, 2026-01-31T12:00 or ...T12:00+02:00",
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def time_since(value: int | datetime | timedelta, *, now: int, what: str = "since") -> int:
    """A time in the past, given as such or by how long ago it was, in milliseconds since 1970."""
    if isinstance(value, timedelta):
        return max(0, now - round(seconds_of(value, what) * 1000))
    return milliseconds_since_epoch(value, what)


def milliseconds_since_epoch(value: int | datetime, what: str = "not_before") -> int:
    """A point in time, given as a datetime with a time zone or as milliseconds since 1970, in milliseconds."""
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise BadInput(
                f"{what} {value!r} has no time zone, and could mean any of two dozen hours",
                hint="give it one: datetime.now(UTC), or value.astimezone() for the local time",
            )
        moment = (value - _EPOCH) // _MILLISECOND
    elif isinstance(value, int) and not isinstance(value, bool):
        moment = value
    else:
        raise BadInput(
            f"{what} {value!r} is not a time",
            hint="give a datetime with a time zone, or whole milliseconds since 1970",
        )
    if not 0 <= moment < LATEST_MS:
        raise BadInput(f"{what} {value!r} is not a time between 1970 and the year 287396")
    return moment
