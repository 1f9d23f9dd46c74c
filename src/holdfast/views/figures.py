"""The figures of a flow: what its steps have done, added up from the jobs of the last hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from holdfast.core.flow import Flow
from holdfast.core.progress import CLEANUP
from holdfast.core.records import ExecutionRecord, JobRecord, StepRecord, error_of
from holdfast.core.states import JobState
from holdfast.views.records import StepStatistics, StepView

MINUTE, HOUR = 60_000, 3_600_000


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
            p50_ms=_quantile(durations, 0.50),
            p95_ms=_quantile(durations, 0.95),
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
    flow: Flow[Any, Any],
    jobs: Iterable[JobRecord],
    ends: Mapping[str, Sequence[ExecutionRecord]],
) -> None:
    """Add where jobs have ended without success."""
    for job in jobs:
        executions = ends.get(job.job_id)
        if not executions:
            continue
        last, names = executions[-1], flow.definition.steps
        error = error_of(last)
        step = error.step if error else None
        if step is None and 0 <= last.position < len(names):
            step = names[last.position]
        if step in steps:
            steps[step].failed += 1


def ended_badly(jobs: Iterable[JobRecord]) -> list[str]:
    """The ids of those that failed, or are quarantined."""
    return [job.job_id for job in jobs if job.state in (JobState.FAILED, JobState.QUARANTINED)]


def nodes_of(flow: Flow[Any, Any]) -> list[StepView]:
    """The nodes that a flow is drawn with."""
    nodes = [StepView(name=step.name, kind="commit" if step.is_commit else "step") for step in flow.steps]
    return [*nodes, StepView(name=CLEANUP, kind="cleanup")] if flow.cleanup else nodes


def _quantile(ordered: Sequence[int], share: float) -> int | None:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None
