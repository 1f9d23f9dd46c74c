"""Migrations on PostgreSQL: applied once, under an advisory lock, however many workers start at the same time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import sql

from holdfast.core.facts import Finding, error, warning
from holdfast.core.hash_chain import digest
from holdfast.errors import StoreError
from holdfast.sql_files import load_migrations, pending
from holdfast.store.postgres.connection import BoundedConnection
from holdfast.store.postgres.session import PACKAGE, Connection
from holdfast.store.session import Connection as AnyConnection
from holdfast.store.session import Session

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


# --- Are the rules still there? What the migrations made is on record, and compared with what is there now ---

# What the migrations have made, one row each: name, definition, and the table it is about.
RULES = """
SELECT 'trigger ' || t.tgname || ' of ' || c.relname, pg_get_triggerdef(t.oid) || t.tgenabled::text, c.relname
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
    pg_get_functiondef(p.oid), ''
FROM pg_proc AS p WHERE p.pronamespace = current_schema()::regnamespace AND p.prokind = 'f'
UNION ALL
SELECT 'index ' || c.relname, pg_get_indexdef(c.oid) || CASE WHEN i.indisvalid THEN '' ELSE ' invalid' END, t.relname
FROM pg_class AS c JOIN pg_index AS i ON i.indexrelid = c.oid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE c.relkind = 'i' AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'constraint ' || n.conname || ' of ' || c.relname,
    pg_get_constraintdef(n.oid) || CASE WHEN n.convalidated THEN '' ELSE ' not valid' END, c.relname
FROM pg_constraint AS n JOIN pg_class AS c ON c.oid = n.conrelid
WHERE n.contype <> 'n' AND n.connamespace = current_schema()::regnamespace
UNION ALL
SELECT 'column ' || c.relname || '.' || a.attname,
    concat_ws(' ', format_type(a.atttypid, a.atttypmod), l.collname, CASE WHEN a.attnotnull THEN 'not null' END,
        a.attgenerated::text, a.attidentity::text, pg_get_expr(d.adbin, d.adrelid)),
    c.relname
FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'table ' || c.relname,
    concat_ws(' ', c.relpersistence::text, c.relrowsecurity::text, c.relforcerowsecurity::text,
        (SELECT string_agg(h.inhrelid::regclass::text, ' ') FROM pg_inherits AS h
            WHERE c.oid IN (h.inhrelid, h.inhparent))),
    c.relname
FROM pg_class AS c WHERE c.relkind IN ('r', 'p') AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'rule ' || r.rulename || ' of ' || c.relname, pg_get_ruledef(r.oid), c.relname
FROM pg_rewrite AS r JOIN pg_class AS c ON c.oid = r.ev_class WHERE c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'policy ' || p.polname || ' of ' || c.relname, coalesce(pg_get_expr(p.polqual, p.polrelid), ''), c.relname
FROM pg_policy AS p JOIN pg_class AS c ON c.oid = p.polrelid WHERE c.relnamespace = current_schema()::regnamespace
"""

SEAL = "the seal"
"""The name of the row with a digest of all others."""

INDEXES = """
SELECT c.oid::bigint, c.relname FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
WHERE c.relkind = 'i' AND a.amname = 'btree' AND c.relnamespace = current_schema()::regnamespace
"""


def record_rules(connection: psycopg.Connection[tuple[object, ...]], before: Mapping[str, str]) -> None:
    """Remember every rule as the migrations left it.

    `before` are the rules as they were before these migrations: one that somebody had changed, and that no migration
    has touched since, stays on record as it was made.
    """
    connection.execute("CREATE TABLE IF NOT EXISTS holdfast_rules (name TEXT PRIMARY KEY, definition TEXT NOT NULL)")
    recorded = _recorded(connection)
    present = _present(connection)
    wrong = {name for name, definition in recorded.items() if before.get(name) not in (None, definition)}
    rules = {
        name: recorded[name] if name in wrong and definition == before[name] else definition
        for name, definition in present.items()
        if "holdfast_rules" not in name
    }
    connection.execute("DELETE FROM holdfast_rules")
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO holdfast_rules (name, definition) VALUES (%s, %s)", [*rules.items(), (SEAL, _seal(rules))]
        )


def rules_of(connection: psycopg.Connection[tuple[object, ...]]) -> Mapping[str, str]:
    """The rules of the schema as they are."""
    return _present(connection)


def _present(connection: Any) -> dict[str, str]:
    return {name: definition for name, definition, _ in connection.execute(RULES).fetchall()}


def _recorded(connection: Any) -> dict[str, str]:
    return dict(connection.execute("SELECT name, definition FROM holdfast_rules ORDER BY name").fetchall())


def _seal(rules: Mapping[str, str]) -> str:
    return digest(json.dumps(sorted(rules.items())))


def damage(session: Session) -> Iterator[Finding]:
    """Indexes that do not fit their tables, where an administrator has installed amcheck; reading finds the rest."""
    run = session.connection.execute
    # The extension's schema is not in the engine's search path, wherever it is.
    place = run(
        "SELECT quote_ident(n.nspname) FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace "
        "WHERE e.extname = 'amcheck'"
    ).fetchone()
    if place is None:
        return
    for oid, name in run(INDEXES).fetchall():
        try:
            run("SAVEPOINT one_index")
            run(f"SELECT {place[0]}.bt_index_check({int(oid)}, true)")
        except psycopg.errors.InsufficientPrivilege:
            run("ROLLBACK TO one_index")
            return
        except psycopg.Error as fault:
            run("ROLLBACK TO one_index")
            yield error("index-damaged", f"index {name}", " ".join(str(fault).split()))


def missing_rules(session: Session) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped, disabled or changed, and what was added to it."""
    connection: AnyConnection = session.connection
    recorded = _recorded(connection)
    if recorded.pop(SEAL, None) != _seal(recorded):
        yield error("rule-changed", "schema holdfast_rules", "is not the record that the migrations left")
    tables = {name.removeprefix("table ") for name in recorded if name.startswith("table ")}
    present = {name: (definition, table) for name, definition, table in connection.execute(RULES).fetchall()}
    for name, definition in recorded.items():
        if name not in present:
            yield error("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name][0] != definition:
            yield error("rule-changed", f"schema {name}", "is not what the migrations made")
    for name, (_, table) in present.items():
        if name not in recorded and table in tables:
            say = warning if name.startswith(("index ", "column ")) else error
            yield say("rule-added", f"schema {name}", f"somebody has added it to {table}")
    yield from _migrations(connection)


def _migrations(connection: AnyConnection) -> Iterator[Finding]:
    applied = connection.execute("SELECT version, name FROM holdfast_migrations ORDER BY version").fetchall()
    if applied != [(migration.version, migration.name) for migration in load_migrations(PACKAGE, "postgres")]:
        yield error("migrations-changed", "schema holdfast_migrations", "does not list what was applied")
