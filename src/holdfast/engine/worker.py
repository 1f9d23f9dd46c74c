"""A worker: claims jobs while it has room, keeps them going, stops cleanly."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from holdfast.core.flow import Flow
from holdfast.core.outcomes import TryFailed
from holdfast.engine.async_steps import AsyncSteps
from holdfast.engine.executor import Executor
from holdfast.engine.following import Gone, Next, Perform, Send, Sleep
from holdfast.engine.leases import LeaseKeeper
from holdfast.engine.pool import StepPool
from holdfast.engine.recovery import Recovery
from holdfast.engine.run import LiveRun
from holdfast.engine.settings import WorkerSettings
from holdfast.engine.telemetry import Telemetry
from holdfast.engine.writer import GroupWriter, Written
from holdfast.errors import StepTimeout, StoreError, WorkerStopping
from holdfast.store.messages import Claim, End, Finish, ReportProgress
from holdfast.store.processes import new_worker_id
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.worker")

GROW_CHECK = 0.003
RECOVERY_PAUSE = 0.2
ANNOUNCE_INTERVAL = 30.0


class Worker:
    """Runs jobs of the given flows until it is stopped. Crash: others take over what it held."""

    def __init__(
        self, store: Store, flows: Mapping[str, Flow[Any, Any]], settings: WorkerSettings, telemetry: Telemetry
    ) -> None:
        self.worker_id = new_worker_id()
        self.telemetry = telemetry
        self._store = store
        self._flows = dict(flows)
        self._settings = settings
        self._lease_ms = round(settings.lease * 1000)
        self._executor = Executor(store, self._flows, telemetry)
        self._runs: dict[str, LiveRun] = {}
        self._claimed: deque[Claim] = deque()
        self._sleeping: list[tuple[int, int, LiveRun, int]] = []
        self._timed: list[tuple[float, int, LiveRun, int]] = []
        self._clean: bool | None = None
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._idle = threading.Condition()
        self.failure: BaseException | None = None
        self._listener = store.listen()
        self._async_steps = AsyncSteps(self._perform_async, self._fail)
        self._pool = StepPool(settings.concurrency, self._perform, self._listener.wake)
        self._recovery = Recovery(store, worker_id=self.worker_id, telemetry=telemetry)
        self._writer = GroupWriter(
            store,
            worker_id=self.worker_id,
            lease_ms=self._lease_ms,
            telemetry=telemetry,
            written=self._written,
            failed=self._fail,
            holding=lambda: list(self._runs),
        )
        self._leases = LeaseKeeper(
            store,
            worker_id=self.worker_id,
            lease_ms=self._lease_ms,
            runs=lambda: list(self._runs.values()),
            lost=self._lost,
            stopping=self._wake_sleeper,
        )
        self._scheduler = threading.Thread(target=self._schedule, name="holdfast-scheduler", daemon=True)

    # --- life ---

    def start(self) -> None:
        """Recover what is there to recover, then begin to claim."""
        try:
            self._store.announce(worker_id=self.worker_id, flows=list(self._flows))
            self._recovery.run_once()
            self._listener.watch(self._recovery.descriptors)
        except BaseException:
            self._sign_off()
            raise
        self._writer.start()
        self._leases.start()
        self._scheduler.start()

    def stop(self) -> bool:
        """Claim nothing more; let steps reach a safe point and give the rest back; True if all went cleanly."""
        if self._clean is not None:
            return self._clean
        self._stopping.set()
        self._listener.wake()
        self._scheduler.join()
        for run in list(self._runs.values()):
            run.stop(WorkerStopping("the worker is stopping"))
            self._wake_sleeper(run)
        self._clean = self._wait_until_idle(self._settings.stop_grace)
        for run in list(self._runs.values()):
            log.warning("step %s did not stop, abandoned", run.step, extra={"job_id": run.job.job_id})
            self._abandon(run, WorkerStopping("the worker stopped before the step did"))
        self._wait_until_idle(5.0)
        self._writer.stop(5.0)
        self._leases.stop()
        self._pool.close()
        self._async_steps.close()
        self._sign_off()
        return self._clean

    def _sign_off(self) -> None:
        self._recovery.close()
        try:
            self._store.retire(worker_id=self.worker_id)
        except StoreError as error:
            log.warning("cannot sign off, others will see that the worker is gone: %s", error)
        finally:
            self._listener.close()

    @property
    def active(self) -> int:
        """How many jobs it holds."""
        return len(self._runs)

    # --- the scheduler's thread ---

    def _schedule(self) -> None:
        try:
            self._claim_and_wait()
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A thread of the worker died of a bug: let the leases run out, so that others take over."""
        log.critical("the worker cannot go on: %s", error, exc_info=error)
        self.failure = error
        self._stopping.set()
        self._leases.end()

    def _claim_and_wait(self) -> None:
        looked_at = announced_at = time.monotonic()
        woken = False
        while not self._stopping.is_set():
            now = time.monotonic()
            try:
                # First of all, because a job may have waited for just this.
                held = bool(self._runs)
                self._claim()
                # News may mean that a peer has died or that an operator wants something, but a stream of it is
                # looked at only now and then.
                if now - looked_at >= (RECOVERY_PAUSE if woken else self._settings.recovery_interval):
                    self._look_around(held=held)
                    looked_at, woken = now, False
                if now - announced_at >= ANNOUNCE_INTERVAL:
                    self._store.announce(worker_id=self.worker_id, flows=list(self._flows))
                    announced_at = now
            except StoreError as error:
                log.warning("cannot claim: %s", error)
                self._stopping.wait(0.5)
            self._wake_due()
            self._stop_overdue()
            pause = GROW_CHECK if self._pool.grow() else self._pause()
            woken |= self._listener.wait(min(pause, RECOVERY_PAUSE) if woken else pause)

    def _look_around(self, *, held: bool) -> None:
        """Recover, and hear what operators want of the jobs that were held before this round."""
        recovered = self._recovery.run_once()
        self._listener.watch(self._recovery.descriptors)
        if held:
            self._leases.look_now()
        if recovered:
            self._claim()

    def _claim(self) -> None:
        while not self._stopping.is_set():
            # First what an earlier round has claimed, but could not start because the database was away.
            while self._claimed:
                self._admit(self._claimed[0])
                self._claimed.popleft()
            room = self._room()
            if room < 1:
                return
            self._claimed.extend(
                self._store.claim(
                    worker_id=self.worker_id,
                    flows={name: flow.fingerprint for name, flow in self._flows.items()},
                    limit=room,
                    lease_ms=self._lease_ms,
                )
            )
            if not self._claimed:
                return

    def _room(self) -> int:
        """How many jobs more can be worked on; one of which only the end is still to be written is in nobody's way."""
        return self._settings.concurrency - sum(not run.closing for run in list(self._runs.values()))

    def _admit(self, claim: Claim) -> None:
        run, following = self._executor.admit(claim, self._writer.put)
        if run is None:
            assert isinstance(following, Send)
            self._store.write([following.write], worker_id=self.worker_id, lease_ms=self._lease_ms)
            return
        self._runs[run.exec_id] = run
        self._follow(run, following)

    def _wake_due(self) -> None:
        now = self._store.now()
        with self._lock:
            due = []
            while self._sleeping and self._sleeping[0][0] <= now:
                _, _, run, tries = heapq.heappop(self._sleeping)
                if run.tries == tries and not run.abandoned:
                    due.append(run)
        for run in due:
            self._follow(run, Perform())

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        with self._lock:
            overdue = []
            while self._timed and self._timed[0][0] <= now:
                overdue.append(heapq.heappop(self._timed))
        for _, _, run, visit in overdue:
            if run.visits != visit or not run.inside or run.exec_id not in self._runs:
                continue
            if isinstance(run.stop_error, StepTimeout):
                log.warning("step %s ignored its timeout, abandoned", run.step, extra={"job_id": run.job.job_id})
                self._abandon(run, run.stop_error)
            else:
                run.stop(StepTimeout(f"step {run.step} ran longer than its timeout"))
                self._async_steps.cancel(run)
                self._watch_time(run, self._settings.timeout_grace)

    def _pause(self) -> float:
        pause = self._settings.recovery_interval
        now = self._store.now()
        with self._lock:
            if self._sleeping:
                pause = min(pause, (self._sleeping[0][0] - now) / 1000)
            if self._timed:
                pause = min(pause, self._timed[0][0] - time.monotonic())
        try:
            due = self._store.next_due()
        except StoreError as error:
            # The database is away: the next round will see whether it is back.
            log.warning("cannot look at what is due: %s", error)
            due = None
        if due is not None and self._room() > 0:
            pause = min(pause, (due - now) / 1000)
        return max(0.001, pause)

    # --- steps ---

    def _follow(self, run: LiveRun, following: Next) -> None:
        """Do what the executor has decided."""
        if isinstance(following, (Perform, Sleep)) and self._stopping.is_set():
            # Told before, it may have had another reason to stop, which is over; nobody is left to wake a sleeper.
            run.stop(WorkerStopping("the worker is stopping"))
        match following:
            case Perform():
                self._dispatch(run)
            case Sleep(until=until):
                with self._lock:
                    heapq.heappush(self._sleeping, (until, next(self._order), run, run.tries))
                self._listener.wake()
                if run.stop_error is not None:
                    self._wake_sleeper(run)
            case Send(write=write):
                # Set before it is written: a lease that is gone because the job has ended is not a lost one.
                run.closing = isinstance(write, (End, Finish))
                self._writer.put(run, write)
            case Gone():
                self._forget(run)
            case _:
                assert_never(following)

    def _dispatch(self, run: LiveRun) -> None:
        if run.ending is None and run.current.is_commit:
            self._follow(run, self._executor.enter_commit(run))
            return
        if run.is_async:
            self._async_steps.put(run)
            return
        self._pool.put(run)

    def _perform(self, run: LiveRun) -> None:
        if run.abandoned:
            return
        if run.timeout is not None:
            self._watch_time(run, run.timeout, entering=True)
        try:
            self._performed(run, self._executor.perform(run))
        except BaseException as error:
            self._fail(error)

    async def _perform_async(self, run: LiveRun) -> None:
        if run.abandoned:
            return
        if run.timeout is not None:
            self._watch_time(run, run.timeout, entering=True)
        from asyncio import CancelledError  # noqa: PLC0415 - here the event loop is there already

        try:
            following = await self._executor.perform_async(run)
        except CancelledError as error:
            # Cancelled by the worker for a reason, or by its own doing, which is an error like any other.
            following = self._executor.conclude(run, TryFailed(run.stop_error or error))
        run.task = None
        self._performed(run, following)

    def _performed(self, run: LiveRun, following: Next) -> None:
        if run.abandoned:
            return
        if isinstance(run.stop_error, StepTimeout):
            run.stop_error = None  # it has stopped, in time: the next try is not timed out yet
        self._follow(run, following)

    def _written(self, answers: Sequence[Written]) -> None:
        freed = False
        for run, write, answer in answers:
            if run.abandoned or isinstance(write, ReportProgress):
                continue
            following = self._executor.after_write(run, write, answer)
            if isinstance(following, Gone):
                freed |= self._runs.pop(run.exec_id, None) is not None
            else:
                self._follow(run, following)
                freed |= run.closing
        if freed:
            # Once for all of them: the scheduler then fills all the room there is in one transaction.
            self._make_room()

    def _watch_time(self, run: LiveRun, seconds: float, *, entering: bool = False) -> None:
        visit = run.visits + 1 if entering else run.visits
        with self._lock:
            heapq.heappush(self._timed, (time.monotonic() + seconds, next(self._order), run, visit))
        self._listener.wake()

    def _abandon(self, run: LiveRun, error: Exception) -> None:
        run.abandoned = True
        self._pool.abandon(run)
        self._async_steps.cancel(run)
        for write in self._executor.abandon(run, error):
            self._writer.put(run, write)
        self._forget(run)

    def _lost(self, run: LiveRun) -> None:
        if self._runs.get(run.exec_id) is run and not run.closing:
            log.warning("lease lost, step %s is no longer ours", run.step, extra={"job_id": run.job.job_id})
            self.telemetry.lost_leases += 1
            run.abandoned = True
            self._pool.abandon(run)
            self._async_steps.cancel(run)
            self._forget(run)

    def _wake_sleeper(self, run: LiveRun) -> None:
        with self._lock:
            sleeping = [entry for entry in self._sleeping if entry[2] is run]
            self._sleeping = [entry for entry in self._sleeping if entry[2] is not run]
            heapq.heapify(self._sleeping)
        self._async_steps.cancel(run)
        if sleeping:
            self._follow(run, Perform())

    def _forget(self, run: LiveRun) -> None:
        if self._runs.pop(run.exec_id, None) is not None:
            self._make_room()

    def _make_room(self) -> None:
        self._listener.wake()
        if not self._runs:
            with self._idle:
                self._idle.notify_all()

    def _wait_until_idle(self, timeout: float) -> bool:
        with self._idle:
            return self._idle.wait_for(lambda: not self._runs, timeout)
