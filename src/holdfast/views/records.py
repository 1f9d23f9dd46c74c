"""What is shown, as data: frozen, ready for JSON; times are milliseconds since 1970, as in the store."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.explain import Explanation
from holdfast.core.facts import Finding
from holdfast.core.progress import CurrentStep
from holdfast.core.records import (
    Backlog,
    Child,
    ErrorRecord,
    ExecutionRecord,
    JobRecord,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import JobState


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a list shows it."""

    job: JobRecord
    step: str | None = None
    tries: int = 0
    progress: dict[str, Any] | None = None
    worker: str | None = None
    error: ErrorRecord | None = None
    """The error of its latest execution."""
    explanation: str = ""


class JobPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a list, newest first; the cursors are opaque."""

    rows: list[JobRow]
    next: str | None = None
    previous: str | None = None
    looked: int | None = None
    """If given, no index knows these jobs, and so many were looked at for this page; `next` goes on looking."""


class BoundedCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of jobs; if `capped`, there are more than that, or there may be."""

    count: int
    capped: bool = False
    looked: int | None = None
    """If given, no index knows these jobs, and they are counted among so many of the newest."""


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a flow."""

    name: str
    kind: str
    """step, commit or cleanup"""


class StepStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How a step is doing: what runs now, and the jobs of the last hour."""

    step: str
    running: int = 0
    done_last_minute: int = 0
    done_last_hour: int = 0
    failed_last_hour: int = 0
    retrying: int = 0
    p50_ms: int | None = None
    p95_ms: int | None = None
    histogram: list[int] = []
    """How many took how long: so many equal parts of a decade from a millisecond on, the last one open."""


class FailureKind(msgspec.Struct, frozen=True, kw_only=True):
    """Errors that are alike: of one class, in one step."""

    type: str
    step: str | None = None
    count: int
    message: str
    """Of the newest of them."""
    state: JobState
    """What has become of its job."""


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs went from a step to the next one in the last hour."""

    source: str
    target: str
    count: int = 0


class WaysOut(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs ended in the last hour."""

    succeeded: int = 0
    failed: int = 0
    quarantined: int = 0


class OlderDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A definition that unfinished jobs are still pinned to."""

    fingerprint: str
    version: str
    steps: tuple[str, ...]
    jobs: BoundedCount


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow as a machine: its nodes, its edges, and what has gone through them."""

    name: str
    version: str
    fingerprint: str
    steps: list[StepView]
    statistics: list[StepStatistics]
    edges: list[Edge]
    ways_out: WaysOut
    older: list[OlderDefinition]
    sampled: bool = False
    """Were there more jobs in the last hour than are looked at?"""
    registered: bool = True
    """If not, this is what the store knows of it: the names of its steps."""
    entered: int = 0
    """Jobs that were submitted in the last hour."""
    pending: BoundedCount = BoundedCount(count=0)
    handoffs: list[Edge] = []
    """Where jobs have ended early, as done already."""
    crashes: int = 0
    """Executions of these jobs that were lost with their worker."""
    failures: list[FailureKind] = []
    p95_ms: int | None = None
    """From the submit to the end, of those that have succeeded."""


class ExecutionView(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt at a job, and the steps that it has finished."""

    execution: ExecutionRecord
    steps: list[StepRecord]
    error: ErrorRecord | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """All of one job."""

    job: JobRecord
    request: str
    explanation: Explanation
    executions: list[ExecutionView]
    current: CurrentStep | None
    children: list[Child]
    parent: JobRecord | None
    head: str
    """The hash of the last entry of its journal: it changes with the job."""
    entries: int
    steps: list[StepRecord]
    """The finished steps, with the response after each."""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue, and what waits in it."""

    queue: QueueRecord
    backlog: Backlog
    looked: int | None = None
    """If given, more jobs wait than so many, the oldest of which are counted."""


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, and what it holds."""

    worker: WorkerRecord
    live: bool
    leases: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The house."""

    queues: list[QueueView]
    workers: list[WorkerView]
    counts: dict[str, BoundedCount]
    """By state."""
    findings: list[Finding]
    """What the check at open has found."""
    throughput: list[int]
    """Ended jobs in each minute of the last hour, oldest first; of the newest jobs that were submitted in it."""
    last_hour: WaysOut = WaysOut()
    """How those have ended."""
    p95_ms: int | None = None
    """From the submit to the end, of those that have succeeded."""
    retrying: int = 0
    """Running jobs whose step has failed at least once and is tried again."""
    crashes: dict[str, int] = {}
    """Executions of these jobs that were lost with their worker, by host."""
    oldest_quarantined_at: int | None = None
    """Since when the oldest of the newest quarantined jobs is what it is."""


class SlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A running job that gets nowhere."""

    job_id: str
    flow: str
    step: str | None
    worker: str
    since: int
    """When it last got anywhere."""
    stalled: bool
    """If not, it is slow: more than half of its patience is over."""
