"""What the store hands out: plain, immutable, JSON-ready. Times are milliseconds since 1970, UTC."""

from __future__ import annotations

import msgspec

from holdfast.core.states import Disposition, ExecutionStatus, JobState


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One job, as stored."""

    job_id: str
    flow: str
    fingerprint: str
    state: JobState
    key: str | None = None
    queue: str = ""
    priority: int = 0
    hold: str = "none"
    not_before: int = 0
    run_after: str | None = None
    waits_for: str | None = None
    parent: str | None = None
    attempt: int = 0
    failures: int = 0
    failures_forgiven: int = 0
    failure_limit: int = 1
    crashes: int = 0
    crashes_forgiven: int = 0
    crash_limit: int = 5
    stall_ms: int = 600_000
    cancel_reason: str | None = None
    ending: str | None = None
    created_at: int = 0
    updated_at: int = 0


class ExecutionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a job, as stored."""

    exec_id: str
    job_id: str
    attempt: int
    queue: str
    status: ExecutionStatus
    lease_owner: str
    lease_expires_at: int
    started_at: int
    disposition: Disposition | None = None
    code: str | None = None
    error: str | None = None
    position: int = 0
    tries: int = 0
    interrupted: bool = False
    retry_at: int | None = None
    progressed_at: int = 0
    progress: str | None = None
    finished_at: int | None = None


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One finished step of a job."""

    job_id: str
    position: int
    step: str
    exec_id: str
    tries: int
    started_at: int
    finished_at: int
    response: str


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state: who, when, what, from, to, why; chained to the one before by hash."""

    job_id: str
    seq: int
    at: int
    actor: str
    exec_id: str | None
    job_from: str | None
    job_to: str
    exec_from: str | None
    exec_to: str | None
    step: str | None
    reason: str
    metadata: str
    prev_hash: str
    hash: str


class QueueRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One queue and how full it is."""

    name: str
    max_running: int | None = None
    limit_by: str | None = None
    paused_at: int | None = None
    paused_by: str | None = None
    paused_reason: str | None = None
    running: int = 0
    pending: int = 0


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One worker process that has announced itself."""

    worker_id: str
    flows: tuple[str, ...]
    started_at: int
    seen_at: int


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A job submitted by another job."""

    name: str
    job_id: str
    flow: str
    state: JobState


class Ending(msgspec.Struct, frozen=True):
    """How a job is going to end once its cleanup has run."""

    disposition: Disposition
    code: str
    error: str


class JobResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands: its state, and once it has ended, how and with what answer."""

    job_id: str
    state: JobState
    outcome: str | None = None
    reason: str | None = None
    response: str | None = None
    seconds: float = 0.0
