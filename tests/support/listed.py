"""A million jobs of every kind in a store, quickly: what lists are read from, written past the triggers.

Most have succeeded, some have failed, a backlog waits, some run. What is rare is among the oldest, where a list that
looks at the newest first would come to it last. There are no journals: nothing here is for a check to look at.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import psycopg

from holdfast.core.flow import Definition
from holdfast.core.values import ulid_from

OWNER = "bench:1:1:0123456789ab:1:0123456789"
BATCH = 20_000
SPREAD_MS = 2_000
PENDING, RUNNING = 50_000, 200
"""Of the newest, so many wait, and before them so many run."""
RARE = 7
"""So many of the oldest are of a flow, in a queue, have a key, and failed of an error that none of the others has."""
STEPS = ("fetch", "convert", "store")
DEFINITIONS = [Definition(flow=name, version="1", steps=STEPS) for name in ("orders", "mail", "yearly-report")]
QUEUES = ("", "slow", "attic")

TABLES = {
    "queues": "name",
    "definitions": "fingerprint flow definition first_seen_at",
    "jobs": "job_id flow fingerprint state key queue attempt failures created_at updated_at",
    "requests": "job_id request",
    "executions": "exec_id job_id attempt queue status disposition code error lease_owner lease_expires_at position "
    "progressed_at started_at finished_at",
    "steps": "job_id position step exec_id tries started_at finished_at response",
}
Rows = dict[str, list[tuple[Any, ...]]]


def fill(place: str, jobs: int) -> None:
    """So many jobs into the tables of a new store: a file, or a URL of PostgreSQL with its schema in `options`."""
    if place.startswith("postgresql:"):
        _fill_postgres(place, jobs)
    else:
        _fill_sqlite(place, jobs)


def _fill_sqlite(path: str, jobs: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        connection.execute("BEGIN IMMEDIATE")
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for rows in _batches(jobs):
            for table, columns in TABLES.items():
                names = columns.split()
                marks = ", ".join("?" * len(names))
                connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows[table])
        for _, statement in triggers:
            connection.execute(statement)
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _fill_postgres(url: str, jobs: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("SET session_replication_role = replica")
        for rows in _batches(jobs):
            for table, columns in TABLES.items():
                sql = f"COPY {table} ({', '.join(columns.split())}) FROM STDIN"
                with connection.cursor().copy(sql.encode()) as copy:
                    for row in rows[table]:
                        copy.write_row(row)
        connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM ANALYZE")  # as the server does by itself, some minutes later


def _batches(jobs: int) -> Iterator[Rows]:
    base = time.time_ns() // 1_000_000 - jobs * SPREAD_MS
    for first in range(0, jobs, BATCH):
        rows: Rows = {table: [] for table in TABLES}
        if first == 0:
            rows["queues"] = [(name,) for name in QUEUES]
            rows["definitions"] = [(one.fingerprint, one.flow, _json(one), 1) for one in DEFINITIONS]
        for number in range(first, min(jobs, first + BATCH)):
            _add(rows, number, jobs, base + number * SPREAD_MS)
        yield rows


def _json(definition: Definition) -> str:
    return msgspec.json.encode(definition).decode()


def _add(rows: Rows, number: int, jobs: int, at: int) -> None:
    state = _state(number, jobs)
    rare = number < RARE
    definition = DEFINITIONS[2 if rare else number % 10 == 0]
    queue = QUEUES[2 if rare else number % 10 == 5]
    key = f"audit-{number}" if rare else f"order-{number:07}" if number % 2 else None
    job_id, exec_id = ulid_from(at, number), ulid_from(at, number + (1 << 70))
    failed, tried = state in ("failed", "quarantined"), int(state != "pending")
    rows["jobs"].append(
        (job_id, definition.flow, definition.fingerprint, state, key, queue, tried, int(failed), at, at)
    )
    rows["requests"].append((job_id, '{"number":0}'))
    if tried:
        error = "the moon is in the way" if rare else f"connection to mirror {number % 7} refused"
        end: Sequence[Any] = ("done", None, "completed", None)
        if failed:
            end = ("aborted", state, "abort", error)
        elif state == "running":
            end = ("in_progress", None, None, None)
        finished = None if state == "running" else at
        rows["executions"].append((exec_id, job_id, 1, queue, *end, OWNER, at + 30_000, 1, at, at, finished))
        for position, step in enumerate(STEPS if state == "succeeded" else STEPS[:1]):
            rows["steps"].append((job_id, position, step, exec_id, 1, at, at, '{"count":1}'))


def _state(number: int, jobs: int) -> str:
    waits, runs = min(PENDING, jobs // 20), min(RUNNING, jobs // 100)
    if number >= jobs - waits:
        return "pending"
    if number >= jobs - waits - runs:
        return "running"
    if number < RARE or number % 100 == 3:
        return "failed"
    return "quarantined" if number % 1000 == 4 else "succeeded"
