"""A clock that stands still until it is moved."""

from __future__ import annotations

NOON = 1_750_000_000_000


class VirtualClock:
    """Pass it as `Engine.open(..., clock=clock)`; it goes only where you send it, never back."""

    def __init__(self, start: int = NOON) -> None:
        self._now = start

    def __call__(self) -> int:
        """The time, in milliseconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.advance_to(self._now + round(seconds * 1000))

    def advance_to(self, milliseconds: int) -> None:
        """Let time pass until then; a time that has passed changes nothing."""
        self._now = max(self._now, milliseconds)
