"""Is a running execution getting anywhere? Judged from its last sign of progress."""

from __future__ import annotations

from enum import StrEnum


class StallVerdict(StrEnum):
    """How a running execution is doing."""

    MOVING = "moving"
    SLOW = "slow"
    STALLED = "stalled"


def stall_verdict(*, progressed_at: int, now: int, stall_ms: int, retry_at: int | None = None) -> StallVerdict:
    """Stalled after more than `stall_ms` without progress, slow after more than half of it.

    Until `retry_at` the execution waits on purpose, so that its patience begins then. A clock that was set back
    makes an execution look younger, never stalled.
    """
    idle_ms = now - max(progressed_at, retry_at or 0)
    if idle_ms > stall_ms:
        return StallVerdict.STALLED
    if idle_ms * 2 > stall_ms:
        return StallVerdict.SLOW
    return StallVerdict.MOVING
