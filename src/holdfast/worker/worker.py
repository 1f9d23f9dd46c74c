"""A worker: claims jobs while it has room, keeps them going, stops cleanly."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.core.flow import Flow
from holdfast.errors import StoreError, WorkerStopping
from holdfast.store.commands import Claim, Write
from holdfast.store.commit_step import is_passing
from holdfast.store.liveness import new_worker_id
from holdfast.store.protocol import Listener, Store
from holdfast.worker.endings import given_back_unbegun
from holdfast.worker.executor import Executor
from holdfast.worker.group_writer import GroupWriter
from holdfast.worker.leases import LeaseKeeper, Recovery, WorkerSettings
from holdfast.worker.live_runs import LiveRuns
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import JobLog, Telemetry, Vitals, problems
from holdfast.worker.threads import FIRST_PAUSE, LONGEST_PAUSE, Duty

log = logging.getLogger("holdfast.worker")

GROW_CHECK = 0.003
RECOVERY_PAUSE = 0.2
ANNOUNCE_INTERVAL = 30.0
LAST_WRITES = 5.0
FAULT_PATIENCE = 60.0
"""A worker that could claim nothing for so long, for an error that nobody expected, and holds nothing, has failed."""


class Worker:
    """Runs jobs of the given flows until it is stopped. Crash: others take over what it held."""

    _round_at = 0.0
    """When the scheduler last began a round."""

    def __init__(
        self,
        store: Store,
        flows: Mapping[str, Flow[Any, Any]],
        settings: WorkerSettings,
        telemetry: Telemetry,
        *,
        prepare: Callable[[], object] = lambda: None,
    ) -> None:
        self.worker_id = new_worker_id()
        self.telemetry = telemetry
        self.failure: BaseException | None = None
        self._store = store
        self._flows = dict(flows)
        self._settings = settings
        self._prepare = prepare
        self._lease_ms = round(settings.lease * 1000)
        self._observers = (telemetry.observe, JobLog(self.worker_id).observe)
        self._claimed: deque[Claim] = deque()
        self._claim_unanswered = False
        self._clean: bool | None = None
        self._life = threading.Lock()
        self._started = False
        self._process = os.getpid()
        self._opened = threading.Event()
        self._stopping = threading.Event()
        self._listener: Listener | None = None
        self._recovery = Recovery(store, worker_id=self.worker_id, telemetry=telemetry)
        self._runs = LiveRuns(
            Executor(store, self._flows, telemetry, self.worker_id),
            settings,
            telemetry,
            put=self._send,
            wake=self._wake,
            fail=self._fail,
            stopping=self._stopping,
        )
        self._writer = GroupWriter(
            store,
            worker_id=self.worker_id,
            lease_ms=self._lease_ms,
            telemetry=telemetry,
            written=self._runs.written,
            failed=self._fail,
            holding=lambda: self._runs.exec_ids,
        )
        self._leases = LeaseKeeper(
            store,
            worker_id=self.worker_id,
            lease_ms=self._lease_ms,
            runs=self._runs.all,
            lost=self._runs.lost,
            stopping=self._runs.wake_sleeper,
            failed=self._fail,
            unrecorded=self._writer.unrecorded,
        )
        self._claiming = Duty("claim jobs", self._claim, telemetry)
        self._recovering = Duty("recover", self._look_around, telemetry)
        self._announcing = Duty("announce itself", self._announce, telemetry)
        self._scheduler = threading.Thread(target=self._schedule, name="holdfast-scheduler", daemon=True)

    # --- life ---

    def start(self) -> None:
        """Recover what is there to recover, then begin to claim.

        While the database cannot be used for a passing reason, the worker waits for it, in a thread of its own.
        """
        with self._life:
            if self._stopping.is_set():
                return
            for observer in self._observers:
                self._store.changes.observe(observer)
            try:
                self._open()
            except BaseException as error:
                if not is_passing(error):
                    self._sign_off()
                    raise
                log.warning("the database cannot be used yet, waiting for it: %s", error)
            try:
                self._writer.start()
                self._leases.start()
                self._scheduler.start()
                self._started = True
            except BaseException:
                self._stopping.set()
                self._leases.end()
                self._sign_off()
                raise

    @property
    def is_ready(self) -> bool:
        """Has it found the database usable, and begun to claim?"""
        return self._opened.is_set()

    def stop(self) -> bool:
        """Claim nothing more; let steps reach a safe point and give the rest back; True if all went cleanly.

        Called from a step it only asks for that, since it cannot wait for the step it is called from.
        """
        if os.getpid() != self._process:
            return False  # the worker is our parent's
        self._stopping.set()
        self._wake()
        if self._is_own(threading.current_thread()):
            return False
        with self._life:
            if self._clean is None:
                try:
                    self._clean = self._stop() if self._started else self._sign_off()
                except BaseException:
                    self._leases.end()  # nobody will look after what is left
                    raise
            return self._clean

    def _stop(self) -> bool:
        self._scheduler.join()
        self._runs.stop_all()
        clean = self._runs.wait_until_idle(self._settings.stop_grace)
        for run in self._runs.all():
            log.warning("step %s did not stop, abandoned", run.step, extra={"job_id": run.job.job_id})
            self._runs.abandon(run, WorkerStopping("the worker stopped before the step did"))
        self._runs.wait_until_idle(LAST_WRITES)
        self._writer.stop(LAST_WRITES)
        self._leases.stop()
        self._runs.close()
        self._sign_off()
        return clean

    def _sign_off(self) -> bool:
        self._recovery.close()
        listener, self._listener = self._listener, None
        try:
            if self._opened.is_set():
                self._store.retire(worker_id=self.worker_id)
        except StoreError as error:
            log.warning("cannot sign off, others will see that the worker is gone: %s", error)
        finally:
            if listener is not None:
                listener.close()
            for observer in self._observers:
                self._store.changes.forget(observer)
        return True

    def _is_own(self, thread: threading.Thread) -> bool:
        return thread is self._scheduler or self._writer.runs_on(thread) or self._runs.owns(thread)

    def problems(self) -> list[str]:
        """What is wrong with the worker just now, one sentence each; none if it is well, or was stopped."""
        if self._stopping.is_set() and self.failure is None:
            return []
        now = time.monotonic()
        threads = {
            "scheduler": self._scheduler.is_alive(),
            "writer": self._writer.is_alive,
            "lease": self._leases.is_alive,
        }
        vitals = Vitals(
            failure=self.failure,
            is_ready=self.is_ready,
            threads=threads if self._started else {},
            since_round=now - self._round_at if self.is_ready else 0.0,
            since_contact=now - min(self._claiming.done_at, self._recovering.done_at) if self.is_ready else 0.0,
            since_renewal=now - self._leases.renewed_at,
            lease=self._settings.lease,
            recovery_interval=self._settings.recovery_interval,
            holds_jobs=bool(self._runs),
            writer_is_stuck=self._writer.is_stuck(),
            is_starved=self._runs.is_starved,
        )
        return problems(vitals)

    def unready(self) -> list[str]:
        """Why the worker takes no work just now, one sentence each; none if it does."""
        return ["the worker is stopping"] if self._stopping.is_set() else self.problems()

    @property
    def active(self) -> int:
        """How many jobs it holds."""
        return len(self._runs)

    def _send(self, run: LiveRun | None, write: Write) -> None:
        self._writer.put(run, write)

    def _wake(self) -> None:
        listener = self._listener
        if listener is not None:
            listener.wake()

    # --- the scheduler's thread ---

    def _schedule(self) -> None:
        try:
            self._open_patiently()
            self._claim_and_wait()
            self._give_back_claimed()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A thread of the worker died of a bug: let the leases run out, so that others take over."""
        log.critical("the worker cannot go on: %s", error, exc_info=error)
        self.failure = error
        self._stopping.set()
        self._leases.end()

    def _open(self) -> None:
        """What has to go well once before anything is claimed."""
        self._prepare()
        if self._listener is None:
            self._listener = self._store.listen()
        self._announce()
        self._recovery.run_once()
        self._listener.watch(self._recovery.descriptors)
        self._round_at = time.monotonic()
        self._opened.set()

    def _open_patiently(self) -> None:
        pause = FIRST_PAUSE
        while not self._opened.is_set() and not self._stopping.wait(pause):
            pause = min(LONGEST_PAUSE, pause * 2)
            try:
                self._open()
            except Exception as error:
                if not is_passing(error):
                    raise
                log.warning("the database cannot be used yet, next try in %.1f s: %s", pause, error)

    def _announce(self) -> None:
        self._store.announce(worker_id=self.worker_id, flows=list(self._flows))

    def _claim_and_wait(self) -> None:
        looked_at = announced_at = time.monotonic()
        woken = False
        while not self._stopping.is_set():
            now = self._round_at = time.monotonic()
            # First of all, because a job may have waited for just this.
            self._claiming.attempt()
            # News may mean that a peer has died or that an operator wants something, but a stream of it is
            # looked at only now and then.
            if now - looked_at >= (RECOVERY_PAUSE if woken else self._settings.recovery_interval):
                self._recovering.attempt()
                looked_at, woken = now, False
            if now - announced_at >= ANNOUNCE_INTERVAL and self._announcing.attempt():
                announced_at = now
            self._runs.wake_due()
            self._runs.stop_overdue()
            self._runs.look_after_threads(now)
            fault = self._claiming.fault
            if fault is not None and self._claiming.faulty_for > FAULT_PATIENCE and not self._runs:
                raise fault
            pause = GROW_CHECK if self._runs.grow() else self._pause()
            woken |= self._listen(min(pause, RECOVERY_PAUSE) if woken else pause)

    def _listen(self, pause: float) -> bool:
        assert self._listener is not None
        try:
            return self._listener.wait(pause)
        except Exception as error:
            self.telemetry.fault("listen")
            log.error("cannot listen for news, looking again in %.1f s: %s", FIRST_PAUSE, error, exc_info=error)
            return self._stopping.wait(FIRST_PAUSE)

    def _look_around(self) -> None:
        """Recover, and hear what operators want of the jobs that are held."""
        held = bool(self._runs)
        recovered = self._recovery.run_once()
        if self._listener is not None:
            self._listener.watch(self._recovery.descriptors)
        if held:
            self._leases.look_now()
        if recovered:
            self._claiming.attempt()

    def _claim(self) -> None:
        # First what an earlier round has claimed, but could not start because the database was away.
        error = self._admit_claimed()
        while not self._stopping.is_set() and (room := self._room - len(self._claimed)) > 0:
            before = len(self._claimed)
            self._ask_for_claims(room)
            if len(self._claimed) == before:
                break
            error = self._admit_claimed() or error
        if error is not None:
            raise error

    def _admit_claimed(self) -> Exception | None:
        """Begin with what was claimed. One that cannot be begun just now is kept for later, and keeps back no other."""
        error = None
        for _ in range(len(self._claimed)):
            if self._stopping.is_set():
                break
            claim = self._claimed.popleft()
            try:
                self._runs.admit(claim)
            except Exception as why:
                error = why
                self._claimed.append(claim)
        return error

    @property
    def _room(self) -> int:
        # A worker that can record nothing leaves the work to those who can.
        return 0 if self._writer.is_stuck() else self._runs.room

    def _ask_for_claims(self, limit: int) -> None:
        flows = {name: flow.fingerprint for name, flow in self._flows.items()}
        self._claim_unanswered = True
        self._claimed.extend(
            self._store.claim(worker_id=self.worker_id, flows=flows, limit=limit, lease_ms=self._lease_ms)
        )
        self._claim_unanswered = False

    def _give_back_claimed(self) -> None:
        """What was claimed and not begun goes back as it came, also if the answer to its claim was lost."""
        until = time.monotonic() + self._settings.stop_grace
        while self._claim_unanswered and time.monotonic() < until:
            try:
                self._ask_for_claims(0)
            except StoreError as error:
                log.warning("cannot see whether a claim was granted: %s", error)
                time.sleep(FIRST_PAUSE)
        while self._claimed:
            self._runs.leave(given_back_unbegun(self._claimed.popleft()))

    def _pause(self) -> float:
        pauses = [self._settings.recovery_interval, *self._runs.pauses()]
        wait = self._claiming.wait
        if wait:
            pauses.append(wait)
        elif self._room > 0:
            due = self._next_due()
            if due is not None:
                pauses.append((due - self._store.now()) / 1000)
        return max(0.001, min(pauses))

    def _next_due(self) -> int | None:
        try:
            return self._store.next_due()
        except StoreError as error:
            # The database is away: the next round will see whether it is back.
            log.warning("cannot look at what is due: %s", error)
        except Exception as error:
            self.telemetry.fault("look at what is due")
            log.error("cannot look at what is due: %s", error, exc_info=error)
        return None
