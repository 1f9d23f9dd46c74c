"""The guard's rounds: invariants of what moves, of all the rest in turns, and stalls."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

from holdfast.core.facts import Finding, Severity
from holdfast.core.records import ExecutionRecord
from holdfast.core.stall import StallVerdict, stall_limit, stall_verdict
from holdfast.core.states import LIVE_STATUSES
from holdfast.core.worker_id import label_of
from holdfast.errors import HoldfastError
from holdfast.guard.survey import Survey
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.guard")

TELL_AGAIN = 3600.0
MOST_TOLD = 10_000
STALL_RETRY_MS = 60_000
"""A stalled job is tried again after this pause, so that whatever held it up has time to pass."""


Check = Callable[[], Iterable[Finding]]
"""An application's own look at its rows: cheap, and changing nothing."""


class CountsFindings(Protocol):
    """Where findings are counted."""

    findings: Counter[str]


def stalled(store: Store) -> list[tuple[ExecutionRecord, StallVerdict]]:
    """Running executions that are slow or stalled."""
    slow: list[tuple[ExecutionRecord, StallVerdict]] = []
    now = store.now()
    under_way = [execution for execution in store.under_way() if execution.status in LIVE_STATUSES]
    current = {one.exec_id: one for one in store.running([execution.job_id for execution in under_way])}
    for execution in under_way:
        progressed_at = store.last_progress(execution.exec_id)
        if progressed_at is None:
            continue
        verdict = stall_verdict(
            progressed_at=progressed_at,
            now=now,
            stall_ms=stall_limit(store.job(execution.job_id), current.get(execution.exec_id)),
            retry_at=execution.retry_at,
        )
        if verdict is not StallVerdict.MOVING:
            slow.append((execution, verdict))
    return slow


def stop_stalled(store: Store, *, actor: str, reason: str = "", only: Collection[str] | None = None) -> list[str]:
    """Fence every stalled execution, or `only` those of these jobs, and let their jobs try again; returns the jobs."""
    jobs = []
    for execution, verdict in stalled(store):
        if verdict is not StallVerdict.STALLED or (only is not None and execution.job_id not in only):
            continue
        not_before = store.now() + STALL_RETRY_MS
        if store.stop_stalled(execution.exec_id, actor=actor, not_before=not_before, reason=reason):
            jobs.append(execution.job_id)
    return jobs


class Watch:
    """`run_once` looks once. Stalled jobs are recovered if that is `automatic`, else only reported."""

    def __init__(
        self, store: Store, *, telemetry: CountsFindings, automatic: bool, actor: str, checks: Sequence[Check] = ()
    ) -> None:
        self._store = store
        self._checks = checks
        self._survey = Survey(store)
        self._told: dict[Finding, float] = {}
        self._telemetry = telemetry
        self._automatic = automatic
        self._actor = actor

    def __enter__(self) -> Self:
        self._store.changes.observe(self._survey.note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._store.changes.forget(self._survey.note)

    def run_once(self) -> list[str]:
        """What was found and done, line by line. Crash: each recovery is one transaction."""
        findings = [*self._survey.look(), *self._checked()]
        for finding in findings:
            self._telemetry.findings[finding.code] += 1
            self._tell(finding)
        return [*map(_line, findings), *self._look_for_stalls()]

    def _checked(self) -> Iterator[Finding]:
        """What the application's own checks find. One that fails hides neither the others nor the stalls."""
        for check in self._checks:
            try:
                yield from check()
            except (HoldfastError, OSError) as error:
                log.warning("a check of the application could not look: %s", error)

    def _tell(self, finding: Finding) -> None:
        """Log it once, and again now and then: it is found at every look until somebody has dealt with it."""
        now = time.monotonic()
        if now - self._told.get(finding, -TELL_AGAIN) >= TELL_AGAIN:
            if len(self._told) >= MOST_TOLD:
                self._told.clear()
            self._told[finding] = now
            level = logging.ERROR if finding.severity is Severity.ERROR else logging.WARNING
            log.log(level, _line(finding), extra={"hint": "holdfast check"})

    def _look_for_stalls(self) -> list[str]:
        if self._automatic:
            lines = [f"recovered stalled job {job_id}" for job_id in stop_stalled(self._store, actor=self._actor)]
        else:
            lines = [
                f"stalled: job {execution.job_id}, held by {label_of(execution.lease_owner)}, waits for approval: "
                f"holdfast stalled --recover {execution.job_id}"
                for execution, verdict in stalled(self._store)
                if verdict is StallVerdict.STALLED
            ]
        for line in lines:
            log.warning(line)
        return lines


def _line(finding: Finding) -> str:
    return f"{finding.severity}: {finding.subject}: {finding.message}"
