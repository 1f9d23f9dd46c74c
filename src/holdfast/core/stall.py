"""Is a running execution getting anywhere? Judged from its last sign of progress."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.current_step import CurrentStep
from holdfast.core.ending import CLEANUP_POSITION
from holdfast.core.records import JobRecord

_limits = msgspec.json.Decoder(dict[int, int])


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


def stall_limit(job: JobRecord, current: CurrentStep | None) -> int:
    """How many milliseconds the step that the job is in may go without progress."""
    if current is None or job.stall_limits is None:
        return job.stall_ms
    position = CLEANUP_POSITION if current.number is None else current.number - 1
    try:
        return max(job.stall_ms, _limits.decode(job.stall_limits).get(position, 0))
    except msgspec.MsgspecError:
        return job.stall_ms
