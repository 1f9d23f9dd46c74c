"""The engine's SQLite file, opened with the promised settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.sql_files import Migration, load_migrations, load_statements
from holdfast_images.catalog.migrating import pending
from holdfast_images.catalog.pool import Pool
from holdfast_images.errors import CatalogUnavailable, CatalogUnusable, ImageError

PACKAGE = "holdfast_images.catalog.sqlite"
ENGINE_APPLICATION_ID = 0x484F4C44
SYNCHRONOUS = {"FULL": 2, "NORMAL": 1}
PRAGMAS = {
    "busy_timeout": 5000,
    "foreign_keys": 1,
    "cache_size": -10000,
    "temp_store": 2,
    "mmap_size": 268435456,
}
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PROTOCOL,
}


class SqliteDatabase:
    """The catalog's connections to the engine's file. Crash: an open transaction is rolled back by the next opener."""

    refusals: tuple[type[Exception], ...] = (sqlite3.IntegrityError,)

    def __init__(self, path: Path, *, synchronous: str = "FULL") -> None:
        if synchronous not in SYNCHRONOUS:
            raise CatalogUnusable(f"synchronous must be FULL or NORMAL, not {synchronous!r}")
        self.path = path
        self.statements = load_statements(PACKAGE)
        self._synchronous = synchronous
        self._make_by_engine()
        self.pool = Pool(self._connect)
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A write transaction from its first statement on: it never has to start again."""
        with translated(self.path), self.pool.connection() as connection:
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
        with translated(self.path), self.pool.connection() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                # An I/O error makes SQLite roll back on its own; the error is what is to be told.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close every connection."""
        self.pool.close()

    def _make_by_engine(self) -> None:
        # The engine refuses a file with tables that it has not made itself, and knows where a file may be.
        try:
            with translated(self.path):
                connection = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)
                try:
                    made = connection.execute("PRAGMA application_id").fetchone()[0] == ENGINE_APPLICATION_ID
                finally:
                    connection.close()
        except ImageError:
            made = False  # the engine says what is wrong with it
        if not made:
            from holdfast import Engine  # noqa: PLC0415 - it is mostly there

            Engine.open(self.path).close()

    def _connect(self) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0)
        try:
            self._apply_pragmas(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _apply_pragmas(self, connection: sqlite3.Connection) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise CatalogUnusable(f"{self.path}: write-ahead logging is not possible here (got {mode!r})")
        for pragma, value in {**PRAGMAS, "synchronous": SYNCHRONOUS[self._synchronous]}.items():
            connection.execute(f"PRAGMA {pragma} = {value}")
            got = connection.execute(f"PRAGMA {pragma}").fetchone()
            # A build of SQLite may cap mmap_size; that costs speed, not safety.
            if pragma != "mmap_size" and (got is None or got[0] != value):
                raise CatalogUnusable(f"{self.path}: PRAGMA {pragma} is {got}, not {value}: refusing to run on less")

    def _migrate(self) -> None:
        migrations = load_migrations(PACKAGE)
        with self.reading() as connection:
            if not pending(migrations, _applied(connection), str(self.path)):
                return
        with self.transaction() as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations ("
                "version INTEGER PRIMARY KEY, "
                "applied_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, "
                "description TEXT)"
            )
            # Asked again under the lock: several processes may start at once.
            for migration in pending(migrations, _applied(connection), str(self.path)):
                _apply(connection, migration)


def _applied(connection: sqlite3.Connection) -> list[int]:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'").fetchone()
    return [row[0] for row in connection.execute("SELECT version FROM schema_migrations")] if known else []


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    statement = ""
    for line in migration.sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    if any(line and not line.startswith("--") for line in statement.splitlines()):
        raise CatalogUnusable(f"migration {migration.version} ends in an unfinished statement")
    connection.execute(
        "INSERT INTO schema_migrations (version, description) VALUES (?, ?)", (migration.version, migration.description)
    )


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours: the class says whether trying again can help."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        # A file that is there and cannot be opened: out of descriptors or memory, as a rule.
        if code in _PASSING or (code == sqlite3.SQLITE_CANTOPEN and path.exists()):
            raise CatalogUnavailable(f"{path}: {error}", hint="it will be tried again; see to the disk") from error
        raise CatalogUnusable(f"{path}: {error}", hint="see what is wrong: holdfast check --deep") from error
