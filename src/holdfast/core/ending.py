"""How an execution ends: from what happened to the legal chain of dispositions that records it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from holdfast.core.records import JobRecord
from holdfast.core.states import Disposition


class EndCode(StrEnum):
    """Why an execution ended; stored with it and shown to operators."""

    COMPLETED = "completed"
    HANDOFF = "handoff"
    ERROR = "error"
    ABORT = "abort"
    UNRECOVERABLE = "unrecoverable"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CRASHED = "crashed"
    STALLED = "stalled"
    RELEASED = "released"
    ABANDONED = "abandoned"
    WAITING = "waiting"
    BACKING_OFF = "backing-off"
    PREDECESSOR = "predecessor"
    DEFINITION_CHANGED = "definition-changed"
    CLEANUP_FAILED = "cleanup-failed"
    FORCED = "forced"
    UNREADABLE = "unreadable"


INTERRUPTING_CODES = frozenset({EndCode.CRASHED, EndCode.STALLED, EndCode.TIMEOUT, EndCode.ABANDONED})
"""After these, the step that was running may have left something half made."""

CRASH_CODES = frozenset({EndCode.CRASHED, EndCode.STALLED})
"""These count against the crash limit."""

CARRYING_CODES = frozenset(
    {
        EndCode.CRASHED,
        EndCode.STALLED,
        EndCode.TIMEOUT,
        EndCode.RELEASED,
        EndCode.ABANDONED,
        EndCode.WAITING,
        EndCode.BACKING_OFF,
    }
)
"""After these, the next execution goes on counting the tries of the step; after the others it starts anew."""

CLEANUP_POSITION = -1
"""The position of the cleanup, which is not one of the steps, where tries are recorded."""

_RETRY, _FAILED, _QUARANTINED = Disposition.RETRY, Disposition.FAILED, Disposition.QUARANTINED

PATH_AFTER_FAILURE: Mapping[Disposition, tuple[Disposition, ...]] = {
    _RETRY: (_FAILED, _RETRY),
    _FAILED: (_FAILED,),
    _QUARANTINED: (_FAILED, _QUARANTINED),
}
"""Dispositions to write one after the other, so that the job takes only legal transitions (running → failed → …)."""

PATH_GIVEN_BACK: tuple[Disposition, ...] = (_RETRY,)
"""The execution did not fail, it only stopped: running → pending."""


def disposition_after_error(job: JobRecord) -> Disposition:
    """A step's tries are used up: once more while the job has failures left since it was last forgiven."""
    return _RETRY if job.failures - job.failures_forgiven + 1 < job.failure_limit else _QUARANTINED


def path_after_crash(job: JobRecord) -> tuple[Disposition, ...]:
    """The worker died: again, until it looks like a crash loop."""
    if job.crashes - job.crashes_forgiven + 1 < job.crash_limit:
        return PATH_GIVEN_BACK
    return PATH_AFTER_FAILURE[_QUARANTINED]
