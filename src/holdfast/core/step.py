"""How a step can end: a closed set. A step raises (or returns) one of these, or simply returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, get_args

from holdfast.core.records import Child, ErrorRecord, JobRecord, JobResult, describe, record_of
from holdfast.core.states import Disposition
from holdfast.core.values import checked_job_id

if TYPE_CHECKING:
    import logging


class StepOutcome(Exception):
    """Base of what a step may raise to steer its run."""


class Handoff(StepOutcome):
    """The work is already done: commit now with this response and skip the remaining steps."""

    def __init__(self, response: Any = None) -> None:
        super().__init__("handed off")
        self.response = response


class Abort(StepOutcome):
    """Give up: clean up, the job is failed. An operator or a new request may try again.

    An exception given as the reason is kept as data: its class, message, hint and facts become the job's error. It is
    read at once, because a kept exception keeps its frames alive. `error` hands on the error of another job.
    """

    def __init__(self, reason: str | BaseException, *, error: ErrorRecord | None = None) -> None:
        super().__init__(reason)
        self.error = record_of(reason) if isinstance(reason, BaseException) else error
        self.reason = describe(reason) if isinstance(reason, BaseException) else str(reason)


class Unrecoverable(StepOutcome):
    """Trying again can never help: clean up, the job is quarantined. Takes a reason or an exception, as Abort does."""

    def __init__(self, reason: str | BaseException, *, error: ErrorRecord | None = None) -> None:
        super().__init__(reason)
        self.error = record_of(reason) if isinstance(reason, BaseException) else error
        self.reason = describe(reason) if isinstance(reason, BaseException) else str(reason)


class Rewind(StepOutcome):
    """Go back to an earlier step and continue from there, in the same execution."""

    def __init__(self, step: str, reason: str = "") -> None:
        super().__init__(f"rewind to {step}" + (f": {reason}" if reason else ""))
        self.step = step
        self.reason = reason


class WaitFor(StepOutcome):
    """Let go of everything until that job has ended (either way), then enter this step again."""

    def __init__(self, job_id: str) -> None:
        self.job_id = checked_job_id(job_id)  # or the step would wait for nothing, over and over
        super().__init__(f"wait for job {job_id}")


class Done(StepOutcome):
    """The step returned; `response` is the response so far."""

    def __init__(self, response: Any) -> None:
        super().__init__("done")
        self.response = response


class TryFailed(StepOutcome):
    """Any other exception: the retry policy decides."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


Outcome: TypeAlias = Done | TryFailed | Handoff | Abort | Unrecoverable | Rewind | WaitFor


_OUTCOMES: tuple[type[StepOutcome], ...] = get_args(Outcome)


def tame(error: BaseException) -> BaseException:
    """The error, or one that can be looked at in the place of one whose attributes raise, its class even."""
    try:
        isinstance(error, _OUTCOMES)
        _ = error.__traceback__, error.__cause__, error.__context__, error.__suppress_context__
    except BaseException:
        return RuntimeError(f"{type(error).__name__}, an error that cannot be looked at")
    return error


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome a raised exception stands for."""
    return error if isinstance(error, _OUTCOMES) else TryFailed(error)  # type: ignore[return-value] # one of the union


def outcome_of_return(value: Any, response_so_far: Any) -> Outcome:
    """The outcome of a step that returned `value`; None keeps the response as the step left it."""
    if isinstance(value, _OUTCOMES):
        return value  # type: ignore[return-value] # one of the union
    return Done(response_so_far if value is None else value)


def outcome_of_cleanup(outcome: Outcome) -> Done | TryFailed:
    """A cleanup has succeeded if it returned nothing; whatever else it gave is a failed try, with that as its error.

    It has no step to go back to, no job to hand on and nothing to wait with: the outcomes that steer a step cannot be
    followed, and taken for success they would let the job forget what was left behind.
    """
    match outcome:
        case TryFailed():
            return outcome
        case Done(response=None):
            return outcome
        case Done(response=value):
            return TryFailed(TypeError(f"the cleanup returned {_short(value)}: one that has succeeded returns nothing"))
        case _:
            return TryFailed(outcome)


def _short(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # a value that cannot be shown is no reason to fall over
        return type(value).__name__


# --- How an execution ends: from what happened to the legal chain of dispositions that records it -------


class EndCode(StrEnum):
    """Why an execution ended; stored with it and shown to operators."""

    COMPLETED = "completed"
    HANDOFF = "handoff"
    ERROR = "error"
    ABORT = "abort"
    UNRECOVERABLE = "unrecoverable"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    CRASHED = "crashed"
    STALLED = "stalled"
    RELEASED = "released"
    ABANDONED = "abandoned"
    WAITING = "waiting"
    BACKING_OFF = "backing-off"
    PREDECESSOR = "predecessor"
    DEFINITION_CHANGED = "definition-changed"
    CLEANUP_FAILED = "cleanup-failed"
    FORCED = "forced"
    UNREADABLE = "unreadable"


INTERRUPTING_CODES = frozenset({EndCode.CRASHED, EndCode.STALLED, EndCode.TIMEOUT, EndCode.ABANDONED})
"""After these, the step that was running may have left something half made."""

CRASH_CODES = frozenset({EndCode.CRASHED, EndCode.STALLED})
"""These count against the crash limit."""

CARRYING_CODES = frozenset(
    {
        EndCode.CRASHED,
        EndCode.STALLED,
        EndCode.TIMEOUT,
        EndCode.RELEASED,
        EndCode.ABANDONED,
        EndCode.WAITING,
        EndCode.BACKING_OFF,
    }
)
"""After these, the next execution goes on counting the tries of the step; after the others it starts anew."""

CLEANUP_POSITION = -1
"""The position of the cleanup, which is not one of the steps, where tries are recorded."""

_RETRY, _FAILED, _QUARANTINED = Disposition.RETRY, Disposition.FAILED, Disposition.QUARANTINED

PATH_AFTER_FAILURE: Mapping[Disposition, tuple[Disposition, ...]] = {
    _RETRY: (_FAILED, _RETRY),
    _FAILED: (_FAILED,),
    _QUARANTINED: (_FAILED, _QUARANTINED),
}
"""Dispositions to write one after the other, so that the job takes only legal transitions (running → failed → …)."""

PATH_GIVEN_BACK: tuple[Disposition, ...] = (_RETRY,)
"""The execution did not fail, it only stopped: running → pending."""


def disposition_after_error(job: JobRecord) -> Disposition:
    """A step's tries are used up: once more while the job has failures left since it was last forgiven."""
    return _RETRY if job.failures - job.failures_forgiven + 1 < job.failure_limit else _QUARANTINED


def path_after_crash(job: JobRecord) -> tuple[Disposition, ...]:
    """The worker died: again, until it looks like a crash loop."""
    if job.crashes - job.crashes_forgiven + 1 < job.crash_limit:
        return PATH_GIVEN_BACK
    return PATH_AFTER_FAILURE[_QUARANTINED]


# --- What a step sees of the job it works for -----------------------------------------------------------

Req = TypeVar("Req", covariant=True)
Resp = TypeVar("Resp")


class Run(Protocol[Req, Resp]):
    """One execution of one job, as given to each of its steps."""

    response: Resp
    """The response so far. Change it or return a new one; it is saved when the step has finished."""

    @property
    def request(self) -> Req:
        """What the job was submitted with."""
        ...

    @property
    def job(self) -> JobRecord:
        """The job as it was when this execution began."""
        ...

    @property
    def exec_id(self) -> str:
        """This execution: the fencing token."""
        ...

    @property
    def step(self) -> str:
        """The step that is running."""
        ...

    @property
    def tries(self) -> int:
        """Which try of this step this is; the first is 1."""
        ...

    @property
    def interrupted(self) -> bool:
        """Was this step entered before by an execution that died in it? Then look for leftovers."""
        ...

    @property
    def deadline(self) -> float | None:
        """Seconds left before the step's timeout, None without one."""
        ...

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger bound to job and execution."""
        ...

    def check(self) -> None:
        """Raise StepStopped if the step should stop: timed out, cancelled, worker stopping, lease lost."""
        ...

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report progress: shown to operators, and proof to the stall detector that the step is alive."""
        ...

    def effect(self, name: str) -> AbstractContextManager[None]:
        """Mark an outside effect, so that the crash explorer kills the run on both sides of it."""
        ...

    def submit_child(self, name: str, flow: Any, request: Any, *, key: str | None = None) -> str:
        """Submit a job for this one, at most once per `name`; returns its id, again after a crash too."""
        ...

    def children(self) -> Sequence[Child]:
        """The jobs this one has submitted, with their present states."""
        ...

    def child_result(self, job_id: str) -> JobResult:
        """How another job stands, and what it answered if it has succeeded."""
        ...


class Transaction(Protocol):
    """The open transaction a commit step gets: what is written here is committed with the job, or not at all."""

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement; returns a cursor."""
        ...

    def executemany(self, sql: str, parameters: Any) -> Any:
        """Run one statement for each set of parameters."""
        ...

    def submit(self, flow: Any, request: Any, *, key: str | None = None) -> str:
        """Submit another job that exists only if this transaction commits."""
        ...
