"""What came of one try of a step: its outcome, whatever it returned or raised, its traceback, its response as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.codec import WRITING_ERRORS
from holdfast.core.error_record import ErrorRecord
from holdfast.core.outcomes import (
    Abort,
    Outcome,
    TryFailed,
    Unrecoverable,
    outcome_of_error,
    outcome_of_return,
    tame,
)
from holdfast.core.text import describe, error_text
from holdfast.crash_points import SimulatedCrash
from holdfast.engine.run import LiveRun
from holdfast.engine.tracebacks import bounded, text_of, traceback_of
from holdfast.errors import LeaseLost, StepCancelled, WorkerStopping

RESPONSE_LIMIT = 4 << 20

_NO_FAILURES = (WorkerStopping, LeaseLost, StepCancelled)
"""What a step is stopped with for reasons that are not its own."""


def outcome_of(call: Callable[[], Any], run: LiveRun) -> Outcome:
    """How a call ended, whether it returned or raised; also the wish to exit, which is not a step's to have."""
    try:
        return _outcome_of_value(call(), run)
    except SimulatedCrash:
        raise
    except BaseException as error:
        return outcome_of_error(tame(error))


def _outcome_of_value(value: Any, run: LiveRun) -> Outcome:
    """The outcome of what a step or the cleanup returned; a cleanup has no response that it could keep."""
    return outcome_of_return(value, None if run.ending is not None else run.response)


def load_problem(run: LiveRun) -> str | None:
    """Read request and response, once; returns why that cannot be done."""
    if run.loaded:
        return None
    try:
        run.load()
    except SimulatedCrash:
        raise
    except BaseException as error:
        return _undecodable(run, tame(error))
    return None


def _undecodable(run: LiveRun, error: BaseException) -> str:
    run.traceback = traceback_of(error)
    return f"its request or response does not decode: {describe(error)}"


def _reason_of(run: LiveRun, error: BaseException) -> BaseException:
    """Why an async step ended so: one that was cancelled has failed for what it was cancelled for."""
    from asyncio import CancelledError  # noqa: PLC0415 - where a step is async it is there already

    return run.stop_error or run.fault or error if isinstance(error, CancelledError) else error


async def outcome_of_async(function: Any, run: LiveRun) -> Outcome:
    """The same for an async step; when it is cancelled, whoever asked for that knows why, but not where it was."""
    from asyncio import current_task  # noqa: PLC0415 - where a step is async it is there already

    run.task = current_task()
    try:
        return _outcome_of_value(await function(run.as_saved()), run)
    except (SimulatedCrash, GeneratorExit):
        # What is awaited is closed before the one who awaits it hears of GeneratorExit: an answer from here would get
        # lost, and it is for the outermost to give.
        raise
    except BaseException as error:
        # Not kept in a variable of this frame, which is one of those that the error holds.
        return _outcome_of_raised(run, tame(error))
    finally:
        run.task = None


def _outcome_of_raised(run: LiveRun, error: BaseException) -> Outcome:
    reason = _reason_of(run, error)
    if reason is not error:
        run.place = traceback_of(error)
    return outcome_of_error(reason)


def failure_of(run: LiveRun, outcome: Outcome) -> str | None:
    """Where the step failed, if it did; of one that had to be stopped, where it was."""
    place, run.place = run.place, None
    match outcome:
        case TryFailed(error=error):
            if isinstance(error, _NO_FAILURES):
                return None
            if place and error.__traceback__ is None:
                return bounded(f"{place}\n{text_of(error)}\n")
            return traceback_of(error)
        case Abort() | Unrecoverable():
            return traceback_of(outcome)
        case _:
            return None


def failure_in(run: LiveRun, outcome: Abort | Unrecoverable) -> ErrorRecord:
    """The error that a step gives up with: the exception it gave as the reason, or the reason itself."""
    if outcome.error is None:
        return ErrorRecord(type=type(outcome).__name__, message=error_text(outcome.reason), step=run.step)
    known = outcome.error
    return known if known.step is not None else msgspec.structs.replace(known, step=run.step)


def checked_response(run: LiveRun, response: Any) -> str:
    """The response as JSON that is sure to decode again; Unrecoverable if it is not the flow's response type."""
    try:
        encoded, run.response = run.flow.response_codec.checked(response)
    except WRITING_ERRORS as error:
        raise Unrecoverable(f"step {run.step} returned a response that cannot be saved: {error}") from None
    if len(encoded) > RESPONSE_LIMIT:
        raise Unrecoverable(
            f"step {run.step} returned a response of {len(encoded):,} bytes, the limit is {RESPONSE_LIMIT:,}"
        )
    return encoded.decode()
