"""The ends of executions, and what they mean for the job and for those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.ending import CRASH_CODES, EndCode
from holdfast.core.states import (
    STATE_OF_DISPOSITION,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
)
from holdfast.errors import CycleError, JobNotFoundError
from holdfast.store.identifiers import new_ulid
from holdfast.store.messages import End, Journaled
from holdfast.store.session import Session, to_json, without_nul

SETTLED = frozenset({Disposition.FAILED, Disposition.QUARANTINED})


def end_execution(session: Session, end: End, *, status: ExecutionStatus, actor: str) -> None:
    """Abort a live execution through the dispositions of `end.path`; the caller has passed the fence."""
    if end.wait_for is not None:
        _refuse_waiting_for_ever(session, end.job_id, end.wait_for)
    if end.forget_steps:
        session.run("forget_steps", job_id=end.job_id, position=0)
    _abort(session, end, status=status, actor=actor)
    if end.path[-1] in SETTLED:
        release_after_failure(session, end.job_id, actor=actor)


def take_out_waiting(
    session: Session,
    job_id: str,
    *,
    code: EndCode,
    actor: str,
    reason: str,
    path: tuple[Disposition, ...] = (Disposition.FAILED,),
) -> None:
    """pending → running → failed (…), under an execution of the actor's own, and on to those who wait for it."""
    _abort_waiting(session, job_id, code=code, actor=actor, reason=reason, path=path)
    release_after_failure(session, job_id, actor=actor)


def release_after_failure(session: Session, job_id: str, *, actor: str) -> None:
    """The job has ended without success: parents look at it, and dependents end with that reason, and theirs too."""
    ended = [job_id]
    while ended:
        job_id = ended.pop()
        session.run("release_parents", job_id=job_id)
        for (dependent,) in session.run("dependents", job_id=job_id).fetchall():
            reason = f"predecessor {job_id} ended without success"
            _abort_waiting(session, dependent, code=EndCode.PREDECESSOR, actor=actor, reason=reason)
            ended.append(dependent)


def release_after_success(session: Session, jobs: Sequence[str]) -> None:
    """The jobs have succeeded: whoever waited for one of them may start."""
    session.run("release_waiting", batch=to_json(jobs), now=session.now)


def change_disposition(
    session: Session, job_id: str, exec_id: str, before: Disposition, after: Disposition, *, actor: str, reason: str
) -> None:
    """An ended job moves on: failed or quarantined → pending, failed → quarantined."""
    session.run("change_disposition", exec_id=exec_id, disposition=after)
    session.run("touch_job", job_id=job_id, now=session.now)
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=exec_id,
            job_from=STATE_OF_DISPOSITION[before],
            job_to=STATE_OF_DISPOSITION[after],
            exec_from=ExecutionStatus.ABORTED,
            exec_to=ExecutionStatus.ABORTED,
            reason=reason,
        )
    )


def _abort_waiting(
    session: Session,
    job_id: str,
    *,
    code: EndCode,
    actor: str,
    reason: str,
    path: tuple[Disposition, ...] = (Disposition.FAILED,),
) -> None:
    exec_id = new_ulid(session.now)
    session.run("insert_execution", exec_id=exec_id, job_id=job_id, actor=actor, now=session.now)
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=exec_id,
            job_from=JobState.PENDING,
            job_to=JobState.RUNNING,
            exec_from=None,
            exec_to=ExecutionStatus.LEASED,
            reason=reason,
        )
    )
    end = End(job_id=job_id, exec_id=exec_id, path=path, code=code, error=reason)
    _abort(session, end, status=ExecutionStatus.LEASED, actor=actor)


def _abort(session: Session, end: End, *, status: ExecutionStatus, actor: str) -> None:
    session.run(
        "abort_execution",
        exec_id=end.exec_id,
        disposition=end.path[0],
        code=end.code,
        error=without_nul(end.error) if end.error else end.error,
        position=end.position,
        tries=end.tries,
        now=session.now,
    ).fetchall()
    session.journal(
        Journaled(
            job_id=end.job_id,
            actor=actor,
            exec_id=end.exec_id,
            job_from=JobState.RUNNING,
            job_to=STATE_OF_DISPOSITION[end.path[0]],
            exec_from=status,
            exec_to=ExecutionStatus.ABORTED,
            step=end.step,
            reason=end.error or end.code,
            metadata=to_json({"code": end.code}),
        )
    )
    for before, after in zip(end.path, end.path[1:], strict=False):
        reason = end.error or end.code
        change_disposition(session, end.job_id, end.exec_id, before, after, actor=actor, reason=reason)
    hold, waits_for = _hold_after(session, end)
    session.run(
        "settle_job",
        job_id=end.job_id,
        failed=int(end.path[0] is Disposition.FAILED and end.code not in CRASH_CODES),
        crashed=int(end.code in CRASH_CODES),
        not_before=end.not_before,
        hold=hold,
        waits_for=waits_for,
        settled=int(end.path[-1] in SETTLED),
        cleaned=int(end.forget_steps),
    )


def _hold_after(session: Session, end: End) -> tuple[str, str | None]:
    if end.path[-1] is Disposition.RETRY:
        if end.wait_for is not None and session.first("job_state", job_id=end.wait_for) in UNFINISHED_STATES:
            return "child", end.wait_for
        if end.not_before > session.now:
            return "until", None
    return "none", None


def _refuse_waiting_for_ever(session: Session, job_id: str, target: str) -> None:
    if session.first("job_state", job_id=target) is None:
        raise JobNotFoundError(target)
    # An ancestor may not be waiting yet, but it is going to.
    if target in {row[0] for row in session.run("ancestors", job_id=job_id)}:
        raise CycleError(f"job {job_id} would wait for itself or a parent, {target}", hint="wait for a child instead")
    if job_id in {row[0] for row in session.run("waits_on", job_id=target)}:
        raise CycleError(f"job {job_id} would wait for {target}, which waits for it", hint="wait for a child instead")
