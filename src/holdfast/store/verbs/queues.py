"""What operators may do to a queue; every change is on record, and what changes nothing is not."""

from __future__ import annotations

import logging

from holdfast.core.text import storable
from holdfast.errors import QueueNotFoundError
from holdfast.store.session import Session, to_json

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
