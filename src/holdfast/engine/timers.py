"""When a sleeping run is due and when a step is overdue, by the monotonic clock: nobody can set that one."""

from __future__ import annotations

import heapq
import itertools
import threading
import time

from holdfast.engine.run import LiveRun


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
