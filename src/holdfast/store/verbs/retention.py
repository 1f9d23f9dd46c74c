"""Forgetting finished jobs, and queues that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.text import storable
from holdfast.errors import JobNotFoundError, JobPrunedError
from holdfast.store.session import Session

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
