"""Forgetting finished jobs."""

from __future__ import annotations

from holdfast.store.rows import jobs_of
from holdfast.store.session import Session

PARTS = ("children", "steps", "requests", "executions", "journal", "job")


def prune(session: Session, *, before: int, limit: int, actor: str) -> list[str]:
    """Remove ended jobs whole; the head of each journal is put on record first, in the same transaction."""
    jobs = jobs_of(session.run("prunable", before=before, limit=limit))
    for job in jobs:
        session.run("insert_pruned", job_id=job.job_id, actor=actor, now=session.now)
        for part in PARTS:
            session.run(f"delete_{part}", job_id=job.job_id)
    return [job.job_id for job in jobs]
