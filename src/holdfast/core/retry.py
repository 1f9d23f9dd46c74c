"""Durations and times as users give them, made into the numbers the engine counts with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import BadInput, DefinitionError

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


# --- When to try a step again. Time and chance come in as arguments -------------------------------------

MAXIMUM_FACTOR = 1000.0
"""Its 64th power is still a number."""
MOST_RETRIES = 1_000_000_000
PARK_AFTER = 60.0
"""A wait longer than this gives the lease and the queue slot back."""

Duration: TypeAlias = float | timedelta
ErrorLimits: TypeAlias = Mapping[type[Any], int]
"""By class of errors. Any, because a mapping of a narrower class would else be none."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and after how long, a failed step is tried again within one execution.

    `retries` counts the tries after the first; `delay` and `cap` are seconds; `factor` 1 means a fixed delay. `waits`,
    if there are any, are the delays one by one, and the last of them repeats. An error of a class in `limits` counts
    only with its like, and against that limit in the place of `retries`; of several classes the most specific one
    decides. A subclass may override `delay_before`.
    """

    retries: int
    delay: float
    factor: float = 1.0
    cap: float = 60.0
    jitter: bool = False
    waits: tuple[float, ...] = ()
    limits: tuple[tuple[type[BaseException], int], ...] = ()

    def __post_init__(self) -> None:
        _set = msgspec.structs.force_setattr
        checked_count(self.retries, "retries")
        if isinstance(self.factor, bool) or not isinstance(self.factor, int | float):
            raise DefinitionError(f"factor {self.factor!r} is not a number")
        # Written so that "not a number", which compares false with everything, is refused too.
        if not 1 <= self.factor <= MAXIMUM_FACTOR:
            raise DefinitionError(f"factor {self.factor!r} is out of range", hint=f"1 to {MAXIMUM_FACTOR:g}")
        if not isinstance(self.jitter, bool):
            raise DefinitionError(f"jitter {self.jitter!r} is not a bool", hint="True draws from the upper half")
        for name in ("delay", "cap"):
            _set(self, name, seconds_of(getattr(self, name), name, error=DefinitionError))
        _set(self, "waits", tuple(seconds_of(wait, "delay", error=DefinitionError) for wait in self.waits))
        _set(self, "limits", _checked_limits(self.limits))

    @property
    def most_tries(self) -> int:
        """How many tries there can be, whatever they fail with."""
        return 1 + self.retries + sum(limit for _, limit in self.limits)

    def kind_of(self, error: BaseException | None) -> type[BaseException] | None:
        """The class in `limits` that an error counts as, None if it is none of them."""
        named = {kind for kind, _ in self.limits}
        return next((kind for kind in type(error).__mro__ if kind in named), None) if named else None

    def is_used_up(self, tries: int, error: BaseException | None = None) -> bool:
        """Have all tries been made, `tries` of them so far, counted with its like for an error with a limit?"""
        kind = self.kind_of(error)
        return tries > (self.retries if kind is None else dict(self.limits)[kind])

    def delay_before(self, next_try: int, *, chance: float) -> float:
        """Seconds to wait before try number `next_try` (the first retry is 2); `chance` is in [0, 1).

        With jitter the wait is drawn from the upper half of the interval, so it never collapses to nothing.
        """
        if self.waits:
            wait = self.waits[min(next_try - 2, len(self.waits) - 1)]
        else:
            # The exponent is bounded because a float overflows long before a patient operator runs out of retries.
            wait = min(self.cap, self.delay * self.factor ** min(next_try - 2, 64))
        return wait * (0.5 + chance / 2) if self.jitter else wait


def exponential(
    retries: int,
    *,
    delay: Duration = 1.0,
    factor: float = 2.0,
    cap: Duration = 60.0,
    jitter: bool = False,
    limits: ErrorLimits | None = None,
) -> RetryPolicy:
    """Try again up to `retries` times, waiting `delay`, `delay * factor`, … up to `cap` seconds."""
    return _policy(retries=retries, delay=delay, factor=factor, cap=cap, jitter=jitter, limits=limits)


def fixed(
    retries: int, *, delay: Duration = 1.0, jitter: bool = False, limits: ErrorLimits | None = None
) -> RetryPolicy:
    """Try again up to `retries` times, `delay` seconds apart."""
    return _policy(retries=retries, delay=delay, cap=LONGEST, jitter=jitter, limits=limits)


def delays(*waits: Duration, jitter: bool = False, limits: ErrorLimits | None = None) -> RetryPolicy:
    """Try again once after each of these: `delays(1, 10, minutes(5))` is three more tries."""
    if not waits:
        raise DefinitionError("delays() has no delay", hint="say how long to wait before each further try, or never()")
    return _policy(retries=len(waits), delay=0.0, waits=waits, cap=LONGEST, jitter=jitter, limits=limits)


def never() -> RetryPolicy:
    """Do not try again."""
    return RetryPolicy(retries=0, delay=0.0)


def policy_of(retry: RetryPolicy | int, what: str) -> RetryPolicy:
    """The policy that a definition gives; a whole number n stands for exponential(n)."""
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return exponential(retry)
    raise DefinitionError(
        f"{what} {retry!r} is not a retry policy",
        hint=f"{what}=exponential(3), fixed(3, delay=10), delays(1, 10, 300), never(), or 3 for exponential(3)",
    )


def wait_before(policy: RetryPolicy, next_try: int, *, chance: float) -> float:
    """What delay_before says; the cap if it is a subclass's and says nothing that can be waited for."""
    try:
        return seconds_of(policy.delay_before(next_try, chance=chance))
    except Exception:
        return min(policy.cap, 60.0)


def checked_count(count: Any, what: str, *, least: int = 0) -> int:
    """A whole number from `least` on; DefinitionError if it is not one."""
    if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= MOST_RETRIES:
        raise DefinitionError(f"{what} {count!r} is not a whole number from {least} to {MOST_RETRIES:,}")
    return count


def _policy(*, limits: ErrorLimits | None, **fields: Any) -> RetryPolicy:
    return RetryPolicy(limits=limits or (), **fields)  # type: ignore[arg-type] # made into pairs there


def _checked_limits(limits: Any) -> tuple[tuple[type[BaseException], int], ...]:
    try:
        pairs = tuple((kind, limit) for kind, limit in (limits.items() if isinstance(limits, Mapping) else limits))
    except (TypeError, ValueError):
        raise DefinitionError(f"limits {limits!r} are none by class of errors", hint="limits={OSError: 2}") from None
    for kind, limit in pairs:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise DefinitionError(f"limits: {kind!r} is not a class of errors", hint="limits={OSError: 2}")
        checked_count(limit, f"limits: the one of {kind.__name__},")
    return pairs


def seconds(n: float) -> float:
    """`timeout=seconds(30)` reads better than `timeout=30`."""
    return float(n)


def minutes(n: float) -> float:
    """Minutes as seconds."""
    return n * 60.0


def hours(n: float) -> float:
    """Hours as seconds."""
    return n * 3600.0
