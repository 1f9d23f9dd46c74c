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
from holdfast.store.sqlite.connection import checked_synchronous, connect, translated_errors
from holdfast.store.sqlite.place import prepare_file

MINIMUM_SQLITE = (3, 37, 0)
AS_TEXT = partial(str, encoding="utf-8", errors="backslashreplace")
"""A text of the engine's that is not UTF-8 is shown as what it is, and does not keep anybody from reading the rest."""
TURN = 10.0
"""Seconds that a thread waits for another one's transaction, which may be waiting for that very thread."""


class Database:
    """Connections to one database file. Crash: an open transaction is rolled back by the next opener."""

    def __init__(self, path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
            raise errors.StoreUnsafe(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
        self.path = path
        self._synchronous = checked_synchronous(synchronous)
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
        connection = connect(self.path, synchronous=self._synchronous, read_only=self._read_only)
        connection.text_factory = AS_TEXT
        checking.prepare(connection)
        return connection


def _is_open(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction
