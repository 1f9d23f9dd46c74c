"""Rows of the database as records."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from holdfast.core.flow import Definition
from holdfast.core.records import (
    Child,
    Ending,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueRecord,
    StepRecord,
)
from holdfast.store.session import Rows

Record = TypeVar("Record", bound=msgspec.Struct)

# msgspec prepares a type at its first use and does so without a lock: two threads that come first crash the process.
for _kind in (Child, Definition, Ending, ExecutionRecord, JobRecord, JournalEntry, QueueRecord, StepRecord):
    msgspec.json.Decoder(_kind)

JOB_COLUMNS = (
    "job_id flow fingerprint state key queue priority hold not_before run_after waits_for parent attempt failures "
    "failures_forgiven failure_limit crashes crashes_forgiven crash_limit stall_ms cancel_reason ending "
    "created_at updated_at"
).split()


def record_of(kind: type[Record], cursor: Rows, row: tuple[Any, ...]) -> Record:
    """A row, by the names of its columns. Values a careless hand has spoiled raise ValidationError."""
    return msgspec.convert(dict(zip((c[0] for c in cursor.description), row, strict=True)), kind, strict=False)


def job_of(row: tuple[Any, ...]) -> JobRecord:
    """A row of all columns of jobs, in their order: the quick way, for claims."""
    return msgspec.convert(dict(zip(JOB_COLUMNS, row, strict=True)), JobRecord)


def jobs_of(cursor: Rows) -> list[JobRecord]:
    """All rows of jobs."""
    return [job_of(row) for row in cursor]


def executions_of(cursor: Rows) -> list[ExecutionRecord]:
    """All rows of executions."""
    return [record_of(ExecutionRecord, cursor, row) for row in cursor]


def steps_of(cursor: Rows) -> list[StepRecord]:
    """All rows of steps."""
    return [record_of(StepRecord, cursor, row) for row in cursor]


def queues_of(cursor: Rows) -> list[QueueRecord]:
    """All rows of queues."""
    return [record_of(QueueRecord, cursor, row) for row in cursor]


def journal_of(cursor: Rows, row: tuple[Any, ...]) -> JournalEntry:
    """A row of the journal."""
    return record_of(JournalEntry, cursor, row)
