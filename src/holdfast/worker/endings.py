"""What is to be done next with a run: the executor decides it, the worker and the test driver do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.core.records import Ending, ErrorRecord, describe, error_text
from holdfast.core.states import Disposition
from holdfast.core.step import (
    CLEANUP_POSITION,
    PATH_AFTER_FAILURE,
    PATH_GIVEN_BACK,
    Abort,
    EndCode,
    Outcome,
    TryFailed,
    Unrecoverable,
    outcome_of_error,
    outcome_of_return,
    tame,
)
from holdfast.core.values import WRITING_ERRORS
from holdfast.crash_points import SimulatedCrash
from holdfast.errors import LeaseLost, StepCancelled, WorkerStopping
from holdfast.store.commands import Claim, Commit, End, StoreTransaction, Write
from holdfast.worker.run import LiveRun, bounded, text_of, traceback_of


class Perform(msgspec.Struct, frozen=True):
    """Run the current step (or the cleanup)."""


class Sleep(msgspec.Struct, frozen=True):
    """Run the current step again, but not before that time (ms)."""

    until: int


class Send(msgspec.Struct, frozen=True):
    """Have this written."""

    write: Write


class Gone(msgspec.Struct, frozen=True):
    """The run has ended here."""

    lost: bool = False


Next: TypeAlias = Perform | Sleep | Send | Gone


# --- What came of one try of a step: its outcome, whatever it returned or raised, its traceback, its response as
# text.

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


class UnreadableRun(NamedTuple):
    """Why a job cannot go on here."""

    code: EndCode
    problem: str


def refusal_of(run: LiveRun) -> UnreadableRun | None:
    """Read request and response, once; returns why that cannot be done."""
    if run.loaded:
        return None
    try:
        run.load()
    except SimulatedCrash:
        raise
    except BaseException as error:
        tamed = tame(error)
        run.traceback = traceback_of(tamed)
        if run.request_loaded and run.saved_response is None:
            # The definition is what it was; its function does not work for this request.
            problem = f"the flow's first response cannot be made: {describe(tamed)}"
            return UnreadableRun(EndCode.UNRECOVERABLE, problem)
        return UnreadableRun(EndCode.DEFINITION_CHANGED, f"its request or response does not decode: {describe(tamed)}")
    return None


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


# --- The writes by which a run leaves its worker: committed, ended, given back, or refused. Pure --------


def committed(
    run: LiveRun,
    code: EndCode,
    *,
    response: str | None = None,
    effect: Callable[[StoreTransaction], str] | None = None,
) -> Commit:
    """Its last step is done: with a response, or with an effect that gives one."""
    return Commit(
        job_id=run.job.job_id,
        exec_id=run.exec_id,
        position=run.position,
        step=run.current.name,
        tries=max(1, run.tries),
        started_at=run.step_started_at,
        code=code,
        response=response,
        effect=effect,
    )


def given_back(run: LiveRun, code: EndCode) -> End:
    """The job has not failed: it goes on elsewhere, from this very step."""
    # A try that was only interrupted does not count; one that was abandoned does.
    interrupted = run.inside and code is EndCode.RELEASED
    return End(
        job_id=run.job.job_id,
        exec_id=run.exec_id,
        path=PATH_GIVEN_BACK,
        code=code,
        step=run.step,
        position=CLEANUP_POSITION if run.ending else run.position,
        tries=run.tries - 1 if interrupted else run.tries,
        not_before=run.retry_at,
    )


def given_back_unbegun(claim: Claim) -> End:
    """The job was claimed and nothing was done with it: it goes back as it came."""
    return End(
        job_id=claim.job.job_id,
        exec_id=claim.exec_id,
        path=PATH_GIVEN_BACK,
        code=EndCode.RELEASED,
        position=CLEANUP_POSITION if claim.job.ending is not None else claim.position,
        tries=claim.tries,
    )


def failed_for_now(run: LiveRun, code: EndCode, problem: str, *, failure: ErrorRecord | None, not_before: int) -> End:
    """The execution has failed, and the job will have another one."""
    return End(
        job_id=run.job.job_id,
        exec_id=run.exec_id,
        path=PATH_AFTER_FAILURE[Disposition.RETRY],
        code=code,
        error=problem,
        step=run.step,
        position=run.position,
        not_before=not_before,
        traceback=run.traceback,
        failure=failure,
    )


def ended(run: LiveRun, ending: Ending, *, cleaned: bool) -> End:
    """The job has ended so."""
    return End(
        job_id=run.job.job_id,
        exec_id=run.exec_id,
        path=PATH_AFTER_FAILURE[ending.disposition],
        code=EndCode(ending.code),
        error=ending.error,
        step=run.step,
        position=run.position,
        # After a cleanup nothing of the finished steps is left, so a retry has to begin at the first one.
        forget_steps=cleaned,
        traceback=run.traceback,
        failure=ending.failure,
    )


def refused(claim: Claim, code: EndCode, problem: str, traceback: str | None = None) -> End:
    """The job cannot run here."""
    return End(
        job_id=claim.job.job_id,
        exec_id=claim.exec_id,
        path=PATH_AFTER_FAILURE[Disposition.QUARANTINED],
        code=code,
        error=problem,
        position=claim.position,
        traceback=traceback,
    )
