"""The writes by which a run leaves its worker: committed, ended, given back, or refused. Pure."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.ending import CLEANUP_POSITION, PATH_AFTER_FAILURE, PATH_GIVEN_BACK, EndCode
from holdfast.core.error_record import ErrorRecord
from holdfast.core.records import Ending
from holdfast.core.states import Disposition
from holdfast.engine.run import LiveRun
from holdfast.store.messages import Claim, Commit, End, StoreTransaction


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
