"""What a worker does again and again, and goes on doing after an error, with growing pauses."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from holdfast.crash_points import SimulatedCrash
from holdfast.errors import StoreError
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import Telemetry

log = logging.getLogger("holdfast.worker")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Duty:
    """One kind of work of the scheduler. An error in it is told, counted and tried again; the other duties go on."""

    def __init__(self, name: str, act: Callable[[], object], telemetry: Telemetry) -> None:
        self._name = name
        self._act = act
        self._telemetry = telemetry
        self._pause = FIRST_PAUSE
        self._resume_at = 0.0
        self._faulty_since: float | None = None
        self.done_at = time.monotonic()
        self.fault: Exception | None = None
        """The unexpected error of the last attempt; what the database says of itself is none."""

    def attempt(self) -> bool:
        """Do it, unless it has just failed; True if it was done."""
        if time.monotonic() < self._resume_at:
            return False
        try:
            self._act()
        except SimulatedCrash:
            raise
        except StoreError as error:
            self.fault = None
            log.warning("cannot %s, next try in %.1f s: %s", self._name, self._pause, error)
        except Exception as error:
            # A row or an answer that nobody expected. Other jobs can do without this round.
            self.fault = error
            self._telemetry.fault(self._name)
            log.error("cannot %s, next try in %.1f s: %s", self._name, self._pause, error, exc_info=error)
        else:
            self._pause, self._resume_at, self._faulty_since, self.fault = FIRST_PAUSE, 0.0, None, None
            self.done_at = time.monotonic()
            return True
        now = time.monotonic()
        self._faulty_since = None if self.fault is None else self._faulty_since or now
        self._resume_at = now + self._pause
        self._pause = min(LONGEST_PAUSE, self._pause * 2)
        return False

    @property
    def wait(self) -> float:
        """Seconds until it may be attempted again, 0 if now."""
        return max(0.0, self._resume_at - time.monotonic())

    @property
    def faulty_for(self) -> float:
        """For how many seconds every attempt has ended in an unexpected error."""
        return 0.0 if self._faulty_since is None else time.monotonic() - self._faulty_since


# --- When a sleeping run is due and when a step is overdue, by the monotonic clock: nobody can set that one ---


class Timers:
    """Sleeping runs and the time limits of steps. Safe to use from any thread."""

    def __init__(self) -> None:
        self._sleeping: list[tuple[float, int, LiveRun, int]] = []
        self._limits: list[tuple[float, int, LiveRun, int]] = []
        self._order = itertools.count()
        self._lock = threading.Lock()

    def sleep(self, run: LiveRun) -> None:
        """Until the next try of this run is due."""
        with self._lock:
            heapq.heappush(self._sleeping, (run.retry_due, next(self._order), run, run.tries))

    def wake(self, run: LiveRun) -> bool:
        """Take a run out of its sleep; False if it did not sleep."""
        with self._lock:
            left = [entry for entry in self._sleeping if entry[2] is not run]
            if len(left) == len(self._sleeping):
                return False
            self._sleeping = left
            heapq.heapify(self._sleeping)
        return True

    def limit(self, run: LiveRun, seconds: float, *, visit: int) -> None:
        """This visit of a step may take so long from now."""
        with self._lock:
            heapq.heappush(self._limits, (time.monotonic() + seconds, next(self._order), run, visit))

    def take_due(self) -> list[LiveRun]:
        """The runs that have slept long enough."""
        due = []
        with self._lock:
            now = time.monotonic()
            while self._sleeping and self._sleeping[0][0] <= now:
                _, _, run, tries = heapq.heappop(self._sleeping)
                if run.tries == tries and not run.abandoned:
                    due.append(run)
        return due

    def take_overdue(self) -> list[LiveRun]:
        """The runs that are still in the step whose time is up."""
        overdue = []
        with self._lock:
            now = time.monotonic()
            while self._limits and self._limits[0][0] <= now:
                _, _, run, visit = heapq.heappop(self._limits)
                if run.visits == visit and run.inside:
                    overdue.append(run)
        return overdue

    def pause(self) -> float | None:
        """Seconds until the next of these moments, None if there is none."""
        with self._lock:
            moments = [heap[0][0] for heap in (self._sleeping, self._limits) if heap]
        return min(moments) - time.monotonic() if moments else None


# --- Threads for plain steps: few while steps are quick, more as soon as they block, none waiting for nothing ---


BLOCKED_AFTER = 0.002
STARVED_PAUSE = 0.5
"""No thread can be had: how long until it is tried again."""
IDLE_EXIT = 10.0
RESIDENT = 2


class _Lane:
    """One thread and what it is doing."""

    __slots__ = ("detached", "run", "since", "thread")

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.run: LiveRun | None = None
        self.since = 0.0
        self.detached = False


class StepPool:
    """Performs runs. Quick steps share two threads, because more of them only fight for the interpreter."""

    def __init__(
        self,
        most: int,
        perform: Callable[[LiveRun], None],
        crowded: Callable[[], None],
        broken: Callable[[LiveRun, BaseException], None],
    ) -> None:
        self._most = most
        self._perform = perform
        self._crowded = crowded
        self._broken = broken
        self._ready: SimpleQueue[LiveRun | None] = SimpleQueue()
        self._lanes: set[_Lane] = set()
        self._lock = threading.Lock()
        self._watched = False
        self._starved_until = 0.0

    @property
    def is_short(self) -> bool:
        """Does work wait because no more threads can be had?"""
        return bool(self._starved_until)

    @property
    def is_starved(self) -> bool:
        """Is there not even one thread?"""
        return self.is_short and not self._lanes

    def owns(self, thread: threading.Thread) -> bool:
        """Is it the thread of a step that has not been abandoned?"""
        return any(lane.thread is thread for lane in list(self._lanes))

    def put(self, run: LiveRun) -> None:
        """Perform the current step of this run as soon as a thread is free."""
        self._ready.put(run)
        if self._lanes or self._grow():
            self._ask_to_grow()

    def _ask_to_grow(self) -> None:
        """Every thread is busy and work waits: somebody has to look, soon, whether they are blocked.

        Asked by whoever adds work and by the thread that has just taken some, or the last one to become busy would
        not be seen by either.
        """
        if self._watched or len(self._lanes) >= self._most:
            return
        if all(lane.since for lane in list(self._lanes)):
            self._watched = True
            self._crowded()

    def grow(self) -> bool:
        """Add threads if work waits while every thread is blocked; True if work waits and more could be added.

        Whoever gets True asks again soon; until then nobody needs to be asked to.
        """
        self._watched = False
        self._watched = more = self._grow()
        return more

    def _grow(self) -> bool:
        waiting = self._ready.qsize()
        if not waiting:
            self._starved_until = 0.0
            return False
        now = time.monotonic()
        if now < self._starved_until:
            return False
        with self._lock:
            room = self._most - len(self._lanes)
            if room > 0 and all(lane.since and now - lane.since > BLOCKED_AFTER for lane in self._lanes):
                # At most twice as many at a time: on a busy machine quick steps look blocked, too.
                added = min(waiting, room, max(RESIDENT, len(self._lanes)))
                if not all(self._start() for _ in range(added)):
                    return False
                return added < min(waiting, room)
            return room > 0

    def _start(self) -> bool:
        lane = _Lane()
        lane.thread = threading.Thread(target=self._work, args=(lane,), name="holdfast-step", daemon=True)
        self._lanes.add(lane)
        try:
            lane.thread.start()
        except (RuntimeError, MemoryError) as error:
            # The threads that are there go on with the work; without any it waits, and so does the claim of more.
            self._lanes.discard(lane)
            self._starved_until = time.monotonic() + STARVED_PAUSE
            log.warning("no thread can be started for steps, next try in %.1f s: %s", STARVED_PAUSE, error)
            return False
        self._starved_until = 0.0
        return True

    def abandon(self, run: LiveRun) -> None:
        """Stop counting the thread that is stuck in this run; it ends by itself when the step does."""
        with self._lock:
            for lane in list(self._lanes):
                if lane.run is run:
                    lane.detached = True
                    self._lanes.discard(lane)

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            for _ in self._lanes:
                self._ready.put(None)

    def take_all(self) -> list[LiveRun]:
        """Take back what no thread has begun."""
        taken = []
        try:
            while (run := self._ready.get_nowait()) is not None:
                taken.append(run)
        except Empty:
            pass
        return taken

    def _work(self, lane: _Lane) -> None:
        try:
            self._work_until_idle(lane)
        except BaseException as error:
            # Thrown into the thread from elsewhere. What it had begun is not lost with it.
            if lane.run is not None and not lane.detached:
                self._broken(lane.run, error)
        finally:
            with self._lock:
                self._lanes.discard(lane)

    def _work_until_idle(self, lane: _Lane) -> None:
        while not lane.detached:
            try:
                run = self._ready.get(timeout=IDLE_EXIT)
            except Empty:
                with self._lock:
                    if len(self._lanes) <= RESIDENT:
                        continue
                    self._lanes.discard(lane)
                return
            if run is None:
                return
            lane.run, lane.since = run, time.monotonic()
            if self._ready.qsize():
                self._ask_to_grow()
            self._perform(run)
            lane.run, lane.since = None, 0.0
