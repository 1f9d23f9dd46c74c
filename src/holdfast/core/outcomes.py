"""How a step can end: a closed set. A step raises (or returns) one of these, or simply returns."""

from __future__ import annotations

from typing import Any, TypeAlias


class StepOutcome(Exception):
    """Base of what a step may raise to steer its run."""


class Handoff(StepOutcome):
    """The work is already done: commit now with this response and skip the remaining steps."""

    def __init__(self, response: Any = None) -> None:
        super().__init__("handed off")
        self.response = response


class Abort(StepOutcome):
    """Give up: clean up, the job is failed. An operator or a new request may try again."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # many an exception is handed on as the reason


class Unrecoverable(StepOutcome):
    """Trying again can never help: clean up, the job is quarantined."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = str(reason)  # many an exception is handed on as the reason


class Rewind(StepOutcome):
    """Go back to an earlier step and continue from there, in the same execution."""

    def __init__(self, step: str, reason: str = "") -> None:
        super().__init__(f"rewind to {step}" + (f": {reason}" if reason else ""))
        self.step = step
        self.reason = reason


class WaitFor(StepOutcome):
    """Let go of everything until that job has ended (either way), then enter this step again."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"wait for job {job_id}")
        self.job_id = job_id


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


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome a raised exception stands for."""
    if isinstance(error, (Handoff, Abort, Unrecoverable, Rewind, WaitFor, TryFailed)):
        return error
    return TryFailed(error)


def outcome_of_return(value: Any, response_so_far: Any) -> Outcome:
    """The outcome of a step that returned `value`; None keeps the response as the step left it."""
    if isinstance(value, (Handoff, Abort, Unrecoverable, Rewind, WaitFor)):
        return value
    return Done(response_so_far if value is None else value)
