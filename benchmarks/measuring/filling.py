"""Many finished jobs in a database, quickly: the rows that the engine would have left, written past its triggers.

Triggers are taken off and put back as they were, and what was written is shown to the engine's own integrity check
(on a small database; the large one is made by the same code).
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.hash_chain import GENESIS, entry_hash
from holdfast.core.values import ulid_from
from measuring import flows

OWNER = "bench:1:1:0123456789ab:1:0123456789"
BATCH = 20_000
FLOW = flows.one_step
EVERY = 100
"""One finished job in so many has failed, and one is in quarantine."""

TABLES = {
    "jobs": "job_id flow fingerprint state queue attempt failures created_at updated_at",
    "requests": "job_id request",
    "executions": "exec_id job_id attempt queue status disposition code error lease_owner lease_expires_at "
    "progressed_at started_at finished_at",
    "steps": "job_id position step exec_id tries started_at finished_at response",
    "journal": "job_id seq at actor exec_id job_from job_to exec_from exec_to step reason metadata prev_hash hash",
}


def fill(path: Path, jobs: int, *, already: int = 0) -> None:
    """Make the number of finished jobs grow from `already` to `jobs`. Nobody else may use the database meanwhile."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        definition = msgspec.json.encode(FLOW.definition).decode()
        connection.execute("BEGIN IMMEDIATE")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("INSERT OR IGNORE INTO queues (name) VALUES ('')")
        values = (FLOW.fingerprint, FLOW.name, definition, 1)
        connection.execute("INSERT OR IGNORE INTO definitions VALUES (?, ?, ?, ?)", values)
        for first in range(already, jobs, BATCH):
            _insert(connection, range(first, min(jobs, first + BATCH)))
        for _, statement in triggers:
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _insert(connection: sqlite3.Connection, numbers: range) -> None:
    rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in TABLES}
    for number in numbers:
        for table, row in _rows_of(number):
            rows[table].append(row)
    for table, columns in TABLES.items():
        names = columns.split()
        marks = ", ".join("?" * len(names))
        connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows[table])


_BASE = (time.time_ns() // 1_000_000) - 30 * 86_400_000


def _rows_of(number: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """All rows of one finished job, a month old."""
    at = _BASE + number
    job_id, exec_id = ulid_from(at, number), ulid_from(at, number + (1 << 70))
    kind = number % EVERY
    state = {0: "failed", 1: "quarantined"}.get(kind, "succeeded")
    good = state == "succeeded"
    yield "jobs", (job_id, FLOW.name, FLOW.fingerprint, state, "", 1, 0 if good else 1, at, at)
    yield "requests", (job_id, '{"number":0}')
    end = ("done", None, "completed", None) if good else ("aborted", state, "abort", "it did not work")
    yield "executions", (exec_id, job_id, 1, "", *end, OWNER, at + 30_000, at, at, at)
    if good:
        yield "steps", (job_id, 0, "a", exec_id, 1, at, at, '{"count":1}')
    changes = [
        (None, "pending", None, None, None, "submitted"),
        ("pending", "running", None, "leased", None, "claimed"),
        ("running", "running", "leased", "in_progress", None, "started"),
    ]
    if good:
        changes += [
            ("running", "running", "in_progress", "committed", "a", "completed"),
            ("running", "succeeded", "committed", "done", None, "finished"),
        ]
    else:
        changes.append(("running", "failed", "in_progress", "aborted", "a", "it did not work"))
    if state == "quarantined":
        changes.append(("failed", "quarantined", "aborted", "aborted", None, "it did not work"))
    head = GENESIS
    for index, (job_from, job_to, exec_from, exec_to, step, reason) in enumerate(changes):
        actor, execution = ("client", None) if index == 0 else (OWNER, exec_id)
        content = (job_id, index + 1, at, actor, execution, job_from, job_to, exec_from, exec_to, step, reason, "{}")
        before, head = head, entry_hash(head, *content)
        yield "journal", (*content, before, head)
