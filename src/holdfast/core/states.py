"""The two state machines, as tables. Everything else about states is derived from these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from holdfast.errors import InvalidStateTransitionError


class JobState(StrEnum):
    """What a job looks like from outside: a projection of its executions."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    QUARANTINED = "quarantined"


class ExecutionStatus(StrEnum):
    """Where one attempt at a job is; the source of truth."""

    LEASED = "leased"
    IN_PROGRESS = "in_progress"
    COMMITTED = "committed"
    DONE = "done"
    ABORTED = "aborted"


class Disposition(StrEnum):
    """What an aborted execution means for its job."""

    RETRY = "retry"
    FAILED = "failed"
    QUARANTINED = "quarantined"


_J, _E, _D = JobState, ExecutionStatus, Disposition

EXECUTION_TRANSITIONS: Mapping[ExecutionStatus, frozenset[ExecutionStatus]] = {
    _E.LEASED: frozenset({_E.IN_PROGRESS, _E.ABORTED}),
    _E.IN_PROGRESS: frozenset({_E.COMMITTED, _E.ABORTED}),
    _E.COMMITTED: frozenset({_E.DONE}),
    _E.DONE: frozenset(),
    _E.ABORTED: frozenset(),
}

JOB_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _J.PENDING: frozenset({_J.RUNNING, _J.PENDING}),
    _J.RUNNING: frozenset({_J.SUCCEEDED, _J.FAILED, _J.PENDING, _J.RUNNING}),
    _J.FAILED: frozenset({_J.PENDING, _J.QUARANTINED, _J.FAILED}),
    _J.SUCCEEDED: frozenset({_J.SUCCEEDED}),
    _J.QUARANTINED: frozenset({_J.PENDING, _J.QUARANTINED}),
}

STATE_OF_DISPOSITION: Mapping[Disposition, JobState] = {
    _D.RETRY: _J.PENDING,
    _D.FAILED: _J.FAILED,
    _D.QUARANTINED: _J.QUARANTINED,
}

LIVE_STATUSES = frozenset({_E.LEASED, _E.IN_PROGRESS})
"""Statuses under a lease: the execution may still write."""

COMMITTED_STATUSES = frozenset({_E.COMMITTED, _E.DONE})
"""Statuses at or after the commit boundary: at most one execution per job gets here."""

UNFINISHED_STATES = frozenset({_J.PENDING, _J.RUNNING})
"""States in which a job holds its key and somebody may still wait for it."""

TERMINAL_JOB_STATES = frozenset(s for s, targets in JOB_TRANSITIONS.items() if targets <= {s})
TERMINAL_EXECUTION_STATUSES = frozenset(s for s, targets in EXECUTION_TRANSITIONS.items() if not targets)


def is_legal_job_transition(from_state: JobState, to_state: JobState) -> bool:
    """Is this change of a job's state in the table? Same-state always is."""
    return to_state in JOB_TRANSITIONS[from_state]


def check_job_transition(from_state: JobState, to_state: JobState) -> None:
    """Raise InvalidStateTransitionError unless the table allows the change."""
    if not is_legal_job_transition(from_state, to_state):
        allowed = ", ".join(sorted(JOB_TRANSITIONS[from_state] - {from_state})) or "nothing: it is final"
        raise InvalidStateTransitionError(from_state, to_state, hint=f"from {from_state} a job may go to: {allowed}")


def check_execution_transition(from_status: ExecutionStatus, to_status: ExecutionStatus) -> None:
    """Raise InvalidStateTransitionError unless the table allows the change."""
    if to_status not in EXECUTION_TRANSITIONS[from_status]:
        raise InvalidStateTransitionError(from_status, to_status, subject="execution")


def disposition_transitions() -> frozenset[tuple[Disposition, Disposition]]:
    """Which rewrites of an aborted execution's disposition are legal: those the job's table allows."""
    return frozenset(
        (old, new)
        for old in Disposition
        for new in Disposition
        if old != new and is_legal_job_transition(STATE_OF_DISPOSITION[old], STATE_OF_DISPOSITION[new])
    )


# --- Executions in, job state and attempts out: the only definition of both (SQL's of the state is tested to be
# equal).


class ExecutionOutcome(NamedTuple):
    """As much of an execution as the projection needs."""

    attempt: int
    status: ExecutionStatus
    disposition: Disposition | None = None


def project(executions: Iterable[ExecutionOutcome]) -> JobState:
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
