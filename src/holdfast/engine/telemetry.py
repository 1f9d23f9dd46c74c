"""Counts and timings per transition and step, kept in plain dictionaries so that they cost next to nothing."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter

BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 1800.0)

log = logging.getLogger("holdfast")


class Timing:
    """A histogram: how many observations fell under each bound, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Add one observation."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class Telemetry:
    """What a worker has done since it started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.steps: dict[tuple[str, str], Timing] = {}
        self.executions: dict[str, Timing] = {}
        self.recovered: Counter[tuple[str, str]] = Counter()
        self.lost_leases = 0
        self.group_commits = 0
        self.writes = 0
        self.findings: Counter[str] = Counter()

    def transition(self, flow: str, from_state: str, to_state: str) -> None:
        """A job of this flow changed its state."""
        with self._lock:
            self.transitions[flow, from_state, to_state] += 1

    def step(self, flow: str, step: str, outcome: str, seconds: float) -> None:
        """A step ended so, after that time."""
        with self._lock:
            self.outcomes[flow, step, outcome] += 1
            timing = self.steps.get((flow, step))
            if timing is None:
                timing = self.steps[flow, step] = Timing()
            timing.observe(seconds)

    def execution(self, flow: str, seconds: float) -> None:
        """An execution ended after that time."""
        with self._lock:
            timing = self.executions.get(flow)
            if timing is None:
                timing = self.executions[flow] = Timing()
            timing.observe(seconds)

    def group(self, size: int) -> None:
        """So many writes shared one durable commit."""
        self.group_commits += 1
        self.writes += size
