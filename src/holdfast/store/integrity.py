"""Faults of the tables beside the jobs: queues, definitions, workers, exceptions that were left, waits in a circle."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.facts import Finding, JobFacts, error
from holdfast.core.hash_chain import Evidence, metadata_of
from holdfast.core.records import JobRecord, storable
from holdfast.core.repair import Columns, told, wrong_columns
from holdfast.core.states import JobState
from holdfast.errors import JobNotFoundError, JobPrunedError, StoreCorrupt
from holdfast.store import facts
from holdfast.store.commands import Journaled
from holdfast.store.facts import decoded_definition
from holdfast.store.lease import shown_limit
from holdfast.store.session import Session


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of queues."""

    name: str
    max_running: int | None
    limit_by: str | None
    paused_at: int | None
    paused_by: str | None
    paused_reason: str | None


class DefinitionRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of definitions."""

    fingerprint: str
    flow: str
    definition: str
    first_seen_at: int


class WorkerRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of workers."""

    worker_id: str
    flows: str
    started_at: int
    seen_at: int


class PrunedJobRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of pruned."""

    job_id: str
    flow: str
    state: str
    finished_at: int
    entries: int
    head: str
    pruned_at: int
    pruned_by: str


class KeyRow(msgspec.Struct, frozen=True, array_like=True):
    """A row of keys."""

    flow: str
    key: str
    job_id: str
    request_digest: str
    taken_at: int
    expires_at: int | None


LONG = ("pruned", "keys")
"""Tables that grow for ever."""
STRAY_KEYS = """
SELECT k.flow, k.key, k.job_id FROM keys AS k
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.job_id = k.job_id AND j.flow = k.flow AND j.key = k.key)
    AND NOT EXISTS (SELECT 1 FROM pruned AS p WHERE p.job_id = k.job_id AND p.flow = k.flow)
ORDER BY 1, 2
"""

UNASKED = """
SELECT c.job_id FROM cancellations AS c JOIN jobs AS j ON j.job_id = c.job_id
WHERE j.state = 'succeeded' OR (j.state IN ('pending', 'running') AND j.cancel_reason IS NULL)
ORDER BY 1
"""
LAST_EVENTS = """
SELECT e.queue, e.action, e.at, e.actor, e.after, e.reason FROM queue_events AS e
WHERE e.seq = (
    SELECT max(f.seq) FROM queue_events AS f
    WHERE f.queue = e.queue AND (f.action = 'limit') = (e.action = 'limit')
)
"""

ROWS: dict[str, type[msgspec.Struct]] = {
    "queues": QueueRow,
    "definitions": DefinitionRow,
    "workers": WorkerRow,
    "pruned": PrunedJobRow,
    "keys": KeyRow,
}


def tables(session: Session, *, with_pruned: bool) -> Iterator[Finding]:
    """Every fault of the tables that are not about one job; they are short, but for what was pruned and keys."""
    rows: dict[str, list[Any]] = {}
    for table, kind in ROWS.items():
        if table in LONG and not with_pruned:
            continue
        columns = ", ".join(kind.__struct_fields__)
        raw, problem = session.attempt(f"SELECT {columns} FROM {table} ORDER BY 1", {})
        if problem is not None:
            yield error("unreadable-rows", f"table {table}", f"cannot be read: {problem}")
        rows[table] = []
        for row in raw:
            try:
                rows[table].append(msgspec.convert(row, kind))
            except msgspec.ValidationError as fault:
                column = _column(fault, kind)
                yield error("unreadable-row", f"{table} {row[0]!r}", f"{column} has a value that cannot be: {fault}")
    yield from _queues(rows["queues"])
    yield from _queue_histories(session, rows["queues"])
    yield from _definitions(rows["definitions"])
    yield from _workers(rows["workers"])
    yield from _permits(session)
    for (job_id,) in session.attempt(UNASKED, {})[0]:
        yield error("cancel-unexplained", f"job {job_id}", "its children are to be cancelled with it, and it is not")
    if with_pruned:
        for flow, key, job_id in session.attempt(STRAY_KEYS, {})[0]:
            yield error("orphan-rows", f"key {key!r} of flow {flow}", f"stands for job {job_id}, which never had it")
    yield from circles(session)


def circles(session: Session) -> Iterator[Finding]:
    """Jobs that wait for each other for ever."""
    sql = "SELECT job_id, waits_for FROM jobs WHERE waits_for IS NOT NULL AND state = 'pending'"
    waits, _ = session.attempt(sql, {})
    for members in _wait_cycles(dict(waits)):
        if len(members) > 1:
            circle = " → ".join([*members, members[0]] if len(members) < 10 else [*members[:9], "…", members[0]])
            for job_id in members:
                yield error("wait-cycle", f"job {job_id}", f"waits for itself, through others: {circle}")


def repeated_executions(session: Session) -> Iterator[Finding]:
    """Execution ids that are used twice."""
    sql = "SELECT exec_id, count(*) FROM executions GROUP BY exec_id HAVING count(*) > 1"
    for exec_id, count in session.attempt(sql, {})[0]:
        yield error("duplicate-id", f"execution {exec_id}", f"there are {count} executions with this id")


def _queues(queues: list[QueueRow]) -> Iterator[Finding]:
    for queue in queues:
        if queue.max_running is not None and queue.max_running < 0:
            yield error("unreadable-row", f"queues {queue.name!r}", f"max_running is {queue.max_running}")
        if len({queue.paused_at is None, queue.paused_by is None, queue.paused_reason is None}) > 1:
            yield error("unreadable-row", f"queues {queue.name!r}", "is paused by halves")


def _queue_histories(session: Session, queues: list[QueueRow]) -> Iterator[Finding]:
    """A queue is as its history says; about what an older version has done, that says nothing."""
    last = {(queue, action == "limit"): what for queue, action, *what in session.attempt(LAST_EVENTS, {})[0]}
    for queue in queues:
        subject = f"queue {queue.name!r}"
        limit, pause = last.get((queue.name, True)), last.get((queue.name, False))
        if limit is not None and limit[2] != shown_limit(queue.max_running):
            yield error("queue-changed", subject, f"its limit is {queue.max_running}, but it was set to {limit[2]}")
        if pause is not None:
            at, actor, after, reason = pause
            should = (at, actor, reason) if after == "paused" else (None, None, None)
            if should != (queue.paused_at, queue.paused_by, queue.paused_reason):
                is_now = "open" if queue.paused_at is None else "paused"
                yield error("queue-changed", subject, f"it is {is_now}, but by its history {actor} has left it {after}")


def _definitions(definitions: list[DefinitionRow]) -> Iterator[Finding]:
    for row in definitions:
        definition = decoded_definition(row.definition)
        subject = f"definition {row.fingerprint}"
        if definition is None:
            yield error("definition-damaged", subject, "is not a definition: its jobs cannot be compared with any flow")
        elif definition.flow != row.flow:
            yield error("definition-damaged", subject, f"is of flow {definition.flow}, not of {row.flow}")
        elif hashlib.sha256(row.definition.encode()).hexdigest()[: len(row.fingerprint)] != row.fingerprint:
            yield error("definition-damaged", subject, "is not what its fingerprint was made from")


def _workers(workers: list[WorkerRow]) -> Iterator[Finding]:
    for worker in workers:
        try:
            msgspec.json.decode(worker.flows, type=list[str])
        except msgspec.MsgspecError as fault:
            yield error("unreadable-row", f"workers {worker.worker_id!r}", f"its flows cannot be read: {fault}")


def _permits(session: Session) -> Iterator[Finding]:
    for job_id, act in session.attempt("SELECT job_id, act FROM permits ORDER BY 1", {})[0]:
        yield error("permit-left", f"job {job_id}", f"a rule does not hold for it ({act}): no transaction leaves that")


def _column(fault: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    _, _, where = str(fault).partition(" - at `$[")
    return kind.__struct_fields__[int(where.rstrip("]`"))] if where else "?"


# --- Sets the row of a job right that somebody has written past the rules: what it must say is known from other
# rows.

PERMIT = "repair"


def reproject(session: Session, job_id: str, *, actor: str, reason: str) -> JobState:
    """Make the job's row what its executions and its journal say; the journal notes what was there."""
    session.lock_jobs([job_id])
    stored = session.first("job_state", job_id=job_id)
    projected = session.first("projected_state", job_id=job_id)
    if stored is None or projected is None:
        raise JobNotFoundError(job_id)
    session.run("permit", job_id=job_id, act=PERMIT)
    if stored not in set(JobState):
        session.run("reproject_state", job_id=job_id, state=projected)
    read = facts.chosen(session, [job_id])
    found = [one for one in read if isinstance(one, JobFacts)]
    if not found:
        why = "; ".join(one.message for one in read if isinstance(one, Finding)) or "its row is gone"
        raise StoreCorrupt(f"job {job_id} cannot be read: {why}", hint="see what is wrong with it: holdfast check")
    wrong = wrong_columns(found[0], session.now)
    if wrong:
        _set_right(session, found[0].job, wrong)
    session.run("end_permit", job_id=job_id, act=PERMIT)
    if wrong or stored != projected:
        was = told(found[0].job, wrong) if stored in set(JobState) else f"state {stored} → {projected}"
        _journal(session, job_id, projected, actor=actor, reason=f"reprojected: {reason}", was=was)
        session.changed_work = True
    return JobState(projected)


def _set_right(session: Session, job: JobRecord, wrong: Columns) -> None:
    right = msgspec.structs.replace(job, **wrong)
    session.run("insert_queue", name=right.queue)
    session.run("reproject", **msgspec.structs.asdict(right))


def _journal(session: Session, job_id: str, state: str, *, actor: str, reason: str, was: str) -> None:
    session.journal(
        Journaled(
            job_id=job_id,
            actor=actor,
            exec_id=None,
            job_from=session.first("journaled_state", job_id=job_id),
            job_to=state,
            exec_from=None,
            exec_to=None,
            reason=reason,
            metadata=metadata_of(Evidence(repaired=was)),
        )
    )


# --- Forgetting finished jobs, and queues that nobody needs any more ------------------------------------

PARTS = ("children", "steps", "requests", "executions", "journal", "job")
QUEUES = 1000
"""Queues that are forgotten in one transaction."""


def prunable(session: Session, *, before: int, limit: int, apart: Collection[str] = ()) -> list[str]:
    """Ended jobs that nobody refers to, oldest first, but none that is set apart."""
    rows = session.run("prunable", before=before, limit=limit + len(apart))
    return [row[0] for row in rows if row[0] not in apart][:limit]


def prune(
    session: Session, *, before: int, limit: int, actor: str, apart: Collection[str] = (), only: str | None = None
) -> list[str]:
    """Remove ended jobs whole; the head of each journal is put on record first, in the same transaction.

    A key that lasts longer than its job stays, and goes on standing for it.
    """
    session.run("delete_expired_keys", now=session.now)
    found = prunable(session, before=before, limit=limit, apart=apart)
    jobs = [job_id for job_id in found if only in (None, job_id)]
    for job_id in jobs:
        session.run("insert_pruned", job_id=job_id, actor=storable(actor), now=session.now)
        for part in PARTS:
            session.run(f"delete_{part}", job_id=job_id)
    return jobs


def forget_queues(session: Session) -> None:
    """Remove queues that no job is in and that nobody has limited or paused; the next job that names one makes it."""
    session.run("delete_idle_queues", limit=QUEUES)


def not_found(session: Session, job_id: str) -> JobNotFoundError:
    """The error for a job that is not there, which knows whether it once was."""
    state: str | None = session.first("pruned_job", job_id=job_id)
    return JobNotFoundError(job_id) if state is None else JobPrunedError(job_id, state)


def _wait_cycles(waits: Mapping[str, str]) -> Iterator[list[str]]:
    """Every cycle among jobs that wait for others: job → job it waits for."""
    seen: set[str] = set()
    for start in waits:
        chain: dict[str, None] = {}
        following: str | None = start
        while following is not None and following not in seen:
            if following in chain:
                members = list(chain)
                yield members[members.index(following) :]
                break
            chain[following] = None
            following = waits.get(following)
        seen.update(chain)
