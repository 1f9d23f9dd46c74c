"""How a SQLite file is opened: with the promised settings, read back, and never another application's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import errors

APPLICATION_ID = 0x484F4C44  # "HOLD"
SYNCHRONOUS = {"FULL": 2, "NORMAL": 1}


def connect(path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> sqlite3.Connection:
    """A connection for one thread at a time. Raises StoreUnsafe if the file cannot be kept as promised."""
    with translated_errors(path):
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
        connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5.0
        )
        try:
            _refuse_foreign(connection, path)
            _apply_pragmas(connection, path, synchronous, read_only=read_only)
        except BaseException:
            connection.close()
            raise
    return connection


def checked_synchronous(synchronous: str) -> str:
    """Raise SettingsError unless it is FULL or NORMAL."""
    if synchronous not in SYNCHRONOUS:
        raise errors.SettingsError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
    return synchronous


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """The statements of a script, one by one, inside the transaction that is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    if any(line.strip() and not line.startswith("--") for line in statement.splitlines()):
        raise errors.StoreError(f"incomplete statement at the end of a migration: {statement.strip()[:80]!r}")


def _apply_pragmas(connection: sqlite3.Connection, path: Path, synchronous: str, *, read_only: bool) -> None:
    wanted: dict[str, object] = {
        "busy_timeout": 5000,
        "foreign_keys": 1,
        "cache_size": -10000,
        "temp_store": 2,
        "mmap_size": 268435456,
        "synchronous": SYNCHRONOUS[synchronous],
    }
    if not read_only:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise errors.StoreUnsafe(f"{path}: write-ahead logging is not possible here (got {mode!r})")
    for pragma, value in wanted.items():
        connection.execute(f"PRAGMA {pragma} = {value}")
        got = connection.execute(f"PRAGMA {pragma}").fetchone()
        # A build of SQLite may cap mmap_size; that costs speed, not safety.
        if pragma != "mmap_size" and (got is None or got[0] != value):
            raise errors.StoreUnsafe(f"{path}: PRAGMA {pragma} is {got}, not {value}: refusing to run on less")


def _refuse_foreign(connection: sqlite3.Connection, path: Path) -> None:
    # Asked before any setting is changed, so that another application's file stays as it is; and asked through
    # SQLite, because to close a descriptor of our own would drop the locks of all connections of this process.
    # In this order: another process may make the database meanwhile, its mark and its tables in one transaction.
    has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if has_tables and connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise errors.StoreForeign(
            f"{path} is a SQLite database of another application",
            hint="choose another directory with --state; it was left as it is",
        )


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: the class says what the caller can do."""
    try:
        yield
    except sqlite3.Error as error:
        raise translate(error, path) from error


def translate(error: sqlite3.Error, path: Path | str) -> errors.HoldfastError:
    """Our error for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{path}: {error}"
    if isinstance(error, sqlite3.IntegrityError):
        return errors.StateTransitionRaceError(text, hint="the database refused the change; look at the job again")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _has_no_room(path):
        # Its files beside the database cannot grow, which SQLite does not tell from a sick disk.
        code, text = sqlite3.SQLITE_FULL, f"{text}: the disk is full"
    kind, hint = MEANING.get(code, (errors.StoreError, None))
    return kind(text, hint=hint)


def _has_no_room(path: Path | str) -> bool:
    try:
        room = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < LEAST_ROOM or (room.f_files > 0 and room.f_favail == 0)


LEAST_ROOM = 128 << 10
"""Bytes; with less SQLite cannot make the files that it needs beside the database."""
BUSY = (errors.StoreBusy, "another process holds the database; it will be tried again")
CLOSED = (errors.StoreReadOnly, "check the owner and mode of the file and its directory, and the limit of open files")
SICK = (errors.StoreUnavailable, "check the disk")

MEANING: dict[int, tuple[type[errors.StoreError], str]] = {
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_LOCKED: BUSY,
    sqlite3.SQLITE_PROTOCOL: BUSY,
    sqlite3.SQLITE_FULL: (errors.StoreFull, "free some disk space; nothing was changed"),
    sqlite3.SQLITE_READONLY: CLOSED,
    sqlite3.SQLITE_PERM: CLOSED,
    sqlite3.SQLITE_CANTOPEN: CLOSED,
    sqlite3.SQLITE_NOTADB: (errors.StoreForeign, "move it away, or restore a backup; it was left as it is"),
    # SQLite says so as well if the disk cannot be read for a moment.
    sqlite3.SQLITE_CORRUPT: (errors.StoreCorrupt, "stop all workers, check the disk, keep a copy, restore a backup"),
    sqlite3.SQLITE_IOERR: SICK,
    sqlite3.SQLITE_NOMEM: SICK,
    sqlite3.SQLITE_INTERRUPT: SICK,
    sqlite3.SQLITE_SCHEMA: SICK,
    sqlite3.SQLITE_NOLFS: SICK,
}
