"""Leases: claim ready jobs, keep leases alive, take over what nobody works on any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.ending import CARRYING_CODES, CLEANUP_POSITION, INTERRUPTING_CODES, EndCode, path_after_crash
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.worker_id import label_of
from holdfast.store.identifiers import new_ulid
from holdfast.store.messages import Claim, End, Held, Journaled, Recovered
from holdfast.store.rows import job_of
from holdfast.store.session import Session, to_json
from holdfast.store.verbs.settling import end_execution, release_after_success

RECOVERY_BATCH = 500


class QueuesBusy(Exception):
    """The only jobs that could be chosen are in limited queues whose slots somebody else is counting just now."""


def claim(session: Session, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
    """Lease the best ready jobs within the limits of their queues. QueuesBusy: there may be some in a moment."""
    session.run("promote_due", now=session.now)
    chosen = _choose(session, flows, limit)
    if not chosen:
        return []
    leases = [(job_id, new_ulid(session.now)) for job_id in chosen]
    expires = session.now + lease_ms
    session.run_rows(
        "insert_executions",
        leases,
        worker=worker_id,
        expires=expires,
        now=session.now,
        interrupting=to_json(sorted(INTERRUPTING_CODES)),
        carrying=to_json(sorted(CARRYING_CODES)),
    )
    batch = to_json(leases)
    session.run("begin_matching", batch=batch, fingerprints=to_json(list(flows.values())))
    session.expect_journal(chosen)
    claims = [_claim_of(row) for row in session.run("claimed", batch=batch)]
    for one in claims:
        _journal_claim(session, one, worker_id)
    return claims


def _choose(session: Session, flows: Mapping[str, str], limit: int) -> Sequence[str]:
    names = to_json(list(flows))
    busy = []
    found = []
    locked = session.lock_queues()
    queues = session.run("open_queues").fetchall()
    ours = None if locked is None else {name for (name,) in locked}
    for queue, free in queues:
        if free is not None and ours is not None and queue not in ours:
            busy.append(queue)
            continue
        slots = limit if free is None else min(limit, free)
        if slots > 0:
            found.append(session.run("ready_jobs", queue=queue, flows=names, limit=slots))
    ready = [(-priority, job_id) for rows in found for job_id, priority in rows]
    if not ready and any(session.first("ready_jobs", queue=queue, flows=names, limit=1) for queue in busy):
        raise QueuesBusy
    ready.sort()
    return [job_id for _, job_id in ready[:limit]]


def _claim_of(row: tuple[Any, ...]) -> Claim:
    exec_id, attempt, status, interrupted, request, last, response, code, tried_at, tries = row[:10]
    position = 0 if last is None else last + 1
    job = job_of(row[10:])
    # Tries belong to a step: they count on only if the execution before was at this very step.
    at = CLEANUP_POSITION if job.ending is not None else position
    carries = code in CARRYING_CODES and tried_at == at
    return Claim(
        job=job,
        exec_id=exec_id,
        attempt=attempt,
        status=ExecutionStatus(status),
        request=request,
        position=position,
        response=response,
        tries=tries if carries else 0,
        interrupted=bool(interrupted),
    )


def _journal_claim(session: Session, one: Claim, worker_id: str) -> None:
    leased = Journaled(
        job_id=one.job.job_id,
        actor=worker_id,
        exec_id=one.exec_id,
        job_from=JobState.PENDING,
        job_to=JobState.RUNNING,
        exec_from=None,
        exec_to=ExecutionStatus.LEASED,
        reason="claimed",
    )
    session.journal(leased)
    if one.status is ExecutionStatus.IN_PROGRESS:
        session.journal(journal_begin(one.job.job_id, one.exec_id, worker_id, "started"))


def journal_begin(job_id: str, exec_id: str, worker_id: str, reason: str) -> Journaled:
    """leased → in_progress; the job keeps running."""
    return Journaled(
        job_id=job_id,
        actor=worker_id,
        exec_id=exec_id,
        job_from=JobState.RUNNING,
        job_to=JobState.RUNNING,
        exec_from=ExecutionStatus.LEASED,
        exec_to=ExecutionStatus.IN_PROGRESS,
        reason=reason,
    )


def extend_leases(session: Session, *, worker_id: str, lease_ms: int, only: Sequence[str] | None) -> list[Held]:
    """Renew what has not run out; a lease that has is no longer ours to renew."""
    expires = session.now + lease_ms
    if only is None:
        session.run("extend_leases", worker=worker_id, expires=expires, now=session.now)
    else:
        renew(session, only, worker_id=worker_id, expires=expires)
    return [Held(exec_id, reason) for exec_id, reason in session.run("held", worker=worker_id, now=session.now)]


def renew(session: Session, exec_ids: Sequence[str], *, worker_id: str, expires: int) -> None:
    """Renew just these. A lease whose worker does not know that it has it must run out."""
    session.run("renew_leases", batch=to_json(exec_ids), worker=worker_id, expires=expires, now=session.now)


def recover(session: Session, *, dead: Sequence[str], actor: str) -> list[Recovered]:
    """Finish what was committed, give back or quarantine what was not; looked up anew inside the transaction."""
    recovered = []
    rows = session.run("orphaned", now=session.now, dead=to_json(list(dead)), limit=RECOVERY_BATCH).fetchall()
    for row in rows:
        exec_id, status, owner, position, tries = row[:5]
        job = job_of(row[5:])
        if status == ExecutionStatus.COMMITTED:
            finish(session, [exec_id], actor=actor, reason=f"finished for {label_of(owner)}")
            outcome = "finished"
        else:
            path = path_after_crash(job)
            why = "its process is gone" if owner in dead else "its lease ran out"
            end = End(
                job_id=job.job_id,
                exec_id=exec_id,
                path=path,
                code=EndCode.CRASHED,
                error=f"{label_of(owner)} did not finish: {why} (crash {job.crashes + 1})",
                position=position,
                tries=tries,
            )
            end_execution(session, end, status=ExecutionStatus(status), actor=actor)
            outcome = "given back" if path[-1] is Disposition.RETRY else "quarantined"
        recovered.append(Recovered(job.job_id, exec_id, job.flow, owner, outcome))
    return recovered


def finish(session: Session, exec_ids: Sequence[str], *, actor: str, reason: str = "finished") -> set[str]:
    """committed → done; returns the executions that were finished now."""
    rows = session.run("mark_done", batch=to_json(exec_ids), now=session.now).fetchall()
    for exec_id, job_id in rows:
        session.journal(
            Journaled(
                job_id=job_id,
                actor=actor,
                exec_id=exec_id,
                job_from=JobState.RUNNING,
                job_to=JobState.SUCCEEDED,
                exec_from=ExecutionStatus.COMMITTED,
                exec_to=ExecutionStatus.DONE,
                reason=reason,
            )
        )
    if rows:
        release_after_success(session, [job_id for _, job_id in rows])
    return {exec_id for exec_id, _ in rows}
