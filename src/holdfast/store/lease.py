"""What operators may do to a queue; every change is on record, and what changes nothing is not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.core.hash_chain import Evidence, joined_evidence, metadata_of
from holdfast.core.records import storable
from holdfast.core.states import Disposition, ExecutionStatus, JobState
from holdfast.core.step import (
    CARRYING_CODES,
    CLEANUP_POSITION,
    INTERRUPTING_CODES,
    PATH_AFTER_FAILURE,
    PATH_GIVEN_BACK,
    EndCode,
    path_after_crash,
)
from holdfast.core.values import label_of
from holdfast.errors import QueueNotFoundError, RowUnreadable
from holdfast.store.commands import Claim, End, Held, Journaled, Recovered
from holdfast.store.rows import UNREADABLE, ending_of, job_of, new_ulid, unreadable
from holdfast.store.session import Session, to_json
from holdfast.store.settle import end_execution, release_after_success, step_of

log = logging.getLogger("holdfast.operators")

APPLICATION = "application"
"""Who sets a limit in code."""


def set_default_limit(session: Session, name: str, *, max_running: int | None) -> None:
    """What the code says: an operator's word stays above it."""
    before = session.run("queue_settings", name=name).fetchone()
    session.run("default_limit", name=name, max_running=max_running)
    if before is None or (before[1] is None and before[0] != max_running):
        session.changed_work = True
        was = shown_limit(before[0]) if before else None
        _record(session, name, APPLICATION, "limit", before=was, after=shown_limit(max_running))


def set_limit(session: Session, name: str, *, max_running: int | None, actor: str, reason: str) -> None:
    """How many jobs of the queue may run at once."""
    limit, limit_by, _ = _settings(session, name)
    if limit == max_running and limit_by is not None:
        _already(name, "limit")
        return
    session.changed_work = True
    session.run("set_limit", name=name, max_running=max_running, actor=storable(actor)).fetchall()
    _record(session, name, actor, "limit", before=shown_limit(limit), after=shown_limit(max_running), reason=reason)


def pause(session: Session, name: str, *, actor: str, reason: str) -> None:
    """Start nothing more from the queue; who paused it first, and why, stays."""
    *_, paused_at = _settings(session, name)
    if paused_at is not None:
        _already(name, "pause")
        return
    session.run("pause_queue", name=name, actor=storable(actor), reason=storable(reason), now=session.now).fetchall()
    _record(session, name, actor, "pause", before="open", after="paused", reason=reason)


def resume(session: Session, name: str, *, actor: str, reason: str) -> None:
    """Start jobs from the queue again."""
    *_, paused_at = _settings(session, name)
    session.changed_work = True  # asked for again, it may be because a worker seems not to have heard
    if paused_at is None:
        _already(name, "resume")
        return
    session.run("resume_queue", name=name).fetchall()
    _record(session, name, actor, "resume", before="paused", after="open", reason=reason)


def _settings(session: Session, name: str) -> tuple[int | None, str | None, int | None]:
    found: tuple[int | None, str | None, int | None] | None = session.run("queue_settings", name=name).fetchone()
    if found is None:
        raise QueueNotFoundError(name)
    return found


def shown_limit(limit: int | None) -> str:
    """As it is in the history."""
    return "none" if limit is None else str(limit)


def _already(name: str, action: str) -> None:
    log.debug("%s: queue %r is so already", action, name)


def _record(
    session: Session, name: str, actor: str, action: str, *, before: str | None, after: str, reason: str = ""
) -> None:
    session.run(
        "insert_queue_event",
        queue=name,
        now=session.now,
        actor=storable(actor),
        action=action,
        before=before,
        after=after,
        reason=storable(reason),
        metadata=to_json(session.metadata),
    )


# --- Leases: claim ready jobs, keep leases alive, take over what nobody works on any more ---------------

_QUARANTINED = PATH_AFTER_FAILURE[Disposition.QUARANTINED]

RECOVERY_BATCH = 500
PROMOTE_BATCH = 1000
SPARE_PAIRS = 16
"""Pairs of flow and queue that are looked at beyond those that could give the best jobs: some may be held by others."""


class QueuesBusy(Exception):
    """The only jobs that could be chosen are in limited queues whose slots somebody else is counting just now."""


class Chosen:
    """What a claim has chosen, filled in as it goes on: of use when it fails, too."""

    def __init__(self) -> None:
        self.job_ids: Sequence[str] = ()
        self.claims: list[Claim] = []
        self.refused: list[str] = []
        """Stored as pending, but their executions say something else: nothing was done to them."""


def promote_due(session: Session) -> None:
    """Jobs whose time has come may start."""
    session.run("promote_due", now=session.now, limit=PROMOTE_BATCH)


def claim(
    session: Session,
    chosen: Chosen,
    *,
    worker_id: str,
    flows: Mapping[str, str],
    limit: int,
    lease_ms: int,
    apart: Collection[str] = (),
) -> None:
    """Lease the best ready jobs within the limits of their queues, but none that is set apart.

    A job whose rows cannot be read is quarantined on the way. QueuesBusy: there may be some in a moment.
    """
    chosen.job_ids = _choose(session, flows, limit, apart)
    if not chosen.job_ids:
        return
    leases = [(job_id, new_ulid(session.now)) for job_id in chosen.job_ids]
    session.run_rows(
        "insert_executions",
        leases,
        worker=worker_id,
        expires=session.now + lease_ms,
        now=session.now,
        interrupting=to_json(sorted(INTERRUPTING_CODES)),
        carrying=to_json(sorted(CARRYING_CODES)),
    )
    batch = to_json(leases)
    session.run("begin_matching", batch=batch, fingerprints=to_json(list(flows.values())))
    session.expect_journal(chosen.job_ids)
    leased = set()
    for seals, *claimed in session.run("claimed", batch=batch).fetchall():
        row = tuple(claimed)
        exec_id, status, job_id, flow = row[0], ExecutionStatus(row[2]), row[10], str(row[11])
        leased.add(job_id)
        _journal_claim(session, job_id, exec_id, status, worker_id, seals, flow)
        try:
            chosen.claims.append(_claim_of(row))
        except UNREADABLE as error:
            end = End(
                job_id=job_id, exec_id=exec_id, path=_QUARANTINED, code=EndCode.UNREADABLE, error=unreadable(error)
            )
            end_execution(session, end, status=status, actor=worker_id)
    chosen.refused = [job_id for job_id in chosen.job_ids if job_id not in leased]


def _choose(session: Session, flows: Mapping[str, str], limit: int, apart: Collection[str]) -> Sequence[str]:
    # Of the best jobs each is the best of its pair, or comes behind one that is: more pairs than jobs are not needed.
    wanted = limit + SPARE_PAIRS + len(apart)
    pairs = session.run("ready_queues", flows=to_json(list(flows)), limit=wanted).fetchall()
    limited = {queue: free for _, queue, free in pairs if free is not None}
    slots = dict(session.lock_queues(limited))
    usable = [(flow, queue) for flow, queue, free in pairs if free is None or slots.get(queue, 0) > 0]
    found = [
        (queue, session.run("ready_jobs", flow=flow, queue=queue, limit=_most(queue, limit, slots) + len(apart)))
        for flow, queue in usable
    ]
    ready = [
        (-priority if isinstance(priority, int) else 0, job_id, queue)
        for queue, rows in found
        for job_id, priority in rows
        if job_id not in apart
    ]
    if not ready and len(slots) < len(limited):
        raise QueuesBusy
    ready.sort()
    best = []
    for _, job_id, queue in ready:
        if queue not in slots or slots[queue] > 0:
            best.append(job_id)
            slots[queue] = slots.get(queue, limit) - 1
        if len(best) == limit:
            break
    return best


def _most(queue: str, limit: int, slots: Mapping[str, int]) -> int:
    return min(limit, slots.get(queue, limit))


def _claim_of(row: tuple[Any, ...]) -> Claim:
    exec_id, attempt, status, interrupted, request, last, response, code, tried_at, tries = row[:10]
    position = 0 if last is None else last + 1
    job = job_of(row[10:])
    if not isinstance(request, str) or not isinstance(response, str | None):
        raise RowUnreadable(f"job {job.job_id}: its request or response is {'gone' if request is None else 'no text'}")
    if job.ending is not None:
        # Whoever goes on with the job has to know how it is going to end.
        ending_of(job)
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


def _journal_claim(
    session: Session,
    job_id: str,
    exec_id: str,
    status: ExecutionStatus,
    worker_id: str,
    seals: str | None,
    flow: str,
) -> None:
    leased = Journaled(
        job_id=job_id,
        actor=worker_id,
        exec_id=exec_id,
        job_from=JobState.PENDING,
        job_to=JobState.RUNNING,
        exec_from=None,
        exec_to=ExecutionStatus.LEASED,
        reason="claimed",
        metadata=metadata_of(Evidence(steps=joined_evidence(seals))),
        flow=flow,
    )
    session.journal(leased)
    if status is ExecutionStatus.IN_PROGRESS:
        session.journal(journal_begin(job_id, exec_id, worker_id, "started"))


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
    return held(session, worker_id=worker_id)


def held(session: Session, *, worker_id: str) -> list[Held]:
    """What this worker holds, and whether operators want it stopped."""
    return [Held(exec_id, reason) for exec_id, reason in session.run("held", worker=worker_id, now=session.now)]


def renew(session: Session, exec_ids: Sequence[str], *, worker_id: str, expires: int) -> None:
    """Renew just these. A lease whose worker does not know that it has it must run out."""
    session.run("renew_leases", batch=to_json(exec_ids), worker=worker_id, expires=expires, now=session.now)


def recover(
    session: Session,
    *,
    dead: Sequence[str],
    actor: str,
    limit: int = RECOVERY_BATCH,
    apart: Collection[str] = (),
    only: str | None = None,
    steady_now: int | None = None,
) -> tuple[list[Recovered], bool]:
    """Finish what was committed, give back or quarantine what was not; looked up anew inside the transaction.

    Leaves alone what is set apart, or all but `only` one; the second answer is whether there may be more.
    """
    recovered = []
    limit += len(apart)
    rows = session.run("orphaned", now=session.now, dead=to_json(list(dead)), limit=limit).fetchall()
    late = {row[0] for row in rows}
    if steady_now is not None and rows:
        late = {row[0] for row in session.run("orphaned", now=steady_now, dead=to_json(list(dead)), limit=limit)}
    for row in rows:
        exec_id, status, owner, _, _, job_id, flow = row[:7]
        if exec_id in apart or only not in (None, exec_id):
            continue
        if status == ExecutionStatus.COMMITTED:
            finish(session, [exec_id], actor=actor, reason=f"finished for {label_of(owner)}")
            outcome = "finished"
        else:
            end = _end_after_crash(row, dead, step_of(session, job_id), excused=exec_id not in late)
            end_execution(session, end, status=ExecutionStatus(status), actor=actor)
            outcome = "given back" if end.path[-1] is Disposition.RETRY else "quarantined"
        recovered.append(Recovered(job_id, exec_id, flow, owner, outcome))
    return recovered, len(rows) == limit


def _end_after_crash(row: tuple[Any, ...], dead: Sequence[str], step: str | None, *, excused: bool) -> End:
    exec_id, _, owner, position, tries, job_id = row[:6]
    try:
        job = job_of(row[5:])
        path, crash, code = path_after_crash(job), f"crash {job.crashes + 1}", EndCode.CRASHED
    except UNREADABLE as error:
        path, crash, code = _QUARANTINED, unreadable(error), EndCode.UNREADABLE
    why = "its process is gone" if owner in dead else "its lease ran out"
    if excused and code is EndCode.CRASHED:
        path, crash, code = PATH_GIVEN_BACK, "the clock was set forward: no crash", EndCode.ABANDONED
    return End(
        job_id=job_id,
        exec_id=exec_id,
        path=path,
        code=code,
        error=f"{label_of(owner)} did not finish: {why} ({crash})",
        step=step,
        position=position if isinstance(position, int) else 0,
        tries=tries if isinstance(tries, int) else 0,
    )


def orphaned(session: Session, *, dead: Sequence[str], limit: int) -> list[str]:
    """The executions that recover() would look at."""
    rows = session.run("orphaned", now=session.now, dead=to_json(list(dead)), limit=limit)
    return [row[0] for row in rows]


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
