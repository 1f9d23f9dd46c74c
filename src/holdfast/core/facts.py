"""What the invariants are checked against: a job, and every row that belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.core.flow import Definition
from holdfast.core.records import ExecutionRecord, JobRecord, JournalEntry


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "warning"
    ERROR = "error"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it must be."""

    code: str
    severity: Severity
    subject: str
    message: str


class StepFacts(msgspec.Struct, frozen=True, array_like=True):
    """A finished step; of its response only the digest, and the text itself if no seal covers it."""

    job_id: str
    position: int
    step: str
    exec_id: str
    tries: int
    started_at: int
    finished_at: int
    seal: str
    digest: str
    unsealed: str | None


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A row of children."""

    parent: str
    name: str
    round: int
    job_id: str
    ordinal: int


PRUNED_STATE = "pruned"
"""What is known of a job that retention has removed."""


class Other(msgspec.Struct, frozen=True, array_like=True):
    """As much of another job as a job that refers to it has to agree with."""

    job_id: str
    state: str
    parent: str | None


class FactRows(msgspec.Struct, frozen=True, kw_only=True):
    """The other rows of a job, and what there is of that to which they refer. None: it could not be read."""

    request: str | None = None
    """The digest of its request."""
    steps: tuple[StepFacts, ...] | None = ()
    children: tuple[Link, ...] | None = ()
    parents: tuple[Link, ...] | None = ()
    others: Mapping[str, Other] = {}
    brought_back: Mapping[str, int] = {}
    """Of the jobs that it has waited for, when an operator last brought each back from its end."""
    key_holder: str | None = None
    """The job for which its key stands, if the key lasts."""
    key_taken_at: int = 0
    pruned: bool = False
    has_request: bool = True
    has_queue: bool = True
    definition: Definition | None = None
    has_definition: bool = True


class JobFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One job with its executions and, for a full check, its journal and its other rows."""

    job: JobRecord
    executions: tuple[ExecutionRecord, ...]
    journal: tuple[JournalEntry, ...] | None = None
    rows: FactRows | None = None


class FactPage(msgspec.Struct, frozen=True):
    """Some jobs, or what was found instead of them; the next page begins after `last`, if it is not None."""

    facts: list[JobFacts | Finding]
    last: str | None


def error(code: str, subject: str, message: str) -> Finding:
    """A finding that is an error."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)


def warning(code: str, subject: str, message: str) -> Finding:
    """A finding that may pass by itself, or that may have an innocent reason."""
    return Finding(code=code, severity=Severity.WARNING, subject=subject, message=message)
