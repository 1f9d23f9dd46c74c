"""Threads for plain steps: few while steps are quick, more as soon as they block, none waiting for nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from holdfast.engine.run import LiveRun

log = logging.getLogger("holdfast.worker")

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
