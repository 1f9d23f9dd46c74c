"""Executions in, job state and attempts out: the only definition of both (SQL's of the state is tested to be equal)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from holdfast.core.states import LIVE_STATUSES, STATE_OF_DISPOSITION, Disposition, ExecutionStatus, JobState


class ExecutionView(NamedTuple):
    """As much of an execution as the projection needs."""

    attempt: int
    status: ExecutionStatus
    disposition: Disposition | None = None


def project(executions: Iterable[ExecutionView]) -> JobState:
    """The state of a job that has these executions."""
    rows = list(executions)
    if not rows:
        return JobState.PENDING
    statuses = {row.status for row in rows}
    if ExecutionStatus.DONE in statuses:
        return JobState.SUCCEEDED
    if ExecutionStatus.COMMITTED in statuses:
        return JobState.RUNNING
    latest = max(rows, key=lambda row: row.attempt)
    if latest.status in LIVE_STATUSES:
        return JobState.RUNNING
    if latest.disposition is None:
        raise ValueError(f"aborted execution (attempt {latest.attempt}) has no disposition")
    return STATE_OF_DISPOSITION[latest.disposition]


def attempts(state: JobState, *, executions: int, failures: int, crashes: int) -> int:
    """Which try of the job it is in, or goes on with: the first, and one more after each failure and each crash.

    An execution that follows a wait, a back-off or a graceful stop goes on with the try of the one before. 0 if none
    has begun; of a job that has failed, the last one.
    """
    if executions <= 0:
        return 0
    ended = max(failures, 0) + max(crashes, 0)
    return ended if ended and state in (JobState.FAILED, JobState.QUARANTINED) else ended + 1
