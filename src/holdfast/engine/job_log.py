"""One log line for each thing that happens to a job here: claimed, a failed try, given back, ended.

A failed try is logged when it is decided on, with its exception; all else when it is durable.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from holdfast.core.ending import EndCode
from holdfast.core.outcomes import Abort, Unrecoverable
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.engine.run import LiveRun
from holdfast.engine.telemetry import code_in
from holdfast.engine.tracebacks import traceback_of, without_engine
from holdfast.store.changes import Change
from holdfast.store.messages import Claim, End, Finish

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

    def observe(self, changes: Sequence[Change]) -> None:
        """Jobs that ended here, but not by a step of theirs: a crash loop, a stall, the end of a predecessor."""
        last: dict[str, tuple[Change, str]] = {}
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


def _is_end(change: Change) -> bool:
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
