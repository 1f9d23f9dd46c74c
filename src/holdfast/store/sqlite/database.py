"""One SQLite file: opened with the promised settings, written by one thread at a time, read by any."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import errors
from holdfast.crash_points import crash_point
from holdfast.store.sqlite.place import prepare_file

APPLICATION_ID = 0x484F4C44  # "HOLD"
MINIMUM_SQLITE = (3, 35, 0)
SYNCHRONOUS = {"FULL": 2, "NORMAL": 1}


class Database:
    """Connections to one database file. Crash: an open transaction is rolled back by the next opener."""

    def __init__(self, path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
            raise errors.StoreUnsafe(f"SQLite {sqlite3.sqlite_version} is too old; 3.35 or newer is needed")
        if synchronous not in SYNCHRONOUS:
            raise errors.SettingsError(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path
        self._synchronous = synchronous
        self._read_only = read_only
        self._write_lock = threading.RLock()
        self._local = threading.local()
        self._readers: dict[threading.Thread, sqlite3.Connection] = {}
        self._readers_lock = threading.Lock()
        if not read_only:
            prepare_file(path)
        if not path.exists():
            raise errors.StoreError(f"{path} does not exist", hint="submit something first, or check --state")
        self._writer = self._connect()

    @contextmanager
    def transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end, or rolled back whole. Other threads wait their turn."""
        with self._write_lock, translated_errors(self.path):
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
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own on which all reads see one state of the database, however long they take."""
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
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            return
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
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


def translate(error: sqlite3.Error, path: Path) -> errors.HoldfastError:
    """Our error for one of SQLite's."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    text = f"{path}: {error}"
    if isinstance(error, sqlite3.IntegrityError):
        return errors.StateTransitionRaceError(text, hint="the database refused the change; look at the job again")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return errors.StoreBusy(text, hint="another process holds the database; it will be tried again")
    if code == sqlite3.SQLITE_FULL:
        return errors.StoreFull(text, hint="free some disk space; nothing was changed")
    if code == sqlite3.SQLITE_READONLY:
        return errors.StoreReadOnly(text, hint="check the owner and mode of the file and its directory")
    if code == sqlite3.SQLITE_NOTADB:
        return errors.StoreForeign(text, hint="move it away, or restore a backup; it was left as it is")
    if code == sqlite3.SQLITE_CORRUPT:
        return errors.StoreCorrupt(text, hint="stop all workers, keep a copy, and restore a backup")
    if code == sqlite3.SQLITE_IOERR:
        return errors.StoreUnavailable(text, hint="check the disk")
    if code == sqlite3.SQLITE_CANTOPEN:
        return errors.StoreReadOnly(text, hint="check that the directory exists and can be written")
    return errors.StoreError(text)
