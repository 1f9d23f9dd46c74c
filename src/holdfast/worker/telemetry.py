"""Counts and timings per transition and step, kept in plain dictionaries so that they cost next to nothing."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import Abort, EndCode, Unrecoverable
from holdfast.store.commands import Claim, End, Finish, FlowChange, Journaled
from holdfast.worker.run import LiveRun, traceback_of, without_engine

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

    def observe(self, changes: Sequence[FlowChange]) -> None:
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


# --- One log line for each thing that happens to a job here: claimed, a failed try, given back, ended ---
#
# A failed try is logged when it is decided on, with its exception; all else when it is durable.

log = logging.getLogger("holdfast.job")

_QUIET = frozenset({EndCode.RELEASED, EndCode.WAITING, EndCode.BACKING_OFF})
"""Nothing has gone wrong, or it was told with the failed try already."""


_BY_OTHERS = frozenset({EndCode.CRASHED, EndCode.STALLED, EndCode.PREDECESSOR, EndCode.FORCED})
"""Ends that no step of the job has asked for."""

LINES_AT_ONCE = 10
"""A job that fails may take thousands of dependents along."""


class JobLog:
    """Knows whose lines these are. Costs a look at the level while nobody listens."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id

    def claimed(self, run: LiveRun) -> None:
        """A new lease."""
        if log.isEnabledFor(logging.INFO):
            self._say(logging.INFO, "claimed", _bound(run))

    def cannot_run(self, claim: Claim, error: BaseException, problem: str) -> None:
        """The job cannot even be begun here."""
        job = claim.job
        bound = {"job_id": job.job_id, "exec_id": claim.exec_id, "flow": job.flow, "attempt": job.attempts}
        bound["outcome"] = EndCode.DEFINITION_CHANGED.value
        self._say(logging.ERROR, f"quarantined: {problem}", bound, error, traceback_of(error))

    def try_failed(
        self, run: LiveRun, error: BaseException, text: str, *, delay: float | None = None, last: bool = True
    ) -> None:
        """A try of the step failed; the next one comes after `delay`, or there is none in this execution."""
        level = logging.ERROR if delay is None and last else logging.WARNING
        if log.isEnabledFor(level):
            following = "none is left" if delay is None else f"next in {delay:.1f} s"
            traceback = run.traceback if run.ending is None else traceback_of(error)
            text = f"try {run.tries} failed, {following}: {text}"
            self._say(level, text, _bound(run, outcome="error"), error, traceback)

    def gave_up(self, run: LiveRun, outcome: Abort | Unrecoverable) -> None:
        """The step gave up because of an error that it names as the cause; without one its reason says all."""
        if outcome.__cause__ is not None or (outcome.__context__ is not None and not outcome.__suppress_context__):
            name = type(outcome).__name__
            bound = _bound(run, outcome=name.lower())
            self._say(logging.ERROR, f"{name}: {outcome.reason}", bound, outcome, run.traceback)

    def refused(self, run: LiveRun) -> None:
        """What it had to write was refused: the lease is another's."""
        self._say(logging.WARNING, "lease lost, another worker has taken over", _bound(run, outcome="lost"))

    def ended(self, run: LiveRun, write: End | Finish) -> None:
        """The execution is over, and this is what it means for the job."""
        if isinstance(write, Finish):
            if log.isEnabledFor(logging.INFO):
                bound = _bound(run, outcome=str(run.end_code or EndCode.COMPLETED), seconds=_seconds(run))
                self._say(logging.INFO, "succeeded", bound)
            return
        level = _level(write)
        if log.isEnabledFor(level):
            self._say(level, _sentence(write), _bound(run, outcome=write.code.value, seconds=_seconds(run)))

    def observe(self, changes: Sequence[FlowChange]) -> None:
        """Jobs that ended here, but not by a step of theirs: a crash loop, a stall, the end of a predecessor."""
        last: dict[str, tuple[FlowChange, str]] = {}
        for change in changes:
            entry = change.entry
            if entry.exec_to != ExecutionStatus.ABORTED or self._worker_id not in entry.actor:
                continue
            ended_now = entry.exec_from != ExecutionStatus.ABORTED
            code = code_in(entry.metadata) if ended_now else last.get(entry.job_id, (change, ""))[1]
            last[entry.job_id] = change, code
        ended = [(change, code) for change, code in last.values() if code in _BY_OTHERS and _is_end(change)]
        for change, code in ended[:LINES_AT_ONCE]:
            entry = change.entry
            bound = {"job_id": entry.job_id, "exec_id": entry.exec_id, "flow": change.flow, "step": entry.step}
            self._say(logging.ERROR, f"{entry.job_to} ({code}): {entry.reason}", {**bound, "outcome": code})
        if len(ended) > LINES_AT_ONCE:
            log.error("and %d more jobs ended so", len(ended) - LINES_AT_ONCE, extra={"worker": self._worker_id})

    def _say(
        self,
        level: int,
        text: str,
        bound: dict[str, Any],
        error: BaseException | None = None,
        traceback: str | None = None,
    ) -> None:
        if not log.isEnabledFor(level):
            return
        # In the message, too: not everybody formats what a record is bound to.
        text = f"{bound['flow']} {bound['job_id']}: {text}"
        extra = {**bound, "worker": self._worker_id}
        # By hand, because to look for the line of code that speaks takes as long as all the rest.
        record = log.makeRecord(log.name, level, __file__, 0, text, (), None, extra=extra)
        if error is not None:
            record.exc_info = (type(error), error, without_engine(error.__traceback__))
            # Formatters take this text and ask the exception for nothing, which may be odd, or endless.
            record.exc_text = traceback
        log.handle(record)


def _bound(run: LiveRun, **more: Any) -> dict[str, Any]:
    return {
        "job_id": run.job.job_id,
        "exec_id": run.exec_id,
        "flow": run.flow.name,
        "step": run.step,
        "attempt": run.job.attempts,
        **more,
    }


def _is_end(change: FlowChange) -> bool:
    return change.entry.job_to in (JobState.FAILED, JobState.QUARANTINED)


def _seconds(run: LiveRun) -> float:
    return round(time.monotonic() - run.began, 3)


def _level(end: End) -> int:
    match end.path[-1]:
        case Disposition.RETRY:
            return logging.INFO if end.code in _QUIET else logging.WARNING
        case Disposition.FAILED:
            return logging.WARNING if end.code is EndCode.CANCELLED else logging.ERROR
        case Disposition.QUARANTINED:
            return logging.ERROR


def _sentence(end: End) -> str:
    why = f": {end.error}" if end.error else ""
    match end.path[-1]:
        case Disposition.RETRY if end.wait_for is not None:
            return f"waits for job {end.wait_for}"
        case Disposition.RETRY if end.path[0] is Disposition.FAILED:
            return f"to be tried again{why}"
        case Disposition.RETRY:
            return f"given back ({end.code}){why}"
        case Disposition.FAILED:
            return f"failed ({end.code}){why}"
        case Disposition.QUARANTINED:
            return f"quarantined ({end.code}){why}"


# --- Is a worker well? Judged by what its threads have done lately, not by whether the process is there ---

PATIENCE = 30.0
"""Seconds without a round of the scheduler, or without an answer of the store, after which a worker is not well."""


class Vitals(NamedTuple):
    """What is known of a worker at one moment; times are seconds since then."""

    failure: BaseException | None
    is_ready: bool
    threads: Mapping[str, bool]
    """name → does it live?"""
    since_round: float
    since_contact: float
    since_renewal: float
    lease: float
    recovery_interval: float
    holds_jobs: bool
    writer_is_stuck: bool
    is_starved: bool


def problems(vitals: Vitals) -> list[str]:
    """What is wrong, one sentence each; none if the worker is well. All of it, not only the first."""
    patience = max(PATIENCE, 3 * vitals.recovery_interval)
    found = []
    if vitals.failure is not None:
        found.append(f"the worker cannot go on: {type(vitals.failure).__name__}")
    if not vitals.is_ready:
        found.append("the worker has not begun: the store could not be used yet")
    found += [f"the {name} thread is gone" for name, lives in vitals.threads.items() if not lives]
    if vitals.since_round > patience:
        found.append(f"the scheduler has been stuck for {vitals.since_round:.0f} s")
    if vitals.since_contact > patience:
        found.append(f"the store has not answered for {vitals.since_contact:.0f} s")
    if vitals.holds_jobs and vitals.since_renewal > vitals.lease:
        found.append(f"leases have not been renewed for {vitals.since_renewal:.0f} s")
    if vitals.writer_is_stuck:
        found.append("what was done could not be recorded for longer than a lease")
    if vitals.is_starved:
        found.append("no thread can be had for steps")
    return found
