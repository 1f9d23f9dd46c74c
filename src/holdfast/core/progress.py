"""Where a running job is: derived from its finished steps and its pinned definition, so that nobody has to write it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.flow import Definition
from holdfast.core.records import ExecutionRecord, JobRecord
from holdfast.core.retry import MOST_RETRIES
from holdfast.core.states import JobState, attempts
from holdfast.core.step import CARRYING_CODES, CLEANUP_POSITION, INTERRUPTING_CODES

CLEANUP = "cleanup"


class CurrentStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step that a running job is in, who works on it, and how far it says it is."""

    job_id: str
    exec_id: str
    attempt: int
    """Which try of the job it is."""
    worker: str
    step: str | None
    """None if all steps are done, or the definition is not known."""
    number: int | None
    """Counted from 1; None for the cleanup, and where there is no step."""
    steps: int
    tries: int
    """Tries of this step that have failed so far."""
    since: int
    """When the step before it was finished, or the execution started."""
    progress: dict[str, Any] | None
    """What this step last reported: done, total, note."""
    progressed_at: int
    retry_at: int | None


class RunningRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the database knows of a running job, to find its current step."""

    job_id: str
    exec_id: str
    attempt: int
    lease_owner: str
    started_at: int
    position: int
    tries: int
    retry_at: int | None
    progressed_at: int
    progress: str | None
    ending: str | None
    failures: int
    crashes: int
    definition: str | None
    last_position: int | None
    last_finished_at: int | None
    code_before: str | None
    position_before: int | None
    tries_before: int | None


def current_step(row: RunningRow) -> CurrentStep:
    """Where this job is. Whatever is in the row, this does not raise."""
    position = CLEANUP_POSITION if row.ending is not None else _following(row.last_position)
    names = _steps_of(row.definition)
    step = step_at(names, position)
    progress = _object(row.progress)
    return CurrentStep(
        job_id=row.job_id,
        exec_id=row.exec_id,
        attempt=attempts(JobState.RUNNING, executions=row.attempt, failures=row.failures, crashes=row.crashes),
        worker=row.lease_owner,
        step=step,
        number=position + 1 if step is not None and position >= 0 else None,
        steps=len(names),
        tries=_failed_tries(row, position),
        since=max(row.started_at, row.last_finished_at or 0),
        # What was reported by a step that has ended since says nothing about this one.
        progress=progress if progress is not None and progress.get("step") == step else None,
        progressed_at=row.progressed_at,
        retry_at=row.retry_at,
    )


def step_after(definition: str | None, last_position: int | None, ending: str | None) -> str | None:
    """The name of the step that comes after the last finished one: the one that a job is in, or would go on with."""
    position = CLEANUP_POSITION if ending is not None else _following(last_position)
    return step_at(_steps_of(definition), position)


def step_at(names: tuple[str, ...], position: int) -> str | None:
    """The name of a step by its position; None if there is no such step."""
    if position == CLEANUP_POSITION:
        return CLEANUP
    return names[position] if 0 <= position < len(names) else None


def _following(last_position: int | None) -> int:
    return 0 if last_position is None else last_position + 1


def _failed_tries(row: RunningRow, position: int) -> int:
    if row.position == position and row.tries:
        return row.tries
    # Until it fails here, a step goes on counting from where the execution before has left it.
    carried = row.code_before in CARRYING_CODES and row.position_before == position
    return (row.tries_before or 0) if carried else 0


def _steps_of(definition: str | None) -> tuple[str, ...]:
    try:
        return msgspec.json.decode(definition, type=Definition).steps if definition else ()
    except msgspec.MsgspecError:
        return ()


def _object(text: str | None) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any]) if text else None
    except msgspec.MsgspecError:
        return None


def impossible_signs(execution: ExecutionRecord, before: ExecutionRecord | None, steps: int | None) -> Iterator[str]:
    """What no worker has written of a live execution of this many steps; `before` is the one before it.

    Any other step, count of tries or report of progress is one that a worker may have written.
    """
    if steps is not None and execution.position >= steps:
        yield f"it is at a step that cannot be: {execution.position}"
    if execution.tries > MOST_RETRIES + 1:
        yield f"it counts {execution.tries} failed tries, more than any policy allows"
    if execution.progress is not None and _object(execution.progress) is None:
        yield "its progress is not what a step reports"
    code = None if before is None else before.code
    # One that was told of an interruption tells the next one, unless it has finished a step, which may be forgotten.
    may_be = code in INTERRUPTING_CODES or (before is not None and before.interrupted and code in CARRYING_CODES)
    if (execution.interrupted and not may_be) or (code in INTERRUPTING_CODES and not execution.interrupted):
        yield f"interrupted is {execution.interrupted}, and the one before it ended as {code or 'none'}"


# --- Is a running execution getting anywhere? Judged from its last sign of progress ---------------------

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
