"""Executions in, job state out: the only definition of a job's state (the SQL one is tested to be equal)."""

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
