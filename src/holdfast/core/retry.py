"""When to try a step again. Time and chance come in as arguments."""

from __future__ import annotations

import msgspec

from holdfast.errors import DefinitionError

MAXIMUM_FACTOR = 1000.0
"""Its 64th power is still a number."""


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and after how long, a failed step is tried again within one execution.

    `retries` counts the tries after the first; `delay` and `cap` are seconds; `factor` 1 means a fixed delay.
    """

    retries: int
    delay: float
    factor: float = 1.0
    cap: float = 60.0
    jitter: bool = False

    def __post_init__(self) -> None:
        # Written so that "not a number", which compares false with everything, is refused too.
        if not (self.retries >= 0 and self.delay >= 0 and 1 <= self.factor <= MAXIMUM_FACTOR and self.cap >= 0):
            raise DefinitionError(
                f"retry policy out of range: {self}", hint=f"retries, delay, cap >= 0, factor 1 to {MAXIMUM_FACTOR:g}"
            )

    def is_used_up(self, tries: int) -> bool:
        """Have all tries been made, `tries` of them so far?"""
        return tries > self.retries

    def delay_before(self, next_try: int, *, chance: float) -> float:
        """Seconds to wait before try number `next_try` (the first retry is 2); `chance` is in [0, 1).

        With jitter the wait is drawn from the upper half of the interval, so it never collapses to nothing.
        """
        # The exponent is bounded because a float overflows long before a patient operator runs out of retries.
        wait = min(self.cap, self.delay * self.factor ** min(next_try - 2, 64))
        return wait * (0.5 + chance / 2) if self.jitter else wait


def exponential(
    retries: int, *, delay: float = 1.0, factor: float = 2.0, cap: float = 60.0, jitter: bool = False
) -> RetryPolicy:
    """Try again up to `retries` times, waiting `delay`, `delay * factor`, … up to `cap` seconds."""
    return RetryPolicy(retries=retries, delay=delay, factor=factor, cap=cap, jitter=jitter)


def fixed(retries: int, *, delay: float = 1.0, jitter: bool = False) -> RetryPolicy:
    """Try again up to `retries` times, `delay` seconds apart."""
    return RetryPolicy(retries=retries, delay=delay, cap=max(delay, 60.0), jitter=jitter)


def never() -> RetryPolicy:
    """Do not try again."""
    return RetryPolicy(retries=0, delay=0.0)


def seconds(n: float) -> float:
    """`timeout=seconds(30)` reads better than `timeout=30`."""
    return float(n)


def minutes(n: float) -> float:
    """Minutes as seconds."""
    return n * 60.0


def hours(n: float) -> float:
    """Hours as seconds."""
    return n * 3600.0
