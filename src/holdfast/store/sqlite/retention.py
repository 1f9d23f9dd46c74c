"""Forgetting finished jobs, and copying the database while others work."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.store.sqlite.rows import jobs_of
from holdfast.store.sqlite.session import Session

TABLES = ("steps", "requests", "executions", "journal", "jobs")


def prune(session: Session, *, before: int, limit: int, actor: str) -> list[str]:
    """Remove ended jobs whole; the head of each journal is put on record first, in the same transaction."""
    jobs = jobs_of(session.run("prunable", before=before, limit=limit))
    for job in jobs:
        session.run("insert_pruned", job_id=job.job_id, actor=actor, now=session.now)
        session.connection.execute("DELETE FROM children WHERE parent = ? OR job_id = ?", (job.job_id, job.job_id))
        for table in TABLES:
            session.connection.execute(f"DELETE FROM {table} WHERE job_id = ?", (job.job_id,))
    return [job.job_id for job in jobs]


def backup(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy, durable under its final name or not there at all."""
    if target.exists():
        raise SettingsError(f"{target} exists already", hint="give a new name; a backup never overwrites")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with closing(sqlite3.connect(partial)) as copy:
            connection.backup(copy)
            # A single file, complete in itself: no log beside it that could be forgotten.
            copy.execute("PRAGMA journal_mode = DELETE")
        _sync(partial)
        partial.rename(target)
        _sync(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
