"""An application's tables in the engine's SQLite file."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from holdfast.errors import BadInput, DefinitionError, HoldfastError, RowRefused, StoreReadOnly, StoreUnavailable
from holdfast.sql_files import Dialect, Migration, changes_the_engine, missing
from holdfast.store.connection_pool import Pool
from holdfast.store.place import ENGINE_TABLES
from holdfast.store.sqlite.connection import APPLICATION_ID, checked_synchronous, connect, run_script
from holdfast.store.sqlite.connection import translate as translate_store

ERRORS = (sqlite3.Error, OverflowError, UnicodeEncodeError)
_thread = threading.local()
"""`writing`: the files to which this thread has a write transaction open."""


def translate(error: Exception, where: object) -> HoldfastError:
    """Our error for one of SQLite's; RowRefused for a row that a rule of its table refuses."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.IntegrityError):
        return RowRefused(f"{where}: {error}")
    return translate_store(error, str(where))


class SqliteTables:
    """Connections to the engine's file. Crash: an open transaction is rolled back by the next opener."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path, *, synchronous: str = "FULL", make: bool = True) -> None:
        self.where = str(path)
        self._path = path
        checked_synchronous(synchronous)
        if make:
            self._make_by_engine()
        self.pool = Pool(partial(connect, path, synchronous=synchronous))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction from its first statement on: it never has to start again."""
        with self._first_of_thread(), self._translated(), self.pool.connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back on its own.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """One state of the database for all reads in it."""
        with self._translated(), self.pool.connection() as connection:
            connection.execute("BEGIN")
            before = connection.total_changes
            try:
                yield connection
                if connection.total_changes != before:
                    raise BadInput("a statement that is to read has written; nothing was changed", hint="use run()")
            finally:
                # An I/O error makes SQLite roll back on its own; the error is what is to be told.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def migrate(self, name: str, ledger: str, migrations: Sequence[Migration]) -> None:
        """Apply what is missing, in one transaction. Crash: all of it is there, or nothing of it."""
        with self.reading() as connection:
            if not missing(migrations, _applied(connection, ledger), f"{name} in {self.where}"):
                return
        with self.transaction() as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {ledger} ("
                "version INTEGER PRIMARY KEY, "
                "applied_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, "
                "description TEXT)"
            )
            # Asked again under the lock: several processes may start at once.
            for migration in missing(migrations, _applied(connection, ledger), f"{name} in {self.where}"):
                before = _engine_schema(connection)
                run_script(connection, migration.sql)
                if not connection.in_transaction:
                    raise DefinitionError(f"migration {migration.version} of tables {name} ends its transaction")
                if _engine_schema(connection) != before:
                    raise changes_the_engine(name, migration)
                connection.execute(
                    f"INSERT INTO {ledger} (version, description) VALUES (?, ?)",
                    (migration.version, migration.description),
                )

    def is_made(self, name: str, ledger: str, migrations: Sequence[Migration]) -> bool:
        """Were all of the migrations applied? StoreTooNew if more were."""
        with self.reading() as connection:
            return not missing(migrations, _applied(connection, ledger), f"{name} in {self.where}")

    def _make_by_engine(self) -> None:
        # The engine refuses a file with tables that it has not made itself, and knows where a file may be.
        try:
            connection = sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)
            try:
                made = connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID
            finally:
                connection.close()
        except sqlite3.Error:
            made = False  # the engine says what is wrong with it
        if not made:
            from holdfast.store.sqlite.store import SqliteStore  # noqa: PLC0415 - it is mostly there

            SqliteStore(self._path).close()

    @contextmanager
    def _first_of_thread(self) -> Iterator[None]:
        """Refuse at once what would wait for this very thread, and then blame another process."""
        open_files: set[str] = _thread.__dict__.setdefault("writing", set())
        path = os.path.realpath(self._path)
        if path in open_files:
            raise BadInput(
                f"{self.where}: this thread is writing to it already, and SQLite has one writer; nothing was changed",
                hint="use the session that is open, or end it first",
            )
        open_files.add(path)
        try:
            yield
        finally:
            open_files.discard(path)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise translate(error, self.where) from error
        except StoreReadOnly as error:
            if os.access(self._path, os.R_OK | os.W_OK) and os.access(self._path.parent, os.W_OK):
                raise StoreUnavailable(str(error), hint="this process is out of descriptors or memory") from error
            raise


def _engine_schema(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """What there is of the engine's tables, with everything that hangs on them."""
    rows = connection.execute("SELECT tbl_name, name, sql FROM sqlite_master")
    return {(table, name, sql) for table, name, sql in rows if table in ENGINE_TABLES}


def _applied(connection: sqlite3.Connection, ledger: str) -> dict[int, str | None]:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [ledger]).fetchone()
    return dict(connection.execute(f"SELECT version, description FROM {ledger}")) if known else {}
