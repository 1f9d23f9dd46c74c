"""What could not be dealt with is left alone for a while, so that it keeps nobody from the rest."""

from __future__ import annotations

import itertools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self

from holdfast.core.records import QueueEvent
from holdfast.core.states import JobState
from holdfast.errors import StateTransitionRaceError, StoreError
from holdfast.store import change_feed, integrity
from holdfast.store import lease as lease_verbs
from holdfast.store import operator as operator_verbs
from holdfast.store import settle as settle_verbs
from holdfast.store.commands import Claim, Held, Recovered
from holdfast.store.rows import UNREADABLE, shown, unreadable
from holdfast.store.session import Session, to_json
from holdfast.store.submit import checked_limit, checked_queue

log = logging.getLogger("holdfast.store")

AGAIN_AFTER = 60.0
"""Seconds after which it is tried again: an operator may have repaired it."""


class Apart:
    """Jobs and executions that this process leaves alone, in memory: where the rules allow nothing better."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, what: str, name: str, why: BaseException | str) -> None:
        """Leave it alone from now on; said once."""
        if name not in self._until:
            log.error("%s %s is set apart, the others go on: %s", what, name, why, extra={"hint": "holdfast check"})
        self._until[name] = time.monotonic() + AGAIN_AFTER

    def names(self) -> set[str]:
        """What is to be left alone now."""
        now = time.monotonic()
        return {name for name, until in list(self._until.items()) if until > now}


class RowFault:
    """Around a transaction: ends an error that a single row can be the reason of, and keeps it in `error`."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not is_about_rows(error):
            return False
        self.error = error
        return True


def is_about_rows(error: BaseException) -> bool:
    """Can a single row be the reason of this error? Then the others are tried without it.

    Not if the database is away, full, read-only or damaged: then nothing can be done with any row.
    """
    if isinstance(error, StoreError):
        return type(error) is StoreError or isinstance(error, UNREADABLE)
    return isinstance(error, (StateTransitionRaceError, *UNREADABLE))


# --- What workers ask of a store: in one transaction; if a row stands in the way of that, one by one and without
# it.


SETTLE_ROUNDS = 4
"""Transactions for those who wait in one round of recovery: the worker has other things to do, too."""
SETTLE_PAUSE = 0.005
"""Seconds between two of them, at least: whoever waits for the database gets it."""


class WorkerVerbs(ABC):
    """Leases, recovery, those who wait, retention. One bad row costs its own job only."""

    _submitted_here = False
    """Set by a submit and reset by the next claim, which then has no need to look whether anything is ready."""

    def __init__(self) -> None:
        self._apart = Apart()

    @abstractmethod
    def writing(self, verb: str) -> AbstractContextManager[Session]:
        """A write transaction: committed at the end with its journal, or rolled back whole."""

    @abstractmethod
    def reading(self, *, consistent: bool = False) -> AbstractContextManager[Session]:
        """For reading; if `consistent`, all reads in it see one state of the database."""

    # --- claims ---

    def claim(self, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        if limit < 1:
            return []
        # Looking first keeps an idle worker from taking locks, and from waiting for them.
        if not self._submitted_here and not self._has_ready(flows):
            return []
        self._submitted_here = False
        return self.claim_ready(worker_id=worker_id, flows=flows, limit=limit, lease_ms=lease_ms)

    def claim_ready(self, *, limit: int, **lease: Any) -> list[Claim]:
        """Claim without looking first."""
        with RowFault() as fault:
            return self.claim_once(lease_verbs.Chosen(), **lease, limit=limit)
        assert fault.error is not None
        self._promote_one_by_one()
        claims: list[Claim] = []
        # Each round claims a job or sets one apart.
        while len(claims) < limit:
            chosen = lease_verbs.Chosen()
            with RowFault() as fault:
                claims += self.claim_once(chosen, **lease, limit=1, promote=False)
            if not chosen.job_ids:
                if fault.error is not None:
                    raise fault.error
                break
            if fault.error is not None:
                self._set_job_apart(chosen.job_ids[0], fault.error, actor=lease["worker_id"])
        return claims

    def claim_once(self, chosen: lease_verbs.Chosen, *, promote: bool = True, **request: Any) -> list[Claim]:
        """Claim in one transaction; `chosen` says what was chosen, if it fails, too."""
        with self.writing("claim") as session:
            if promote:
                lease_verbs.promote_due(session)
            lease_verbs.claim(session, chosen, **request, apart=self._apart.names())
        for job_id in chosen.refused:
            self._apart.add("job", job_id, "it is stored as pending, but its executions say something else")
        self.tell_waiting(session, actor=request["worker_id"], rounds=1)
        return chosen.claims

    def _promote_one_by_one(self) -> None:
        with self.reading() as session:
            due = [row[0] for row in session.run("due_jobs", now=session.now, limit=lease_verbs.PROMOTE_BATCH)]
        for job_id in due:
            with RowFault() as fault, self.writing("claim") as session:
                session.run("promote", job_id=job_id)
            if fault.error is not None:
                self._apart.add("job", job_id, fault.error)

    def _set_job_apart(self, job_id: str, error: BaseException, *, actor: str) -> None:
        """Quarantine it, if there is a legal way; else leave it alone from here."""
        done = False
        with RowFault() as fault, self.writing("claim") as session:
            done = settle_verbs.set_apart(session, job_id, actor=actor, reason=unreadable(error))
        if done and fault.error is None:
            log.error("quarantined: %s", unreadable(error), extra={"job_id": job_id})
            self.tell_waiting(session, actor=actor, rounds=1)
        else:
            self._apart.add("job", job_id, error)

    def _has_ready(self, flows: Mapping[str, str]) -> bool:
        with self.reading() as session:
            return bool(session.first("has_ready", now=session.now, flows=to_json(list(flows))))

    # --- leases and recovery ---

    def extend_leases(self, *, worker_id: str, lease_ms: int, only: Sequence[str] | None = None) -> list[Held]:
        with RowFault(), self.writing("extend-leases") as session:
            return lease_verbs.extend_leases(session, worker_id=worker_id, lease_ms=lease_ms, only=only)
        with self.reading() as session:
            held = lease_verbs.held(session, worker_id=worker_id)
        renewed = []
        for one in held:
            if only is not None and one.exec_id not in only:
                renewed.append(one)
                continue
            with RowFault() as fault, self.writing("extend-leases") as session:
                lease_verbs.renew(session, [one.exec_id], worker_id=worker_id, expires=session.now + lease_ms)
            if fault.error is None:
                renewed.append(one)
            else:
                self._apart.add("execution", one.exec_id, fault.error)
        return renewed

    def recover(self, *, is_dead: Callable[[str], bool], actor: str, steady_now: int | None = None) -> list[Recovered]:
        with self.reading() as session:
            owners: dict[str, int] = dict(session.run("owners").fetchall())
            now = session.now
            waiting = bool(session.first("has_releases"))
            cancelling = bool(session.first("has_cancellations"))
        if cancelling:
            self.continue_cancellations()
        recovered: list[Recovered] = []
        dead = [owner for owner in owners if is_dead(owner)]
        more = bool(dead) or any(isinstance(expires, int) and expires <= now for expires in owners.values())
        while more:
            batch: list[Recovered] = []
            with RowFault() as fault, self.writing("recover") as session:
                batch, more = lease_verbs.recover(
                    session, dead=dead, actor=actor, apart=self._apart.names(), steady_now=steady_now
                )
            if fault.error is not None:
                batch, more = self._recover_one_by_one(dead, actor, steady_now), False
            recovered += batch
        if waiting or recovered:
            self.settle(actor=actor, rounds=SETTLE_ROUNDS)
        return recovered

    def _recover_one_by_one(self, dead: Sequence[str], actor: str, steady_now: int | None) -> list[Recovered]:
        apart = self._apart.names()
        with self.reading() as session:
            exec_ids = lease_verbs.orphaned(session, dead=dead, limit=lease_verbs.RECOVERY_BATCH + len(apart))
        recovered: list[Recovered] = []
        for exec_id in exec_ids:
            if exec_id in apart:
                continue
            with RowFault() as fault, self.writing("recover") as session:
                found, _ = lease_verbs.recover(
                    session, dead=dead, actor=actor, limit=len(exec_ids), only=exec_id, steady_now=steady_now
                )
            if fault.error is None:
                recovered += found
            else:
                self._apart.add("execution", exec_id, fault.error)
        return recovered

    # --- those who wait ---

    def settle(self, *, actor: str, rounds: int | None = None) -> int:
        """End or release those who wait for jobs that have ended, in so many transactions or all; how many they were.

        Some hundred in each, and pauses in which others can write. Crash: the rest is found by recover().
        """
        settled = 0
        for turn in itertools.count(1):
            began = time.monotonic()
            with self.reading() as session:
                if not session.first("has_releases"):
                    break
            jobs = self._settle_some(actor)
            settled += len(jobs)
            if not jobs or turn == rounds:
                break
            time.sleep(max(SETTLE_PAUSE, (time.monotonic() - began) / 2))
        return settled

    def tell_waiting(self, session: Session, *, actor: str, rounds: int | None = None) -> None:
        """After a transaction in which jobs may have ended without success; it is committed, and no error its own."""
        if not session.left_waiting:
            return
        try:
            self.settle(actor=actor, rounds=rounds)
        except StoreError as error:
            log.warning("who waits for an ended job is told later: %s", error)

    def _settle_some(self, actor: str) -> list[str]:
        settled: list[str] = []
        with RowFault(), self.writing("settle") as session:
            settle_verbs.settle(session, settled, actor=actor, apart=self._apart.names())
            return settled
        settled = []
        while len(settled) < settle_verbs.BATCH:
            one: list[str] = []
            with RowFault() as fault, self.writing("settle") as session:
                settle_verbs.settle(session, one, actor=actor, limit=1, apart=self._apart.names())
            if not one:
                if fault.error is not None:
                    raise fault.error
                break
            if fault.error is not None:
                self._apart.add("job", one[0], fault.error)
            else:
                settled += one
        return settled

    # --- children of cancelled jobs ---

    def continue_cancellations(self) -> None:
        """Cancel the children of every job that was cancelled with them. Crash: the rest is found by recover()."""
        limit = operator_verbs.CANCEL_BATCH
        while True:
            actor: str | None = None
            with RowFault() as fault, self.writing("cancel-children") as session:
                actor = operator_verbs.cancel_some(session, limit=limit)
            if fault.error is None:
                if actor is None:
                    return
                self.tell_waiting(session, actor=actor, rounds=1)
            elif limit == 1:
                with self.writing("cancel-children") as session:
                    skipped = operator_verbs.skip_one(session)
                self._apart.add("job", skipped or "unknown", fault.error)
            else:
                limit = 1  # alone, the one that stands in the way can be told from the others

    # --- retention ---

    def prune(self, *, before: int, limit: int, actor: str, dry_run: bool) -> list[str]:
        apart = self._apart.names()
        if not dry_run:
            with RowFault(), self.writing("prune") as session:
                found = integrity.prune(session, before=before, limit=limit, actor=actor, apart=apart)
                integrity.forget_queues(session)
                change_feed.forget(session, len(found))
                return found
        with self.reading() as session:
            found = integrity.prunable(session, before=before, limit=limit, apart=apart)
        if dry_run:
            return found
        pruned: list[str] = []
        for job_id in found:
            with RowFault() as fault, self.writing("prune") as session:
                integrity.prune(session, before=before, limit=limit, actor=actor, apart=apart, only=job_id)
            if fault.error is None:
                pruned.append(job_id)
            else:
                self._apart.add("job", job_id, fault.error)
        return pruned


# --- The verbs of operators on any SQL database: each is one transaction, and a dry run is one that is taken back ---

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
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        state: JobState
        with suppress(_DryRun), self.writing("cancel") as session:
            session.metadata = metadata
            operator_verbs.refuse_moved_on(session, job_id, expected_head)
            state = operator_verbs.cancel(session, job_id, actor=actor, reason=reason, children=children, seen=seen)
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
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
        dry_run: bool = False,
    ) -> JobState:
        state: JobState
        with suppress(_DryRun), self.writing("retry") as session:
            session.metadata = metadata
            operator_verbs.refuse_moved_on(session, job_id, expected_head)
            state = operator_verbs.retry(session, job_id, actor=actor, reason=reason, from_state=from_state, seen=seen)
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
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("reschedule") as session:
            session.metadata = metadata
            operator_verbs.refuse_moved_on(session, job_id, expected_head)
            return operator_verbs.reschedule(
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
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("fail") as session:
            session.metadata = metadata
            operator_verbs.refuse_moved_on(session, job_id, expected_head)
            state = operator_verbs.fail(session, job_id, actor=actor, reason=reason, quarantine=quarantine, seen=seen)
        self.tell_waiting(session, actor=actor)
        return state

    def restart(
        self,
        job_id: str,
        *,
        actor: str,
        reason: str,
        seen: JobState | None = None,
        expected_head: str | None = None,
        metadata: Mapping[str, Any] = NO_METADATA,
    ) -> JobState:
        with self.writing("restart") as session:
            session.metadata = metadata
            operator_verbs.refuse_moved_on(session, job_id, expected_head)
            return operator_verbs.restart(session, job_id, actor=actor, reason=reason, seen=seen)

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int, reason: str = "") -> bool:
        with self.writing("stop-stalled") as session:
            stopped = operator_verbs.stop_stalled(session, exec_id, actor=actor, not_before=not_before, reason=reason)
        self.tell_waiting(session, actor=actor)
        return stopped

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self.writing("reproject") as session:
            return integrity.reproject(session, job_id, actor=actor, reason=reason)

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
                lease_verbs.set_default_limit(session, name, max_running=max_running)
            else:
                lease_verbs.set_limit(session, name, max_running=max_running, actor=actor, reason=reason)

    def pause_queue(self, name: str, *, actor: str, reason: str, metadata: Mapping[str, Any] = NO_METADATA) -> None:
        with self.writing("pause-queue") as session:
            session.metadata = metadata
            lease_verbs.pause(session, name, actor=actor, reason=reason)

    def resume_queue(
        self, name: str, *, actor: str = "client", reason: str = "", metadata: Mapping[str, Any] = NO_METADATA
    ) -> None:
        with self.writing("resume-queue") as session:
            session.metadata = metadata
            lease_verbs.resume(session, name, actor=actor, reason=reason)

    def queue_history(self, name: str, *, limit: int = 100) -> list[QueueEvent]:
        with self.reading() as session:
            return shown(QueueEvent, session.run("queue_events", queue=name, limit=limit))
