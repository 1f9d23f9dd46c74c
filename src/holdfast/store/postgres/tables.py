"""An application's tables in the engine's schema of a PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from holdfast.errors import (
    BadInput,
    DefinitionError,
    HoldfastError,
    RowRefused,
    SettingsError,
    StoreReadOnly,
    StoreUnavailable,
)
from holdfast.sql_files import Dialect, Migration, changes_the_engine, missing
from holdfast.store.connection_pool import Pool
from holdfast.store.place import ENGINE_TABLES, PostgresPlace
from holdfast.store.postgres.backup import SCHEMA_NAME
from holdfast.store.postgres.connection import OF_CLIENTS, OF_READS, BoundedConnection
from holdfast.store.postgres.connection import translate as translate_store
from holdfast.store.postgres.schema import LONGEST_MIGRATION
from holdfast.store.postgres.session import setting
from holdfast.store.postgres.store import BEGIN, CONNECTING, PostgresStore

Connection = BoundedConnection
ERRORS = (psycopg.Error, OverflowError, UnicodeEncodeError)


def translate(error: Exception, where: object) -> HoldfastError:
    """Our error for one of psycopg's; RowRefused for a row that a rule or a type of its table refuses."""
    if not isinstance(error, psycopg.Error) or isinstance(error, psycopg.IntegrityError | psycopg.DataError):
        return RowRefused(f"{where}: {' '.join(str(error).split())}")
    return translate_store(error)


class PostgresTables:
    """Connections to the engine's schema. Crash: the server rolls an open transaction back."""

    dialect: Dialect = "postgres"

    def __init__(self, place: PostgresPlace, *, synchronous: str = "FULL", make: bool = True) -> None:
        if not SCHEMA_NAME.fullmatch(place.schema):
            raise SettingsError(f"{place.schema!r} cannot be the name of a schema")
        self.where = f"schema {place.schema}"
        self._place = place
        self._synchronous = synchronous
        self.pool = Pool(self._connect)
        try:
            if make:
                self._make_by_engine()
        except BaseException:
            self.pool.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Committed at the end, or rolled back whole."""
        begin = f"{BEGIN}; SELECT {setting(OF_CLIENTS.settings, local=True)}"
        with self._connected(begin, OF_CLIENTS.answer) as connection:
            yield connection
            connection.execute("COMMIT")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One state of the database for all reads in it."""
        with self._connected("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", OF_READS.answer) as connection:
            try:
                yield connection
            except StoreUnavailable as error:
                if isinstance(error.__cause__, psycopg.errors.ReadOnlySqlTransaction):
                    raise BadInput(f"a statement that is to read wants to write: {error}", hint="use run()") from error
                raise
            connection.execute("ROLLBACK")

    def migrate(self, name: str, ledger: str, migrations: Sequence[Migration]) -> None:
        """Apply what is missing, in one transaction. Crash: all of it is there, or nothing of it.

        Looking is enough if nothing is missing: a role that only reads, or works, may change no table.
        """
        where = f"{name} in {self.where}"
        with self.reading() as connection:
            if not missing(migrations, self._applied(connection, ledger), where):
                return
        try:
            with self._connected(BEGIN, LONGEST_MIGRATION) as connection:
                self._apply_missing(connection, name, ledger, migrations)
                connection.execute("COMMIT")
        except StoreReadOnly as error:
            raise StoreReadOnly(
                f"{where} needs version {migrations[-1].version}, and this role may not make it: {error}",
                hint="let the owner of the schema open it once: see docs/how-to/run-a-fleet.md",
            ) from error

    def is_made(self, name: str, ledger: str, migrations: Sequence[Migration]) -> bool:
        """Were all of the migrations applied? StoreTooNew if more were."""
        with self.reading() as connection:
            return not missing(migrations, self._applied(connection, ledger), f"{name} in {self.where}")

    def _engine_schema(self, connection: Connection) -> list[tuple[Any, ...]]:
        """The engine's tables with their columns, triggers and indexes."""
        return connection.execute(
            "SELECT c.relname, a.attname, a.atttypid::text FROM pg_class AS c"
            " JOIN pg_attribute AS a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relname = ANY(%(tables)s) AND a.attnum > 0"
            " UNION ALL SELECT c.relname, t.tgname, t.tgenabled::text FROM pg_class AS c"
            " JOIN pg_trigger AS t ON t.tgrelid = c.oid"
            " WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relname = ANY(%(tables)s)"
            " UNION ALL SELECT c.relname, i.indexrelid::regclass::text, '' FROM pg_class AS c"
            " JOIN pg_index AS i ON i.indrelid = c.oid"
            " WHERE c.relnamespace = to_regnamespace(%(schema)s) AND c.relname = ANY(%(tables)s) ORDER BY 1, 2, 3",
            {"schema": self._place.schema, "tables": sorted(ENGINE_TABLES)},
        ).fetchall()

    def _apply_missing(self, connection: Connection, name: str, ledger: str, migrations: Sequence[Migration]) -> None:
        connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        # Held to the end of the transaction: several processes may start at once.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [f"{self._place.schema}.{name}"])
        table = sql.Identifier(ledger)
        connection.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (version INTEGER PRIMARY KEY,"
                " applied_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP, description TEXT)"
            ).format(table)
        )
        # Asked again under the lock.
        for migration in missing(migrations, self._applied(connection, ledger), f"{name} in {self.where}"):
            before = self._engine_schema(connection)
            begun = connection.execute("SELECT pg_current_xact_id()").fetchone()
            connection.execute(migration.sql.encode())
            if connection.execute("SELECT pg_current_xact_id()").fetchone() != begun:
                raise DefinitionError(f"migration {migration.version} of tables {name} ends its transaction")
            if self._engine_schema(connection) != before:
                raise changes_the_engine(name, migration)
            connection.execute(
                sql.SQL("INSERT INTO {} (version, description) VALUES (%s, %s)").format(table),
                [migration.version, migration.description],
            )

    def _applied(self, connection: Connection, ledger: str) -> dict[int, str | None]:
        if not self._exists(connection, ledger):
            return {}
        asked = sql.SQL("SELECT version, description FROM {}").format(sql.Identifier(ledger))
        return {int(version): description for version, description in connection.execute(asked)}

    def _exists(self, connection: Connection, table: str) -> bool:
        row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [f"{self._place.schema}.{table}"]).fetchone()
        return row is not None and bool(row[0])

    def _make_by_engine(self) -> None:
        with self.reading() as connection:
            made = self._exists(connection, "holdfast_migrations")
        if not made:
            PostgresStore(self._place.url, schema=self._place.schema, synchronous=self._synchronous).close()

    @contextmanager
    def _connected(self, begin: str, answer_limit: float) -> Iterator[Connection]:
        """A connection in a transaction, which is rolled back by closing it unless it was ended inside."""
        try:
            with self.pool.connection() as connection:
                connection.answer_limit = answer_limit
                connection.execute(begin.encode())
                yield connection
        except psycopg.Error as error:
            raise translate(error, self.where) from error

    def _connect(self) -> Connection:
        connection = BoundedConnection.connect(self._place.url, **{**CONNECTING, "application_name": "holdfast-tables"})
        # Temporary tables last: nobody's may hide the application's.
        path = f"{sql.Identifier(self._place.schema).as_string(None)}, pg_temp"
        settings = {"search_path": path, "client_min_messages": "warning", **OF_READS.settings}
        row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
        # A server configured for more than 'on' (remote_apply) is left at it.
        if self._synchronous != "FULL":
            settings["synchronous_commit"] = "off"
        elif row is not None and row[0] in ("off", "local"):
            settings["synchronous_commit"] = "on"
        connection.execute(f"SELECT {setting(settings, local=False)}".encode())
        return connection
