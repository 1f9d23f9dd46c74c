"""What operators may do to a job: only through legal transitions, always journaled."""

from __future__ import annotations

from holdfast.core.ending import PATH_AFTER_FAILURE, EndCode, path_after_crash
from holdfast.core.records import ExecutionRecord, JobRecord
from holdfast.core.stall import StallVerdict, stall_verdict
from holdfast.core.states import (
    LIVE_STATUSES,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
    check_job_transition,
)
from holdfast.errors import (
    InvalidStateTransitionError,
    JobNotFoundError,
    KeyInUseError,
    PredecessorFailedError,
    StateTransitionRaceError,
)
from holdfast.store.messages import End, Journaled
from holdfast.store.rows import executions_of, job_of
from holdfast.store.session import Session
from holdfast.store.verbs.settling import (
    change_disposition,
    end_execution,
    release_after_failure,
    take_out_waiting,
)


def cancel(session: Session, job_id: str, *, actor: str, reason: str) -> JobState:
    """Ask for the end of a job; one that never ran ends at once, the others after their cleanup."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is JobState.PENDING and job.attempt == 0:
        take_out_waiting(session, job_id, code=EndCode.CANCELLED, actor=actor, reason=reason)
        return JobState.FAILED
    if job.state is JobState.RUNNING and latest_execution(session, job_id).status is ExecutionStatus.COMMITTED:
        raise InvalidStateTransitionError(job.state, JobState.FAILED, hint=f"job {job_id} has committed already")
    if job.state in (JobState.SUCCEEDED, JobState.FAILED):
        raise InvalidStateTransitionError(job.state, JobState.FAILED, hint=f"job {job_id} has ended already")
    if job.state is JobState.QUARANTINED:
        # Taken out of quarantine only to be cleaned up: the worker that claims it sees the request first.
        retry(session, job_id, actor=actor, reason=reason, from_state=JobState.QUARANTINED)
    session.run("request_cancel", job_id=job_id, reason=reason)
    state = load_job(session, job_id).state
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=None,
            job_from=state,
            job_to=state,
            exec_from=None,
            exec_to=None,
            reason=f"cancel requested: {reason}",
        )
    )
    return state


def retry(session: Session, job_id: str, *, actor: str, reason: str, from_state: JobState) -> None:
    """failed or quarantined → pending, with a fresh budget."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is not from_state:
        check_job_transition(job.state, JobState.PENDING)
        raise InvalidStateTransitionError(
            job.state,
            JobState.PENDING,
            hint=f"job {job_id} is not {from_state}: retry is for failed, release for quarantined",
        )
    if job.key is not None:
        holder = session.first("find_unfinished_key", flow=job.flow, key=job.key)
        if holder is not None:
            raise KeyInUseError(
                f"job {holder} of flow {job.flow} has the key {job.key!r} now", hint="wait for it, or cancel it first"
            )
    waits_for = _predecessor_to_wait_for(session, job)
    latest = latest_execution(session, job_id)
    assert latest.disposition is not None
    change_disposition(
        session, job_id, latest.exec_id, latest.disposition, Disposition.RETRY, actor=actor, reason=reason
    )
    _forget_what_a_cleanup_may_have_undone(session, job)
    session.run("forgive", job_id=job_id, hold="after" if waits_for else "none", waits_for=waits_for)


def _forget_what_a_cleanup_may_have_undone(session: Session, job: JobRecord) -> None:
    if job.ending is not None:
        # Its cleanup has begun and may have undone some of its steps: only the first one is sure to be right.
        session.run("forget_steps", job_id=job.job_id, position=0)


def _predecessor_to_wait_for(session: Session, job: JobRecord) -> str | None:
    """The order between jobs outlives their failures; one that was pruned has nothing to say any more."""
    if job.run_after is None:
        return None
    # Or it could end unseen between this look and the waiting.
    session.lock_jobs([job.run_after])
    state = session.first("job_state", job_id=job.run_after)
    if state in (JobState.FAILED, JobState.QUARANTINED):
        raise PredecessorFailedError(
            f"job {job.job_id} runs after {job.run_after}, which is {state}",
            hint=f"bring job {job.run_after} back first",
        )
    return job.run_after if state in UNFINISHED_STATES else None


def fail(session: Session, job_id: str, *, actor: str, reason: str, quarantine: bool) -> None:
    """→ failed or quarantined, at once and without cleanup, fencing whoever works on the job."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    goal = Disposition.QUARANTINED if quarantine else Disposition.FAILED
    path = PATH_AFTER_FAILURE[goal]
    if job.state is JobState.PENDING:
        take_out_waiting(session, job_id, code=EndCode.FORCED, actor=actor, reason=reason, path=path)
        return
    latest = latest_execution(session, job_id)
    if latest.status in LIVE_STATUSES:
        _end_by_force(session, latest, path, actor=actor, reason=reason)
        return
    wanted = JobState.QUARANTINED if quarantine else JobState.FAILED
    if latest.status is ExecutionStatus.COMMITTED:
        raise InvalidStateTransitionError(
            job.state, wanted, hint=f"job {job_id} has committed and can only be finished"
        )
    check_job_transition(job.state, wanted)
    if job.state is wanted:
        return
    assert latest.disposition is not None
    change_disposition(session, job_id, latest.exec_id, latest.disposition, goal, actor=actor, reason=reason)
    release_after_failure(session, job_id, actor=actor)


def restart(session: Session, job_id: str, *, actor: str, reason: str) -> None:
    """running → failed → pending in one go, so that nobody who waits for the job is told that it failed."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is not JobState.RUNNING:
        raise InvalidStateTransitionError(job.state, JobState.PENDING, hint=f"job {job_id} is not running")
    latest = latest_execution(session, job_id)
    if latest.status not in LIVE_STATUSES:
        raise InvalidStateTransitionError(job.state, JobState.PENDING, hint=f"job {job_id} has committed already")
    _end_by_force(session, latest, PATH_AFTER_FAILURE[Disposition.RETRY], actor=actor, reason=reason)
    _forget_what_a_cleanup_may_have_undone(session, job)
    session.run("forgive", job_id=job_id, hold="none", waits_for=None)


def _end_by_force(
    session: Session, execution: ExecutionRecord, path: tuple[Disposition, ...], *, actor: str, reason: str
) -> None:
    end = End(
        job_id=execution.job_id,
        exec_id=execution.exec_id,
        path=path,
        code=EndCode.FORCED,
        error=reason,
        position=execution.position,
        tries=execution.tries,
    )
    end_execution(session, end, status=execution.status, actor=actor)


def stop_stalled(session: Session, exec_id: str, *, actor: str, not_before: int, reason: str) -> bool:
    """Fence an execution that makes no progress; False if it has moved on meanwhile."""
    rows = executions_of(session.run("execution", exec_id=exec_id))
    if not rows:
        return False
    session.lock_jobs([rows[0].job_id])
    execution = executions_of(session.run("execution", exec_id=exec_id))[0]
    if execution.status not in LIVE_STATUSES:
        return False
    job = load_job(session, execution.job_id)
    last = session.first("last_progress", exec_id=exec_id)
    verdict = stall_verdict(progressed_at=last, now=session.now, stall_ms=job.stall_ms, retry_at=execution.retry_at)
    if verdict is not StallVerdict.STALLED:
        return False
    goal = path_after_crash(job)[-1]
    end = End(
        job_id=job.job_id,
        exec_id=exec_id,
        path=PATH_AFTER_FAILURE[goal],
        code=EndCode.STALLED,
        error=f"no progress for {(session.now - last) // 1000} s" + (f": {reason}" if reason else ""),
        position=execution.position,
        tries=execution.tries,
        not_before=not_before,
    )
    end_execution(session, end, status=execution.status, actor=actor)
    return True


def reproject(session: Session, job_id: str, *, actor: str, reason: str) -> JobState:
    """Make the stored state what the executions say it is; the journal notes what it was found to be."""
    session.lock_jobs([job_id])
    stored = session.first("job_state", job_id=job_id)
    projected = session.first("projected_state", job_id=job_id)
    if stored is None or projected is None:
        raise JobNotFoundError(job_id)
    if stored != projected:
        session.run("reproject", job_id=job_id, state=projected)
        session.journal(
            Journaled(
                job_id=job_id,
                actor=actor,
                exec_id=None,
                job_from=session.first("journaled_state", job_id=job_id),
                job_to=projected,
                exec_from=None,
                exec_to=None,
                reason=f"stored state was {stored}: {reason}",
            )
        )
    return JobState(projected)


def load_job(session: Session, job_id: str) -> JobRecord:
    """The job, as this transaction sees it."""
    row = session.run("job", job_id=job_id).fetchone()
    if row is None:
        raise JobNotFoundError(job_id)
    return job_of(row)


def latest_execution(session: Session, job_id: str) -> ExecutionRecord:
    """The attempt that speaks for the job."""
    rows = executions_of(session.run("latest_execution", job_id=job_id))
    if not rows:
        raise StateTransitionRaceError(f"job {job_id} has no execution")
    return rows[0]
