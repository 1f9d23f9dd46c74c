"""Counts and timings per transition and step, kept in plain dictionaries so that they cost next to nothing."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import msgspec

from holdfast.core.states import ExecutionStatus
from holdfast.store.changes import Change
from holdfast.store.messages import Claim, Journaled

BUCKETS = (0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 1800.0)

NEW = "new"
"""The state that a submitted job comes from."""


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
    """What a worker has done since it started. Every change goes through the lock; a reader takes it with `reading`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.transitions: Counter[tuple[str, str, str]] = Counter()
        self.ends: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.steps: dict[tuple[str, str], Timing] = {}
        self.executions: dict[str, Timing] = {}
        self.waits: dict[str, Timing] = {}
        self.recovered: Counter[tuple[str, str]] = Counter()
        self.lost_leases = 0
        self.group_commits = 0
        self.writes = 0
        self.findings: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Inside, nothing is counted: all numbers are of one moment."""
        with self._lock:
            yield

    def observe(self, changes: Sequence[Change]) -> None:
        """Changes of state that are durable, made by this worker or by anybody else in its process."""
        with self._lock:
            for flow, entry in changes:
                if entry.job_from != entry.job_to:
                    self.transitions[flow, entry.job_from or NEW, entry.job_to] += 1
                elif entry.exec_to == ExecutionStatus.COMMITTED:
                    self.transitions[flow, "running", "committed"] += 1
                code = _end_of(entry)
                if code is not None:
                    self.ends[flow, code] += 1

    def claimed(self, claim: Claim, now: int) -> None:
        """A job was claimed. How long it had waited is known of its first attempt, if it waited for no other job."""
        job = claim.job
        if claim.attempt == 1 and job.run_after is None:
            with self._lock:
                _timing(self.waits, job.flow).observe(max(0, now - max(job.created_at, job.not_before)) / 1000)

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
            _timing(self.executions, flow).observe(seconds)

    def fault(self, part: str) -> None:
        """A part of the worker met an error that nobody expected, and went on."""
        with self._lock:
            self.faults[part] += 1

    def group(self, size: int) -> None:
        """So many writes shared one durable commit."""
        with self._lock:
            self.group_commits += 1
            self.writes += size

    def took_over(self, flow: str, outcome: str) -> None:
        """An execution that nobody worked on any more was taken over."""
        with self._lock:
            self.recovered[flow, outcome] += 1

    def lost_lease(self) -> None:
        """An execution was fenced while it ran here."""
        with self._lock:
            self.lost_leases += 1


def _timing(timings: dict[str, Timing], flow: str) -> Timing:
    timing = timings.get(flow)
    if timing is None:
        timing = timings[flow] = Timing()
    return timing


def _end_of(entry: Journaled) -> str | None:
    """Why the execution ended, if the entry says that it did."""
    if entry.exec_to == ExecutionStatus.COMMITTED:
        return str(entry.reason)
    if entry.exec_to == ExecutionStatus.ABORTED and entry.exec_from != ExecutionStatus.ABORTED:
        return code_in(entry.metadata)
    return None


@lru_cache(maxsize=256)
def code_in(metadata: str) -> str:
    """The code of an end, as its journal entry has it."""
    try:
        code = msgspec.json.decode(metadata, type=dict[str, object]).get("code")
    except msgspec.MsgspecError:
        code = None
    return code if isinstance(code, str) else "unknown"
