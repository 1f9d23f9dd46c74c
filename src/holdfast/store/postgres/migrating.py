"""Migrations on PostgreSQL: applied once, under an advisory lock, however many workers start at the same time."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.errors import StoreError
from holdfast.sql_files import load_migrations, pending
from holdfast.store.postgres.checking import record_rules, rules_of
from holdfast.store.postgres.connection import BoundedConnection
from holdfast.store.postgres.session import PACKAGE, Connection

LOCK = "SELECT pg_advisory_lock(hashtext('holdfast migrations'), hashtext(%s))"
"""Whoever makes the tables of a schema holds it."""
RETRY_PAUSE = 0.2
LONGEST_MIGRATION = 3600.0
"""After so long without an answer nobody is there to give one."""


def migrate(url: str, schema: str, *, where: str, timeout: float, read_only: bool = False) -> None:
    """Bring the schema up to date. Crash: each run is one transaction, so it is whole or not there."""
    migrations = load_migrations(PACKAGE, "postgres")
    with _connect(url, timeout) as connection:
        if not pending(migrations, _schema_version(connection, schema), where):
            return
        if read_only:
            raise StoreError(
                f"{where} has no tables of this version in schema {schema}",
                hint="worker and submit make them, if their role may; looking leaves no trace",
            )
        # Held until the connection is closed. Taken before the transaction begins: one that waited inside would still
        # look names up in a cache from before, and not find what the others have made meanwhile.
        connection.execute(LOCK, (schema,))
        with connection.transaction():
            # Asked again under the lock.
            missing = pending(migrations, _schema_version(connection, schema), where)
            if not missing:
                return
            _prepare_schema(connection, schema)
            before = rules_of(connection)
            for migration in missing:
                connection.execute(migration.sql.encode())
                connection.execute(
                    "INSERT INTO holdfast_migrations (version, name) VALUES (%s, %s)",
                    (migration.version, migration.name),
                )
            record_rules(connection, before)


def _connect(url: str, timeout: float) -> Connection:
    """A connection; a server that has none to give is asked again for a while, as a fleet that starts at once needs."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = BoundedConnection.connect(url, autocommit=True, connect_timeout=10)
            connection.answer_limit = LONGEST_MIGRATION
            return connection
        except psycopg.OperationalError as error:
            if time.monotonic() > deadline or not _is_crowded(error):
                raise
            time.sleep(RETRY_PAUSE)


def _is_crowded(error: Exception) -> bool:
    # While connecting psycopg knows only the text of the error, not its SQLSTATE.
    crowded = isinstance(error, pg.TooManyConnections | pg.CannotConnectNow)
    return crowded or any(
        text in str(error) for text in ("too many clients", "remaining connection slots", "starting up")
    )


def _prepare_schema(connection: Connection, schema: str) -> None:
    name = sql.Identifier(schema)
    # CREATE SCHEMA IF NOT EXISTS asks for the right to create one even if it is there.
    if connection.execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() in (None, (None,)):
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
    connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(name))
    connection.execute(
        "CREATE TABLE IF NOT EXISTS holdfast_migrations "
        "(version BIGINT PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMPTZ NOT NULL DEFAULT now())"
    )


def _schema_version(connection: Connection, schema: str) -> int:
    known: Any = connection.execute("SELECT to_regclass(%s)", (f"{schema}.holdfast_migrations",)).fetchone()
    if known is None or known[0] is None:
        return 0
    table = sql.Identifier(schema, "holdfast_migrations")
    row = connection.execute(sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(table)).fetchone()
    return int(row[0]) if row else 0
