"""The verbs of operators on any SQL database: each is one transaction, and a dry run is one that is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from holdfast.core.records import QueueEvent
from holdfast.core.states import JobState
from holdfast.store.preparing import checked_limit, checked_queue
from holdfast.store.rows import shown
from holdfast.store.verbs import operating, queues, reprojection
from holdfast.store.worker_verbs import WorkerVerbs

NO_METADATA: Mapping[str, Any] = {}


class _DryRun(Exception):
    """Everything was checked, and nothing is to stay."""


class OperatorVerbs(WorkerVerbs):
    """cancel, retry, reschedule, fail, restart, and what is done to queues."""

    # --- jobs ---

    def cancel(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        children: bool = True,
        seen: JobState | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        state: JobState
        with suppress(_DryRun), self.writing("cancel") as session:
            session.metadata = metadata
            state = operating.cancel(session, job_id, actor=actor, reason=reason, children=children, seen=seen)
            if dry_run:
                raise _DryRun
        if not dry_run:
            self.tell_waiting(session, actor=actor)
            if children:
                self.continue_cancellations()
        return state

    def retry(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        from_state: JobState,
        seen: JobState | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        state: JobState
        with suppress(_DryRun), self.writing("retry") as session:
            session.metadata = metadata
            state = operating.retry(session, job_id, actor=actor, reason=reason, from_state=from_state, seen=seen)
            if dry_run:
                raise _DryRun
        return state

    def reschedule(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        not_before: int | None = None,
        priority: int | None = None,
        queue: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("reschedule") as session:
            session.metadata = metadata
            return operating.reschedule(
                session, job_id, actor=actor, reason=reason, not_before=not_before, priority=priority, queue=queue
            )

    def fail(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        quarantine: bool,
        seen: JobState | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("fail") as session:
            session.metadata = metadata
            state = operating.fail(session, job_id, actor=actor, reason=reason, quarantine=quarantine, seen=seen)
        self.tell_waiting(session, actor=actor)
        return state

    def restart(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        seen: JobState | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("restart") as session:
            session.metadata = metadata
            return operating.restart(session, job_id, actor=actor, reason=reason, seen=seen)

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int, reason: str = "") -> bool:
        with self.writing("stop-stalled") as session:
            stopped = operating.stop_stalled(session, exec_id, actor=actor, not_before=not_before, reason=reason)
        self.tell_waiting(session, actor=actor)
        return stopped

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self.writing("reproject") as session:
            return reprojection.reproject(session, job_id, actor=actor, reason=reason)

    # --- queues ---

    def set_queue(
        self,
        name: str,
        *,
        max_running: int | None,
        actor: str | None,
        reason: str = "",
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> None:
        checked_queue(name)
        checked_limit(name, max_running)
        with self.writing("set-queue") as session:
            session.metadata = metadata
            if actor is None:
                queues.set_default_limit(session, name, max_running=max_running)
            else:
                queues.set_limit(session, name, max_running=max_running, actor=actor, reason=reason)

    def pause_queue(self, name: str, *, actor: str, reason: str, metadata: Mapping[str, Any] = NO_METADATA) -> None:
        with self.writing("pause-queue") as session:
            session.metadata = metadata
            queues.pause(session, name, actor=actor, reason=reason)

    def resume_queue(
        self, name: str, *, actor: str = "client", reason: str = "", metadata: Mapping[str, Any] = NO_METADATA
    ) -> None:
        with self.writing("resume-queue") as session:
            session.metadata = metadata
            queues.resume(session, name, actor=actor, reason=reason)

    def queue_history(self, name: str, *, limit: int = 100) -> list[QueueEvent]:
        with self.reading() as session:
            return shown(QueueEvent, session.run("queue_events", queue=name, limit=limit))
