"""What operators may do to a job: only through legal transitions, always journaled.

A wish that has come true already is answered the same and changes nothing. One that the table forbids is an
InvalidStateTransitionError; one that the table would have allowed when the operator looked (`seen`) is a
StateTransitionRaceError, and says where the job is now.
"""

from __future__ import annotations

import logging
from typing import NamedTuple, NoReturn

import msgspec

from holdfast.core.hash_chain import NOTHING, Evidence, metadata_of
from holdfast.core.progress import StallVerdict, stall_limit, stall_verdict
from holdfast.core.records import ExecutionRecord, JobRecord, storable
from holdfast.core.states import (
    LIVE_STATUSES,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
    check_job_transition,
)
from holdfast.core.step import PATH_AFTER_FAILURE, EndCode, path_after_crash
from holdfast.errors import (
    InvalidStateTransitionError,
    JobMovedOnError,
    JobNotFoundError,
    KeyInUseError,
    PredecessorFailedError,
    StateTransitionRaceError,
)
from holdfast.store.commands import End, Journaled
from holdfast.store.rows import executions_of, job_of, running_steps
from holdfast.store.session import Session, to_json
from holdfast.store.settle import (
    change_disposition,
    end_execution,
    forget_steps,
    release_after_failure,
    step_of,
    take_out_waiting,
)

log = logging.getLogger("holdfast.operators")


def refuse_moved_on(session: Session, job_id: str, expected_head: str | None) -> None:
    """Raise JobMovedOnError unless the job's journal ends with this hash, and keep it so until the transaction ends."""
    if expected_head is None:
        return
    session.lock_jobs([job_id])
    heads = [head for _, _, head in session.journal_heads([job_id])]
    if not heads:
        load_job(session, job_id)  # raises, if there is no such job
    if heads != [expected_head]:
        raise JobMovedOnError(job_id, expected=expected_head, head=heads[0] if heads else "")


# --- one job after the other ------------------------------------------------------------------------------


def cancel(
    session: Session, job_id: str, *, actor: str, reason: str, children: bool = True, seen: JobState | None = None
) -> JobState:
    """Ask for the end of a job; one that never ran ends at once, the others after their cleanup.

    With `children`, that those are to be cancelled too is on record; see cancellation.py.
    """
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is JobState.SUCCEEDED:
        refuse(job, JobState.FAILED, seen, hint=f"job {job_id} has succeeded, which is final")
    if job.state is JobState.RUNNING and latest_execution(session, job_id).status is ExecutionStatus.COMMITTED:
        refuse(job, JobState.FAILED, seen, hint=f"job {job_id} has committed and can only be finished")
    if job.state is JobState.FAILED or job.cancel_reason is not None:
        already(job, "cancel")
    else:
        _cancel(session, job, actor=actor, reason=reason)
    if children:
        waited_for = job.waits_for if job.hold == "child" else None
        mark_children(session, job_id, waited_for=waited_for, actor=actor, reason=reason)
    return load_job(session, job_id).state


def mark_children(session: Session, job_id: str, *, waited_for: str | None, actor: str, reason: str) -> None:
    """Put on record that the children of a job, if it has unfinished ones, are to be cancelled."""
    session.run(
        "insert_cancellation",
        job_id=job_id,
        waited_for=waited_for,
        actor=storable(actor),
        reason=storable(reason),
        metadata=to_json(session.metadata),
        now=session.now,
    )


def cancel_unfinished(session: Session, job_id: str, *, actor: str, why: str, reason: str) -> None:
    """Cancel a job along with another, and its children, unless it has ended or committed or is being cancelled."""
    job = load_job(session, job_id)
    if job.state not in UNFINISHED_STATES or job.cancel_reason is not None:
        return
    if job.state is JobState.RUNNING and latest_execution(session, job_id).status is ExecutionStatus.COMMITTED:
        return
    waited_for = job.waits_for if job.hold == "child" else None
    _cancel(session, job, actor=actor, reason=f"{why}: {reason}")
    mark_children(session, job_id, waited_for=waited_for, actor=actor, reason=reason)


def _cancel(session: Session, job: JobRecord, *, actor: str, reason: str) -> None:
    session.changed_work = True  # whoever runs the job has to hear of it
    if job.state is JobState.PENDING and job.attempt == 0:
        take_out_waiting(session, job.job_id, code=EndCode.CANCELLED, actor=actor, reason=reason)
        return
    if job.state is JobState.QUARANTINED:
        # Taken out of quarantine only to be cleaned up: the worker that claims it sees the request first.
        # What it was to run after is no matter any more.
        _refuse_key_in_use(session, job)
        _bring_back(session, job, waits_for=None, actor=actor, reason=reason)
    session.run("request_cancel", job_id=job.job_id, reason=storable(reason))
    state = JobState.PENDING if job.state is JobState.QUARANTINED else job.state
    _journal_same_state(session, job.job_id, state, actor=actor, reason=f"cancel requested: {reason}")


def retry(
    session: Session, job_id: str, *, actor: str, reason: str, from_state: JobState, seen: JobState | None = None
) -> JobState:
    """failed or quarantined → pending, with a fresh budget."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is JobState.PENDING and job.cancel_reason is None:
        already(job, "retry")
        return job.state
    if job.state is not from_state:
        refuse(job, JobState.PENDING, seen, hint=_instead_of_retry(job, from_state))
    _refuse_key_in_use(session, job)
    _bring_back(session, job, waits_for=_predecessor_to_wait_for(session, job), actor=actor, reason=reason)
    return JobState.PENDING


def _refuse_key_in_use(session: Session, job: JobRecord) -> None:
    holder = None if job.key is None else session.first("find_unfinished_key", flow=job.flow, key=job.key)
    if holder is not None:
        raise KeyInUseError(
            f"job {holder} of flow {job.flow} has the key {job.key!r} now", hint="wait for it, or cancel it first"
        )


def _bring_back(session: Session, job: JobRecord, *, waits_for: str | None, actor: str, reason: str) -> None:
    """failed or quarantined → pending."""
    latest = latest_execution(session, job.job_id)
    assert latest.disposition is not None
    evidence = _forget_what_a_cleanup_may_have_undone(session, job)
    change_disposition(
        session,
        job.job_id,
        latest.exec_id,
        latest.disposition,
        Disposition.RETRY,
        actor=actor,
        reason=reason,
        evidence=msgspec.structs.replace(evidence, wait_for=waits_for),
    )
    session.run("forgive", job_id=job.job_id, hold="after" if waits_for else "none", waits_for=waits_for)
    # Or the rest of an earlier cancellation would reach the children it is going to have.
    session.run("drop_cancellation", job_id=job.job_id)


def _instead_of_retry(job: JobRecord, from_state: JobState) -> str:
    match job.state:
        case JobState.PENDING:
            return f"job {job.job_id} is being cancelled: try again when it is failed"
        case JobState.RUNNING:
            return (
                f"job {job.job_id} is running: wait for its end, or begin anew: holdfast job force {job.job_id} pending"
            )
        case JobState.SUCCEEDED:
            return f"job {job.job_id} has succeeded, which is final: submit a new one"
        case JobState.FAILED | JobState.QUARANTINED:
            return f"job {job.job_id} is not {from_state}: retry is for failed, release for quarantined"


def _forget_what_a_cleanup_may_have_undone(session: Session, job: JobRecord) -> Evidence:
    """A fresh budget, and a fresh start where it is needed: what the journal has to say about it."""
    if job.ending is None:
        return Evidence(forgiven=True)
    # Its cleanup has begun and may have undone some of its steps: only the first one is sure to be right.
    return Evidence(forgiven=True, steps=forget_steps(session, job.job_id, 0))


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


def reschedule(
    session: Session,
    job_id: str,
    *,
    actor: str,
    reason: str,
    not_before: int | None,
    priority: int | None,
    queue: str | None,
) -> JobState:
    """pending → pending, at another time, in another queue or with another priority; None leaves what is there."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is not JobState.PENDING:
        refuse(job, JobState.PENDING, None, hint=f"job {job_id} is {job.state}: only a pending one can be rescheduled")
    if job.cancel_reason is not None:
        refuse(job, JobState.PENDING, None, hint=f"job {job_id} is being cancelled")
    wanted: dict[str, str | int | None] = {"not_before": not_before, "priority": priority, "queue": queue}
    before: dict[str, str | int] = {"not_before": job.not_before, "priority": job.priority, "queue": job.queue}
    changed = {name: value for name, value in wanted.items() if value is not None and value != before[name]}
    if not changed:
        already(job, "reschedule")
        return job.state
    if "queue" in changed:
        session.run("insert_queue", name=queue)
    session.run("permit", job_id=job_id, act="reschedule")
    session.run("reschedule", job_id=job_id, now=session.now, **{**before, **changed})
    session.run("end_permit", job_id=job_id, act="reschedule")
    session.changed_work = True
    evidence = Evidence(rescheduled={name: (before[name], value) for name, value in changed.items()})
    _journal_same_state(session, job_id, job.state, actor=actor, reason=f"rescheduled: {reason}", evidence=evidence)
    return job.state


# --- by force ---------------------------------------------------------------------------------------------


def fail(
    session: Session, job_id: str, *, actor: str, reason: str, quarantine: bool, seen: JobState | None = None
) -> JobState:
    """→ failed or quarantined, at once and without cleanup, fencing whoever works on the job."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    goal = Disposition.QUARANTINED if quarantine else Disposition.FAILED
    wanted = JobState.QUARANTINED if quarantine else JobState.FAILED
    if job.state is wanted:
        already(job, "force")
        return wanted
    _refuse_if_moved(job, wanted, seen)
    path = PATH_AFTER_FAILURE[goal]
    if job.state is JobState.PENDING:
        take_out_waiting(session, job_id, code=EndCode.FORCED, actor=actor, reason=reason, path=path)
        return wanted
    latest = latest_execution(session, job_id)
    if latest.status in LIVE_STATUSES:
        _end_by_force(session, latest, path, actor=actor, reason=reason)
        return wanted
    if latest.status is ExecutionStatus.COMMITTED:
        refuse(job, wanted, seen, hint=f"job {job_id} has committed and can only be finished")
    _check(job, wanted, seen)
    assert latest.disposition is not None
    change_disposition(session, job_id, latest.exec_id, latest.disposition, goal, actor=actor, reason=reason)
    release_after_failure(session, [job_id])
    return wanted


def restart(session: Session, job_id: str, *, actor: str, reason: str, seen: JobState | None = None) -> JobState:
    """running → failed → pending in one go, so that nobody who waits for the job is told that it failed."""
    session.lock_jobs([job_id])
    job = load_job(session, job_id)
    if job.state is JobState.PENDING:
        already(job, "restart")
        return job.state
    _refuse_if_moved(job, JobState.PENDING, seen)
    if job.state is not JobState.RUNNING:
        refuse(job, JobState.PENDING, seen, hint=f"job {job_id} is not running")
    latest = latest_execution(session, job_id)
    if latest.status not in LIVE_STATUSES:
        refuse(job, JobState.PENDING, seen, hint=f"job {job_id} has committed and can only be finished")
    _forget_what_a_cleanup_may_have_undone(session, job)
    path = PATH_AFTER_FAILURE[Disposition.RETRY]
    _end_by_force(session, latest, path, actor=actor, reason=reason, forgiven=True)
    session.run("forgive", job_id=job_id, hold="none", waits_for=None)
    session.run("drop_cancellation", job_id=job_id)
    return JobState.PENDING


def _end_by_force(
    session: Session,
    execution: ExecutionRecord,
    path: tuple[Disposition, ...],
    *,
    actor: str,
    reason: str,
    forgiven: bool = False,
) -> None:
    end = End(
        job_id=execution.job_id,
        exec_id=execution.exec_id,
        path=path,
        code=EndCode.FORCED,
        error=reason,
        step=step_of(session, execution.job_id),
        position=execution.position,
        tries=execution.tries,
    )
    end_execution(session, end, status=execution.status, actor=actor, forgiven=forgiven)


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
    patience = stall_limit(job, next(iter(running_steps(session, [job.job_id])), None))
    verdict = stall_verdict(progressed_at=last, now=session.now, stall_ms=patience, retry_at=execution.retry_at)
    if verdict is not StallVerdict.STALLED:
        return False
    goal = path_after_crash(job)[-1]
    end = End(
        job_id=job.job_id,
        exec_id=exec_id,
        path=PATH_AFTER_FAILURE[goal],
        code=EndCode.STALLED,
        error=f"no progress for {(session.now - last) // 1000} s" + (f": {reason}" if reason else ""),
        step=step_of(session, job.job_id),
        position=execution.position,
        tries=execution.tries,
        not_before=not_before,
    )
    end_execution(session, end, status=execution.status, actor=actor)
    return True


# --- shared -----------------------------------------------------------------------------------------------


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


def already(job: JobRecord, action: str) -> None:
    """The wish has come true already: nothing is written."""
    log.debug("%s: job %s is %s already", action, job.job_id, job.state, extra={"job_id": job.job_id})


def log_refusal(job_id: str, error: InvalidStateTransitionError) -> None:
    """An invalid transition was asked for: somebody or something has a wrong idea of the job."""
    log.error("job %s: %s", job_id, error, extra={"job_id": job_id})


def refuse(job: JobRecord, wanted: JobState, seen: JobState | None, *, hint: str) -> NoReturn:
    """The job cannot go there from where it is: a lost race if it could when the operator looked."""
    if seen is not None and seen is not job.state:
        raise StateTransitionRaceError(
            f"job {job.job_id} was {seen} a moment ago and is {job.state} now; nothing was changed",
            state=job.state,
            hint=hint,
        )
    error = InvalidStateTransitionError(job.state, wanted, hint=hint)
    log_refusal(job.job_id, error)
    raise error


def _refuse_if_moved(job: JobRecord, wanted: JobState, seen: JobState | None) -> None:
    """The way that was shown to the operator began somewhere else."""
    if seen is not None and seen is not job.state:
        refuse(job, wanted, seen, hint=f"look again: holdfast job show {job.job_id}")


def _check(job: JobRecord, wanted: JobState, seen: JobState | None) -> None:
    try:
        check_job_transition(job.state, wanted)
    except InvalidStateTransitionError as error:
        refuse(job, wanted, seen, hint=error.hint or "")


def _journal_same_state(
    session: Session, job_id: str, state: JobState, *, actor: str, reason: str, evidence: Evidence = NOTHING
) -> None:
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=None,
            job_from=state,
            job_to=state,
            exec_from=None,
            exec_to=None,
            reason=reason,
            metadata=metadata_of(evidence),
        )
    )


# --- A cancellation goes on to the children, and theirs: a few per transaction, whoever continues it ----
#
# What is still to be done is on record from the moment the parent is cancelled, so that a process that dies in between
# leaves it to the next worker. Each child is looked at once, from the newest to the oldest: one that cannot be
# cancelled, because others want it or because its row cannot be read, holds up nobody.

CANCEL_BATCH = 100
"""So many in one transaction: others can write between two of them."""


class Cancellation(NamedTuple):
    """A job whose children are being cancelled."""

    job_id: str
    waited_for: str | None
    before: str
    actor: str
    reason: str
    metadata: str


def cancel_some(session: Session, *, limit: int = CANCEL_BATCH) -> str | None:
    """Cancel the next few children of the cancellation that has waited longest; who asked for it, if anybody."""
    row = session.run("next_cancellation").fetchone()
    if row is None:
        return None
    one = Cancellation(*row)
    children = _next_children(session, one, limit)
    if len(children) < limit:
        session.run("drop_cancellation", job_id=one.job_id)
    else:
        session.run("advance_cancellation", job_id=one.job_id, before=children[-1][0])
    session.lock_jobs(job_id for job_id, _ in children)
    session.metadata = msgspec.json.decode(one.metadata)
    for job_id, is_child in children:
        why = (
            f"cancelled with its parent {one.job_id}"
            if is_child
            else f"cancelled with {one.job_id}, which waited for it"
        )
        cancel_unfinished(session, job_id, actor=one.actor, why=why, reason=one.reason)
    return one.actor


def skip_one(session: Session) -> str | None:
    """Leave the next child alone: it cannot be cancelled. Returns which one it is."""
    row = session.run("next_cancellation").fetchone()
    if row is None:
        return None
    one = Cancellation(*row)
    children = _next_children(session, one, 1)
    if not children:
        session.run("drop_cancellation", job_id=one.job_id)
        return None
    session.run("advance_cancellation", job_id=one.job_id, before=children[0][0])
    return children[0][0]


def _next_children(session: Session, one: Cancellation, limit: int) -> list[tuple[str, bool]]:
    """Which jobs, and whether they are children of the job."""
    rows = session.run(
        "cancellable", job_id=one.job_id, waited_for=one.waited_for, before=one.before, limit=limit
    ).fetchall()
    return [(job_id, bool(is_child)) for job_id, is_child in rows]
