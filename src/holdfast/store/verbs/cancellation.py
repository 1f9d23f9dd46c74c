"""A cancellation goes on to the children, and theirs: a few per transaction, whoever continues it.

What is still to be done is on record from the moment the parent is cancelled, so that a process that dies in between
leaves it to the next worker. Each child is looked at once, from the newest to the oldest: one that cannot be cancelled,
because others want it or because its row cannot be read, holds up nobody.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.store.session import Session
from holdfast.store.verbs.operating import cancel_unfinished

BATCH = 100
"""So many in one transaction: others can write between two of them."""


class Cancellation(NamedTuple):
    """A job whose children are being cancelled."""

    job_id: str
    waited_for: str | None
    before: str
    actor: str
    reason: str
    metadata: str


def cancel_some(session: Session, *, limit: int = BATCH) -> str | None:
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
