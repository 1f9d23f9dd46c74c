"""The figures of a flow: what its steps have done, added up from the jobs of the last hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log10
from typing import Any

from holdfast.core.flow import Flow
from holdfast.core.progress import CLEANUP
from holdfast.core.records import ExecutionRecord, JobRecord, StepRecord, error_of
from holdfast.core.states import JobState
from holdfast.core.step import CRASH_CODES
from holdfast.core.values import parse_worker_id
from holdfast.views.records import FailureKind, StepStatistics, StepView

MINUTE, HOUR = 60_000, 3_600_000
BINS, BINS_PER_DECADE = 72, 11
"""Of a histogram of durations: from a millisecond to an hour."""
KINDS_SHOWN = 12


class StepFigures:
    """The figures of one step, as they are added up."""

    def __init__(self) -> None:
        self.running = self.last_minute = self.failed = self.retrying = 0
        self.durations: list[int] = []

    def summed(self, step: str) -> StepStatistics:
        """What they come to."""
        durations = sorted(self.durations)
        return StepStatistics(
            step=step,
            running=self.running,
            done_last_minute=self.last_minute,
            done_last_hour=len(durations),
            failed_last_hour=self.failed,
            retrying=self.retrying,
            p50_ms=quantile(durations, 0.50),
            p95_ms=quantile(durations, 0.95),
            histogram=_histogram(durations),
        )


def add_steps(
    steps: dict[str, StepFigures], edges: Counter[tuple[str, str]], rows: Sequence[StepRecord], now: int
) -> None:
    """Add the finished steps of one job, in their order."""
    for row in rows:
        if row.step in steps:
            steps[row.step].durations.append(max(0, row.finished_at - row.started_at))
            steps[row.step].last_minute += now - row.finished_at < MINUTE
    edges.update((one.step, other.step) for one, other in pairwise(rows))


def add_ends(
    steps: dict[str, StepFigures],
    names: Sequence[str],
    jobs: Iterable[JobRecord],
    ends: Mapping[str, Sequence[ExecutionRecord]],
) -> list[FailureKind]:
    """Add where jobs have ended without success, newest first; what they failed of, the most frequent first."""
    kinds: Counter[tuple[str, str | None]] = Counter()
    newest: dict[tuple[str, str | None], tuple[str, JobState]] = {}
    for job in jobs:
        executions = ends.get(job.job_id)
        if not executions:
            continue
        last = executions[-1]
        error = error_of(last)
        step = error.step if error else None
        if step is None and 0 <= last.position < len(names):
            step = names[last.position]
        if step in steps:
            steps[step].failed += 1
        if error is not None:
            kinds[error.type, step] += 1
            newest.setdefault((error.type, step), (error.message, job.state))
    return [
        FailureKind(type=kind[0], step=kind[1], count=number, message=newest[kind][0], state=newest[kind][1])
        for kind, number in kinds.most_common(KINDS_SHOWN)
    ]


def add_handoffs(
    edges: Counter[tuple[str, str]],
    names: Sequence[str],
    jobs: Iterable[JobRecord],
    rows: Mapping[str, Sequence[StepRecord]],
) -> None:
    """Add where jobs have succeeded before their last step: what they were to do was done already."""
    for job in jobs:
        finished = rows.get(job.job_id, ())
        if (
            job.state is JobState.SUCCEEDED
            and finished
            and finished[-1].step != names[-1]
            and finished[-1].step in names
        ):
            edges[finished[-1].step, JobState.SUCCEEDED.value] += 1


def p95_of(jobs: Iterable[JobRecord]) -> int | None:
    """How long they have taken from submit to end, those that have succeeded."""
    return quantile(
        sorted(max(0, job.updated_at - job.created_at) for job in jobs if job.state is JobState.SUCCEEDED), 0.95
    )


def crashes_by_host(ends: Mapping[str, Sequence[ExecutionRecord]]) -> dict[str, int]:
    """Executions that were lost with their worker."""
    found: Counter[str] = Counter()
    for executions in ends.values():
        for one in executions:
            if one.code in CRASH_CODES:
                worker = parse_worker_id(one.lease_owner)
                found[worker.host if worker else one.lease_owner] += 1
    return dict(found)


def ended_badly(jobs: Iterable[JobRecord]) -> list[str]:
    """The ids of those that failed, or are quarantined."""
    return [job.job_id for job in jobs if job.state in (JobState.FAILED, JobState.QUARANTINED)]


def nodes_of(flow: Flow[Any, Any]) -> list[StepView]:
    """The nodes that a flow is drawn with."""
    nodes = [StepView(name=step.name, kind="commit" if step.is_commit else "step") for step in flow.steps]
    return [*nodes, StepView(name=CLEANUP, kind="cleanup")] if flow.cleanup else nodes


def _histogram(durations: Sequence[int]) -> list[int]:
    bins = [0] * BINS
    for duration in durations:
        bins[min(BINS - 1, int(log10(max(1, duration)) * BINS_PER_DECADE))] += 1
    return bins


def quantile(ordered: Sequence[int], share: float) -> int | None:
    """The value below which this share of them is; None of nothing."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None
