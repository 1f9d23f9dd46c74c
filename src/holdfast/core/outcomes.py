"""How a step can end: a closed set. A step raises (or returns) one of these, or simply returns."""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

from holdfast.core.error_record import ErrorRecord, record_of
from holdfast.core.names import checked_job_id
from holdfast.core.text import describe


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
