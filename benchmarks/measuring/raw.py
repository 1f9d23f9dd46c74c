"""The limit that no engine on SQLite can pass: plain one-row writes, in groups, with the same durability."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

RESPONSE = '{"count":4}'


def raw_seconds(directory: str, writes: int, group: float) -> float:
    """How long `writes` durable one-row inserts take, committed in groups of `group` on average."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, closing(open_raw(Path(folder) / "raw.db")) as connection:
        # As wide as the row of a finished step, in the cheapest kind of table there is.
        connection.execute(
            "CREATE TABLE writes (id INTEGER PRIMARY KEY, job_id TEXT, position INTEGER, step TEXT, exec_id TEXT, "
            "tries INTEGER, started_at INTEGER, finished_at INTEGER, response TEXT)"
        )
        now = time.time_ns() // 1_000_000
        rows = [
            (f"{number:026d}", number % 5, "step", f"{number:026d}", 1, now, now, RESPONSE) for number in range(writes)
        ]
        statement = (
            "INSERT INTO writes (job_id, position, step, exec_id, tries, started_at, finished_at, response) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        )
        began = time.perf_counter()
        done, due = 0, 0.0
        while done < writes:
            due += group
            until = min(writes, max(done + 1, round(due)))
            connection.execute("BEGIN IMMEDIATE")
            for row in rows[done:until]:
                connection.execute(statement, row)
            connection.execute("COMMIT")
            done = until
        return time.perf_counter() - began


def raw_commit_seconds(directory: str, commits: int = 200) -> float:
    """How long one durable one-row commit takes, on average."""
    return raw_seconds(directory, commits, 1.0) / commits


def open_raw(path: Path) -> sqlite3.Connection:
    """A connection with the durability of the engine's: WAL, synchronous=FULL."""
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    if connection.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise SystemExit(f"error: no write-ahead log possible in {path.parent}")
    connection.execute("PRAGMA synchronous = FULL")
    if connection.execute("PRAGMA synchronous").fetchone()[0] != 2:
        raise SystemExit("error: synchronous=FULL was not taken")
    return connection
