"""New ids: ULIDs, so that ids sort by time and new rows land next to each other."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from holdfast.core.flow import Definition
from holdfast.core.progress import CurrentStep, RunningRow, current_step
from holdfast.core.records import (
    Child,
    Ending,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.core.values import ulid_from
from holdfast.errors import RowUnreadable
from holdfast.store.session import ResultRows, Session, to_json

_lock = threading.Lock()
_last_milliseconds = 0
_last_randomness = 0


def new_ulid(milliseconds: int) -> str:
    """A ULID of that time, larger than any this process made for the same millisecond."""
    global _last_milliseconds, _last_randomness
    with _lock:
        if milliseconds == _last_milliseconds:
            _last_randomness += 1
        else:
            _last_milliseconds = milliseconds
            # The top bit stays free, so that counting up within a millisecond cannot overflow.
            _last_randomness = int.from_bytes(os.urandom(10), "big") >> 1
        return ulid_from(milliseconds, _last_randomness)


# --- Rows of the database as records. Who acts on a row wants all of it; who only looks is shown what can be read ---

Record = TypeVar("Record", bound=msgspec.Struct)

UNREADABLE = (RowUnreadable, msgspec.MsgspecError, TypeError, ValueError, OverflowError)
"""What is raised by a row that somebody has written past the rules."""

# msgspec prepares a type at its first use and does so without a lock: two threads that come first crash the process.
for _kind in (Child, Definition, Ending, ExecutionRecord, JobRecord, JournalEntry, QueueRecord, StepRecord):
    msgspec.json.Decoder(_kind)
_FLOWS = msgspec.json.Decoder(tuple[str, ...])
_ENDING = msgspec.json.Decoder(Ending)

JOB_COLUMNS = (
    "job_id flow fingerprint state key queue priority hold not_before run_after waits_for parent attempt failures "
    "failures_forgiven failure_limit crashes crashes_forgiven crash_limit stall_ms cancel_reason ending "
    "created_at updated_at stall_limits"
).split()

_IN_PLACE_OF: dict[object, object] = {
    # Nobody waits for such a job, nothing starts it, and an operator is asked to look at it.
    JobState: JobState.QUARANTINED,
    ExecutionStatus: ExecutionStatus.ABORTED,
    str: "",
    int: 0,
}


# --- for who acts -------------------------------------------------------------------------------------------


def record_of(kind: type[Record], cursor: ResultRows, row: Sequence[Any]) -> Record:
    """A row, by the names of its columns. Values a careless hand has spoiled raise RowUnreadable."""
    return _whole(kind, columns_of(cursor), row)


def job_of(row: Sequence[Any]) -> JobRecord:
    """A row of all columns of jobs, in their order: the quick way, for claims."""
    return _whole(JobRecord, JOB_COLUMNS, row)


def jobs_of(cursor: ResultRows) -> list[JobRecord]:
    """All rows of jobs."""
    return [job_of(row) for row in cursor]


def executions_of(cursor: ResultRows) -> list[ExecutionRecord]:
    """All rows of executions."""
    names = columns_of(cursor)
    return [_whole(ExecutionRecord, names, row) for row in cursor]


def ending_of(job: JobRecord) -> Ending:
    """How a job is going to end, of which that is on record."""
    try:
        return _ENDING.decode(job.ending or "")
    except msgspec.MsgspecError as error:
        raise RowUnreadable(f"job {job.job_id}: its planned ending cannot be read: {error}") from error


def unreadable(error: BaseException) -> str:
    """Why a job is set apart, for people."""
    return f"its rows cannot be read: {error}"


def columns_of(cursor: ResultRows) -> list[str]:
    """The names of the columns of an answer."""
    return [column[0] for column in cursor.description]


def _whole(kind: type[Record], names: Sequence[str], row: Sequence[Any]) -> Record:
    try:
        return msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=kind is JobRecord)
    except UNREADABLE as error:
        raise RowUnreadable(f"{_subject(names, row)} has a value that cannot be: {error}") from error


def _subject(names: Sequence[str], row: Sequence[Any]) -> str:
    values = dict(zip(names, row, strict=False))
    for name, what in (("exec_id", "execution"), ("job_id", "job"), ("worker_id", "worker"), ("name", "queue")):
        if name in values:
            return f"{what} {values[name]}"
    return "a row"


# --- for who looks ------------------------------------------------------------------------------------------


def shown(kind: type[Record], cursor: ResultRows, rows: Iterable[Sequence[Any]] | None = None) -> list[Record]:
    """All rows as records. Of one that is not whole what can be read, with `unreadable` saying what could not."""
    names = columns_of(cursor)
    return [_shown(kind, names, row) for row in (cursor if rows is None else rows)]


def workers_shown(cursor: ResultRows) -> list[WorkerRecord]:
    """All workers; one whose flows cannot be read knows none."""
    names = columns_of(cursor)
    records = []
    for row in cursor:
        values = dict(zip(names, row, strict=True))
        try:
            flows: object = _FLOWS.decode(values["flows"])
        except UNREADABLE:
            flows = values["flows"]
        records.append(_shown(WorkerRecord, names, [flows if name == "flows" else values[name] for name in names]))
    return records


def _shown(kind: type[Record], names: Sequence[str], row: Sequence[Any]) -> Record:
    try:
        return _whole(kind, names, row)
    except RowUnreadable as error:
        values = dict(zip(names, row, strict=False))
        fields = {}
        for field in msgspec.structs.fields(kind):
            if field.name in values:
                fields[field.name] = _readable(values[field.name], field)
        return cast(Record, _unreadable(kind)(**fields, unreadable=str(error)))


def _readable(value: Any, field: msgspec.structs.FieldInfo) -> Any:
    try:
        return msgspec.convert(value, field.type, strict=False)
    except UNREADABLE:
        if field.default is not msgspec.NODEFAULT:
            return field.default
        return str(value) if field.type is str else _IN_PLACE_OF.get(field.type, ())


@cache
def _unreadable(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    fields = [("unreadable", str)]
    return msgspec.defstruct(f"Unreadable{kind.__name__}", fields, bases=(kind,), frozen=True, kw_only=True)


def running_steps(session: Session, job_ids: Sequence[str]) -> list[CurrentStep]:
    """Where each of these jobs is that runs."""
    return [current_step(row) for row in shown(RunningRow, session.run("running", batch=to_json(job_ids)))]
