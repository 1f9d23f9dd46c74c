"""One SQLite file: opened with the promised settings, written by one thread at a time, read by any."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from holdfast import errors
from holdfast.crash_points import crash_point
from holdfast.store.processes import refuse_fork
from holdfast.store.sqlite import checking
from holdfast.store.sqlite.place import prepare_file

APPLICATION_ID = 0x484F4C44  # "HOLD"
MINIMUM_SQLITE = (3, 37, 0)
AS_TEXT = partial(str, encoding="utf-8", errors="backslashreplace")
"""A text of the engine's that is not UTF-8 is shown as what it is, and does not keep anybody from reading the rest."""
SYNCHRONOUS = {"FULL": 2, "NORMAL": 1}
TURN = 10.0
"""Seconds that a thread waits for another one's transaction, which may be waiting for that very thread."""


class Database:
    """Connections to one database file. Crash: an open transaction is rolled back by the next opener."""

    def __init__(self, path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
            raise errors.StoreUnsafe(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
        if synchronous not in SYNCHRONOUS:
            raise errors.SettingsError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path
        self._synchronous = synchronous
        self._read_only = read_only
        self._write_lock = threading.RLock()
        self._local = threading.local()
        self._readers: dict[threading.Thread, sqlite3.Connection] = {}
        self._readers_lock = threading.Lock()
        self._process = os.getpid()
        if not read_only:
            prepare_file(path)
        if not path.exists():
            raise errors.StoreError(f"{path} does not exist", hint="submit something first, or check --state")
        self._writer = self._connect()

    @contextmanager
    def transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end, or rolled back whole. Other threads wait their turn."""
        refuse_fork(self._process)
        with self._turn(), translated_errors(self.path):
            connection = self._writer
            if _is_open(connection):
                raise errors.BadInput(
                    f"{verb} was called inside a commit step, which has a transaction open already",
                    hint="use the tx it was given: tx.execute(...), tx.submit(...)",
                )
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                crash_point(verb, "before-commit")
                connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back on its own.
                if _is_open(connection):
                    connection.execute("ROLLBACK")
                raise
        crash_point(verb, "after-commit")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._write_lock.acquire(timeout=TURN):
            raise errors.StoreBusy(
                f"{self.path}: another thread of this process has had a transaction open for {TURN:.0f} s",
                hint="a commit step that waits for it has to use its own transaction: tx.execute(...), tx.submit(...)",
            )
        try:
            yield
        finally:
            self._write_lock.release()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own on which all reads see one state of the database, however long they take."""
        refuse_fork(self._process)
        with translated_errors(self.path):
            connection = self._connect()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For single reads."""
        refuse_fork(self._process)
        with translated_errors(self.path):
            yield self.reader()

    def reader(self) -> sqlite3.Connection:
        """This thread's own connection for reading."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            with self._readers_lock:
                for thread in [thread for thread in self._readers if not thread.is_alive()]:
                    self._readers.pop(thread).close()
                self._readers[threading.current_thread()] = connection
        return connection

    def close(self) -> None:
        """Close every connection."""
        if os.getpid() != self._process:
            return  # they are the parent's
        with self._write_lock:
            for connection in [*self._readers.values(), self._writer]:
                connection.close()
            self._readers.clear()

    def _connect(self) -> sqlite3.Connection:
        with translated_errors(self.path):
            uri = f"{self.path.absolute().as_uri()}?mode={'ro' if self._read_only else 'rw'}"
            connection = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=256, timeout=5.0
            )
            connection.text_factory = AS_TEXT
            checking.prepare(connection)
            try:
                self._refuse_foreign(connection)
                self._apply_pragmas(connection)
            except BaseException:
                connection.close()
                raise
        return connection

    def _apply_pragmas(self, connection: sqlite3.Connection) -> None:
        wanted: dict[str, object] = {
            "busy_timeout": 5000,
            "foreign_keys": 1,
            "cache_size": -10000,
            "temp_store": 2,
            "mmap_size": 268435456,
            "synchronous": SYNCHRONOUS[self._synchronous],
        }
        if not self._read_only:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise errors.StoreUnsafe(f"{self.path}: write-ahead logging is not possible here (got {mode!r})")
        for pragma, value in wanted.items():
            connection.execute(f"PRAGMA {pragma} = {value}")
            got = connection.execute(f"PRAGMA {pragma}").fetchone()
            # A build of SQLite may cap mmap_size; that costs speed, not safety.
            if pragma != "mmap_size" and (got is None or got[0] != value):
                raise errors.StoreUnsafe(f"{self.path}: PRAGMA {pragma} is {got}, not {value}: refusing to run on less")

    def _refuse_foreign(self, connection: sqlite3.Connection) -> None:
        # Asked before any setting is changed, so that another application's file stays as it is; and asked through
        # SQLite, because to close a descriptor of our own would drop the locks of all connections of this process.
        # In this order: another process may make the database meanwhile, its mark and its tables in one transaction.
        has_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if has_tables and connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise errors.StoreForeign(
                f"{self.path} is a SQLite database of another application",
                hint="choose another directory with --state; it was left as it is",
            )


def _is_open(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction


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
