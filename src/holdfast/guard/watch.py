"""The guard's rounds: invariants of what is running, and stalls, every now and then."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from holdfast.core.records import ExecutionRecord
from holdfast.core.stall import StallVerdict, stall_verdict
from holdfast.core.states import LIVE_STATUSES
from holdfast.core.worker_id import label_of
from holdfast.guard.check import check_quickly
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.guard")

STALL_RETRY_MS = 60_000
"""A stalled job is tried again after this pause, so that whatever held it up has time to pass."""


class CountsFindings(Protocol):
    """Where findings are counted."""

    findings: Counter[str]


def stalled(store: Store) -> list[tuple[ExecutionRecord, StallVerdict]]:
    """Running executions that are slow or stalled."""
    slow: list[tuple[ExecutionRecord, StallVerdict]] = []
    now = store.now()
    for execution in store.under_way():
        progressed_at = store.last_progress(execution.exec_id)
        if execution.status not in LIVE_STATUSES or progressed_at is None:
            continue
        verdict = stall_verdict(
            progressed_at=progressed_at,
            now=now,
            stall_ms=store.job(execution.job_id).stall_ms,
            retry_at=execution.retry_at,
        )
        if verdict is not StallVerdict.MOVING:
            slow.append((execution, verdict))
    return slow


def stop_stalled(store: Store, *, actor: str, reason: str = "") -> list[str]:
    """Fence every stalled execution and let its job try again; returns the jobs."""
    jobs = []
    for execution, verdict in stalled(store):
        if verdict is not StallVerdict.STALLED:
            continue
        not_before = store.now() + STALL_RETRY_MS
        if store.stop_stalled(execution.exec_id, actor=actor, not_before=not_before, reason=reason):
            jobs.append(execution.job_id)
    return jobs


class Watch:
    """`run_once` looks once. Stalled jobs are recovered if that is `automatic`, else only reported."""

    def __init__(self, store: Store, *, telemetry: CountsFindings, automatic: bool, actor: str) -> None:
        self._store = store
        self._telemetry = telemetry
        self._automatic = automatic
        self._actor = actor

    def run_once(self) -> list[str]:
        """What was found and done, line by line. Crash: each recovery is one transaction."""
        lines = []
        for finding in check_quickly(self._store):
            self._telemetry.findings[finding.code] += 1
            lines.append(f"{finding.severity}: {finding.subject}: {finding.message}")
        if self._automatic:
            lines += [f"recovered stalled job {job_id}" for job_id in stop_stalled(self._store, actor=self._actor)]
        else:
            lines += [
                f"stalled: job {execution.job_id}, held by {label_of(execution.lease_owner)}, waits for approval: "
                "holdfast stalled --recover"
                for execution, verdict in stalled(self._store)
                if verdict is StallVerdict.STALLED
            ]
        for line in lines:
            log.warning(line)
        return lines
