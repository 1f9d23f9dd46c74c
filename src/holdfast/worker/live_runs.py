"""The jobs that a worker holds: each is taken from what the executor has decided to the next decision, or let go of."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never

from holdfast.core.step import TryFailed
from holdfast.crash_points import SimulatedCrash
from holdfast.errors import StepTimeout, WorkerStopping
from holdfast.store.commands import Claim, End, Finish, ReportProgress, Write
from holdfast.worker.endings import Gone, Next, Perform, Send, Sleep
from holdfast.worker.event_loop import BEAT, AsyncSteps
from holdfast.worker.executor import Executor
from holdfast.worker.group_writer import Written
from holdfast.worker.leases import WorkerSettings
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import Telemetry
from holdfast.worker.threads import STARVED_PAUSE, StepPool, Timers

log = logging.getLogger("holdfast.worker")

STARVED_LONG = 5.0


class LiveRuns:
    """Runs under a lease of this worker, and what threads, timers and writes have to do with them.

    What goes wrong with one of them, in the user's code or in the engine's, is the end of that one.
    """

    def __init__(
        self,
        executor: Executor,
        settings: WorkerSettings,
        telemetry: Telemetry,
        *,
        put: Callable[[LiveRun | None, Write], None],
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
        stopping: threading.Event,
    ) -> None:
        self._executor = executor
        self._settings = settings
        self._telemetry = telemetry
        self._put = put
        self._wake = wake
        self._fail = fail
        self._runs: dict[str, LiveRun] = {}
        self._leaving: dict[int, Write] = {}
        self._timers = Timers()
        self._stopping = stopping
        self._idle = threading.Condition()
        self._starved_since: float | None = None
        self._async_steps = AsyncSteps(
            self._perform_async,
            self._performed,
            self._failed,
            self._give_up,
            patience=settings.lease,
            crowded=wake,
        )
        self._pool = StepPool(settings.concurrency, self._perform, wake, self._give_up)

    def __len__(self) -> int:
        return len(self._runs)

    def all(self) -> list[LiveRun]:
        """Those that are held just now."""
        return list(self._runs.values())

    @property
    def exec_ids(self) -> list[str]:
        """Executions whose leases are needed, those of which only the end is left to write included."""
        return [*self._runs, *(write.exec_id for write in list(self._leaving.values()))]

    @property
    def room(self) -> int:
        """How many jobs more can be worked on; one of which only the end is still to be written is in nobody's way."""
        if self._pool.is_starved or self._async_steps.is_starved:
            return 0
        return self._settings.concurrency - sum(not run.closing for run in self.all())

    @property
    def is_starved(self) -> bool:
        """Has no thread been had for longer than a moment?"""
        since = self._starved_since
        return since is not None and time.monotonic() - since > STARVED_LONG

    def owns(self, thread: threading.Thread) -> bool:
        """Does this thread perform steps?"""
        return self._pool.owns(thread) or self._async_steps.owns(thread)

    # --- for the scheduler ---

    def admit(self, claim: Claim) -> None:
        """Begin with a claimed job. What is raised may pass: then it can be tried again."""
        run, following = self._executor.admit(claim, self._put)
        if run is None:
            assert isinstance(following, Send)
            self.leave(following.write)
            return
        self._runs[run.exec_id] = run
        self._follow_safely(run, following)

    def leave(self, write: Write) -> None:
        """Have something written about an execution that has no run here."""
        self._leaving[id(write)] = write
        self._put(None, write)

    def wake_due(self) -> None:
        """Go on with those that have slept long enough."""
        for run in self._timers.take_due():
            self._follow_safely(run, Perform())

    def stop_overdue(self) -> None:
        """Ask steps whose time is up to stop, and abandon those that were asked before."""
        for run in self._timers.take_overdue():
            if run.exec_id not in self._runs:
                continue
            if isinstance(run.stop_error, StepTimeout):
                log.warning("step %s ignored its timeout, abandoned", run.step, extra={"job_id": run.job.job_id})
                self.abandon(run, run.stop_error)
            else:
                run.stop(StepTimeout(f"step {run.step} ran longer than its timeout"))
                self._async_steps.cancel(run)
                self._timers.limit(run, self._settings.timeout_grace, visit=run.visits)

    def look_after_threads(self, now: float) -> None:
        """Deal with what event loops took down with them, and give back what no thread can be had for."""
        if self._async_steps.is_busy:
            failed, stranded = self._async_steps.look(now)
            for run, error in failed:
                self._telemetry.fault("run the event loop")
                self._failed(run, error)
            for run, reason in stranded:
                log.warning("step %s cannot go on: %s", run.step, reason, extra={"job_id": run.job.job_id})
                self.abandon(run, reason)
        if not (self._pool.is_starved or self._async_steps.is_starved):
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now
        elif now - self._starved_since > self._settings.lease:
            # Others may have threads. A lease is for what is worked on.
            for run in [*self._pool.take_all(), *self._async_steps.take_all()]:
                run.stop(WorkerStopping("no thread can be had for it"))
                self._follow_safely(run, self._executor.conclude(run, self._executor.stopped(run)))

    def grow(self) -> bool:
        """Add step threads where they are needed; True if that has to be looked at again in a moment."""
        return self._pool.grow()

    def pauses(self) -> Iterable[float]:
        """In how many seconds something has to be done here."""
        timer = self._timers.pause()
        if timer is not None:
            yield timer
        if self._async_steps.is_busy:
            yield BEAT
        if self._pool.is_short or self._async_steps.is_starved:
            yield STARVED_PAUSE

    # --- for a stop ---

    def stop_all(self) -> None:
        """Ask every step to stop."""
        for run in self.all():
            run.stop(WorkerStopping("the worker is stopping"))
            self.wake_sleeper(run)

    def wait_until_idle(self, timeout: float) -> bool:
        """Until nothing is held any more; False if the time was up before."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._runs and not self._leaving, timeout)

    def close(self) -> None:
        """Let threads end."""
        self._pool.close()
        self._async_steps.close()

    # --- for the writer and the keeper of leases ---

    def written(self, answers: Sequence[Written]) -> None:
        """Go on with the runs whose writes were answered."""
        freed = False
        for run, write, answer in answers:
            if run is None:
                self._left(write, answer)
            elif not (run.abandoned or isinstance(write, ReportProgress)):
                freed |= self._go_on(run, write, answer)
        if freed:
            # Once for all of them: the scheduler then fills all the room there is in one transaction.
            self._make_room()

    def lost(self, run: LiveRun) -> None:
        """The lease of this run is another's, or nobody's."""
        if self._runs.get(run.exec_id) is run and not run.closing:
            log.warning("lease lost, step %s is no longer ours", run.step, extra={"job_id": run.job.job_id})
            self._telemetry.lost_lease()
            self._let_go(run)
            self._forget(run)

    def wake_sleeper(self, run: LiveRun) -> None:
        """A run that was asked to stop is to hear of it now."""
        self._async_steps.cancel(run)
        if self._timers.wake(run):
            self._follow_safely(run, Perform())

    def abandon(self, run: LiveRun, error: Exception) -> None:
        """Fence off a step that does not stop."""
        self._let_go(run)
        try:
            writes = self._executor.abandon(run, error)
        except Exception as fault:
            writes = [self._executor.give_up(run.claim, fault)]
        for write in writes:
            self.leave(write)
        self._forget(run)

    # --- inside ---

    def _follow_safely(self, run: LiveRun, following: Next) -> None:
        try:
            self._follow(run, following)
        except BaseException as error:
            self._give_up(run, error)

    def _follow(self, run: LiveRun, following: Next) -> None:
        """Do what the executor has decided."""
        if isinstance(following, (Perform, Sleep)) and self._stopping.is_set():
            # Told before, it may have had another reason to stop, which is over; nobody is left to wake a sleeper.
            run.stop(WorkerStopping("the worker is stopping"))
        match following:
            case Perform():
                self._dispatch(run)
            case Sleep():
                self._timers.sleep(run)
                self._wake()
                if run.stop_error is not None:
                    self.wake_sleeper(run)
            case Send(write=write):
                # Set before it is written: a lease that is gone because the job has ended is not a lost one.
                run.closing = isinstance(write, (End, Finish))
                self._put(run, write)
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
        try:
            self._watch_time(run)
            self._performed(run, self._executor.perform(run))
        except BaseException as error:
            self._give_up(run, error)

    async def _perform_async(self, run: LiveRun) -> Next:
        self._watch_time(run)
        return await self._executor.perform_async(run)

    def _performed(self, run: LiveRun, following: Next) -> None:
        if run.abandoned:
            return
        if isinstance(run.stop_error, StepTimeout):
            run.stop_error = None  # it has stopped, in time: the next try is not timed out yet
        self._follow_safely(run, following)

    def _failed(self, run: LiveRun, error: BaseException) -> None:
        """The try of an async step has ended with its loop, or in a way that only its loop could see."""
        try:
            # One that ended before it began was a try all the same, or there would be no end of them.
            entered = run.inside or self._executor.enter(run)
            following = self._executor.conclude(run, TryFailed(error) if entered else self._executor.stopped(run))
        except BaseException as fault:
            self._give_up(run, fault)
        else:
            self._performed(run, following)

    def _go_on(self, run: LiveRun, write: Write, answer: Exception | None) -> bool:
        """Do what comes after a write; True if there is room for another job."""
        try:
            following = self._executor.after_write(run, write, answer)
        except BaseException as error:
            self._give_up(run, error)
            return True
        if isinstance(following, Gone):
            return self._runs.pop(run.exec_id, None) is not None
        self._follow_safely(run, following)
        return run.closing

    def _watch_time(self, run: LiveRun) -> None:
        if run.timeout is not None:
            self._timers.limit(run, run.timeout, visit=run.visits + 1)
            self._wake()

    def _give_up(self, run: LiveRun, error: BaseException) -> None:
        """The engine itself failed on this run: it is set apart, and the others go on."""
        if isinstance(error, SimulatedCrash):
            self._fail(error)
            return
        log.critical("cannot deal with step %s: %r", run.step, error, exc_info=error, extra={"job_id": run.job.job_id})
        self._telemetry.fault("run a job")
        if run.abandoned:
            return
        self._let_go(run)
        self.leave(self._executor.give_up(run.claim, error))
        self._forget(run)

    def _let_go(self, run: LiveRun) -> None:
        run.abandoned = True
        self._pool.abandon(run)
        self._async_steps.abandon(run)

    def _left(self, write: Write, answer: Exception | None) -> None:
        if answer is not None:
            log.warning("it was not ours to give back any more: %s", answer, extra={"job_id": write.job_id})
        self._leaving.pop(id(write), None)
        self._make_room()

    def _forget(self, run: LiveRun) -> None:
        if self._runs.pop(run.exec_id, None) is not None:
            self._make_room()

    def _make_room(self) -> None:
        self._wake()
        if not self._runs and not self._leaving:
            with self._idle:
                self._idle.notify_all()
