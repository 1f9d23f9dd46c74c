"""The ends of executions, and what they mean for the job and for those who wait for it.

Those who wait are told in transactions of their own, some hundred in each: a chain may be of any length, and on
SQLite nobody else can write meanwhile. Until then they go on waiting, so that none of them can start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.hash_chain import NOTHING, Evidence, joined_evidence, metadata_of
from holdfast.core.progress import step_after
from holdfast.core.records import actor_text, encoded_record
from holdfast.core.states import (
    LIVE_STATUSES,
    STATE_OF_DISPOSITION,
    UNFINISHED_STATES,
    Disposition,
    ExecutionStatus,
    JobState,
)
from holdfast.core.step import CRASH_CODES, PATH_AFTER_FAILURE, EndCode
from holdfast.errors import CycleError, JobNotFoundError
from holdfast.store.commands import End, Journaled
from holdfast.store.rows import new_ulid
from holdfast.store.session import Session, to_json

SETTLED = frozenset({Disposition.FAILED, Disposition.QUARANTINED})
BATCH = 250
"""Jobs that are ended or released in one transaction because of others: a tenth of a second on a slow disk."""
LOOKS = 5
"""At those who wait, each without those whom another was found to hold at the one before."""


def end_execution(session: Session, end: End, *, status: ExecutionStatus, actor: str, forgiven: bool = False) -> None:
    """Abort a live execution through the dispositions of `end.path`; the caller has passed the fence."""
    if end.wait_for is not None:
        _refuse_waiting_for_ever(session, end.job_id, end.wait_for)
    if end.forget_steps:
        forget_steps(session, end.job_id, 0)
    _abort(session, end, status=status, actor=actor, forgiven=forgiven)
    if end.path[-1] in SETTLED:
        release_after_failure(session, [end.job_id])


def take_out_waiting(
    session: Session,
    job_id: str,
    *,
    code: EndCode,
    actor: str,
    reason: str,
    path: tuple[Disposition, ...] = (Disposition.FAILED,),
) -> None:
    """pending → running → failed (…), under an execution of the actor's own."""
    _abort_waiting(session, job_id, code=code, actor=actor, reason=reason, path=path)
    release_after_failure(session, [job_id])


def set_apart(session: Session, job_id: str, *, actor: str, reason: str) -> bool:
    """Quarantine a job whose rows cannot be dealt with; False if the rules have no way from where it is."""
    if not session.try_lock_jobs([job_id]):
        return False
    state = session.first("job_state", job_id=job_id)
    if state is None or state != session.first("projected_state", job_id=job_id):
        return False
    path = PATH_AFTER_FAILURE[Disposition.QUARANTINED]
    if state == JobState.PENDING:
        take_out_waiting(session, job_id, code=EndCode.UNREADABLE, actor=actor, reason=reason, path=path)
        return True
    latest = session.run("latest_status", job_id=job_id).fetchone()
    if latest is None or latest[1] not in LIVE_STATUSES:
        return False
    end = End(job_id=job_id, exec_id=latest[0], path=path, code=EndCode.UNREADABLE, error=reason)
    end_execution(session, end, status=ExecutionStatus(latest[1]), actor=actor)
    return True


def release_after_failure(session: Session, job_ids: Sequence[str]) -> None:
    """The jobs have ended without success: for those that somebody waits for, that is kept on record (see `settle`)."""
    session.left_waiting = True
    session.run("keep_releases", batch=to_json(job_ids))


def release_after_success(session: Session, jobs: Sequence[str]) -> None:
    """The jobs have succeeded: whoever waited for one of them may start."""
    session.release_waiting(jobs, BATCH)


def settle(
    session: Session, settled: list[str], *, actor: str, limit: int = BATCH, apart: Collection[str] = ()
) -> None:
    """End or release up to `limit` jobs that wait for one that has ended, but none that is set apart.

    Those that wait for the success of a job end with its failure as their reason, and then those that wait for them.
    They are put into `settled` before they are touched. Crash: what was not reached is still on record.
    """
    kept = dict(session.run("next_releases", limit=limit + len(apart)).fetchall())
    ours = session.try_lock_jobs(list(kept)) if kept else set()
    succeeded = [job_id for job_id in ours if kept[job_id] == JobState.SUCCEEDED]
    failed = [job_id for job_id in ours if kept[job_id] in (JobState.FAILED, JobState.QUARANTINED)]
    released = [row[0] for row in _waiting(session, succeeded, limit, apart, through=False)]
    waiting = _waiting(session, failed, limit - len(released), apart, through=True)
    released += [job_id for job_id, _, hold in waiting if hold == "child"]
    ended = [(job_id, predecessor) for job_id, predecessor, hold in waiting if hold != "child"]
    settled += [*released, *(job_id for job_id, _ in ended)]
    if released:
        session.run("release_waiters", batch=to_json(released), now=session.now)
        session.changed_work = True
    if ended:
        _end_all(session, ended, actor=actor)
        session.run("keep_releases", batch=to_json([job_id for job_id, _ in ended]))
    # One that an operator has brought back meanwhile ends nobody: who waits for it goes on waiting.
    session.run("drop_releases", batch=to_json(sorted(ours)))


def _waiting(
    session: Session, ended: Sequence[str], limit: int, apart: Collection[str], *, through: bool
) -> list[tuple[str, str, str]]:
    """Who waits for these jobs, for whom, and how; `through` also who waits for them, and so on. All of them locked."""
    if not ended or limit < 1:
        return []
    roots, passed, locked = to_json(sorted(ended)), set(apart), set[str]()
    for _ in range(LOOKS):
        rows: list[tuple[str, str, str]] = session.run(
            "waiting_chain", batch=roots, apart=to_json(sorted(passed)), through=int(through), limit=limit
        ).fetchall()
        new = [job_id for job_id, _, _ in rows if job_id not in locked]
        if not new:
            return rows
        # Looked at once more under the lock. Those whom another holds are passed over, with all that wait for them.
        locked |= session.try_lock_jobs(new)
        passed |= set(new) - locked
    return []


def _end_all(session: Session, waiting: Sequence[tuple[str, str]], *, actor: str) -> None:
    """pending → running → failed for all of them, each with its predecessor as the reason; one statement each."""
    leases = [(job_id, new_ulid(session.now)) for job_id, _ in waiting]
    reasons = [f"predecessor {predecessor} ended without success" for _, predecessor in waiting]
    session.run_rows("insert_ends", leases, actor=actor_text(actor), now=session.now)
    errors = [(exec_id, reason) for (_, exec_id), reason in zip(leases, reasons, strict=True)]
    aborted = dict(session.fetch_rows("abort_ends", errors, code=EndCode.PREDECESSOR, now=session.now))
    session.run("settle_ends", batch=to_json([job_id for job_id, _ in leases]))
    for (job_id, exec_id), reason in zip(leases, reasons, strict=True):
        end = End(job_id=job_id, exec_id=exec_id, path=(Disposition.FAILED,), code=EndCode.PREDECESSOR, error=reason)
        _journal_lease(session, job_id, exec_id, actor=actor, reason=reason)
        evidence = Evidence(code=end.code, steps=joined_evidence(aborted[exec_id]))
        _journal_end(session, end, evidence, status=ExecutionStatus.LEASED, actor=actor)


def forget_steps(session: Session, job_id: str, position: int) -> str:
    """Remove the finished steps from a position on, which will run again; the evidence of those that are left."""
    session.run("permit", job_id=job_id, act="forget-steps")
    session.run("forget_steps", job_id=job_id, position=position)
    session.run("end_permit", job_id=job_id, act="forget-steps")
    return joined_evidence(session.first("step_seals", job_id=job_id) if position else None)


def step_of(session: Session, job_id: str) -> str | None:
    """The step that a job is in, for the journal entry of an end that its worker does not write itself."""
    row = session.run("place_of", job_id=job_id).fetchone()
    return step_after(*row) if row else None


def change_disposition(
    session: Session,
    job_id: str,
    exec_id: str,
    before: Disposition,
    after: Disposition,
    *,
    actor: str,
    reason: str,
    evidence: Evidence = NOTHING,
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
            metadata=metadata_of(evidence),
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
    session.run("insert_execution", exec_id=exec_id, job_id=job_id, actor=actor_text(actor), now=session.now)
    _journal_lease(session, job_id, exec_id, actor=actor, reason=reason)
    end = End(job_id=job_id, exec_id=exec_id, path=path, code=code, error=reason)
    _abort(session, end, status=ExecutionStatus.LEASED, actor=actor)


def _abort(session: Session, end: End, *, status: ExecutionStatus, actor: str, forgiven: bool = False) -> None:
    aborted = session.run(
        "abort_execution",
        exec_id=end.exec_id,
        disposition=end.path[0],
        code=end.code,
        error=end.error,
        position=end.position,
        tries=end.tries,
        traceback=end.traceback,
        failure=encoded_record(end.failure),
        now=session.now,
    ).fetchall()
    hold, waits_for = _hold_after(session, end)
    evidence = Evidence(
        code=end.code,
        steps=joined_evidence(aborted[0][1]) if aborted else None,
        wait_for=waits_for,
        not_before=end.not_before,
        forgiven=forgiven,
        failure=end.failure,
    )
    _journal_end(session, end, evidence, status=status, actor=actor)
    for before, after in zip(end.path, end.path[1:], strict=False):
        reason = end.error or end.code
        change_disposition(session, end.job_id, end.exec_id, before, after, actor=actor, reason=reason)
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


def _journal_lease(session: Session, job_id: str, exec_id: str, *, actor: str, reason: str) -> None:
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


def _journal_end(session: Session, end: End, evidence: Evidence, *, status: ExecutionStatus, actor: str) -> None:
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
            metadata=metadata_of(evidence),
        )
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
