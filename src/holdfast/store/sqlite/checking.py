"""Faults of the file and of its schema."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache

from holdfast.core.evidence import digest
from holdfast.core.facts import Finding, error, warning
from holdfast.sql_files import load_migrations

PACKAGE = "holdfast.store"
MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS holdfast_migrations "
    "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)"
)
MOST_LINES = 100
"""What SQLite says of a damaged file, at most."""

_CONSTRAINT = re.compile(r"(?:CHECK constraint failed in|NULL value in|non-\w+ value in) (?P<table>\w+)")


def prepare(connection: sqlite3.Connection) -> None:
    """Give a connection what statements about facts use."""
    connection.create_function("digest", 1, _digest, deterministic=True)


def _digest(text: object) -> str | None:
    # What is no text is found when it is None; a text that cannot be encoded has no digest that anything else has.
    return digest(text.encode("utf-8", "replace").decode()) if isinstance(text, str) else None


def damage(connection: sqlite3.Connection, *, deep: bool, most_bytes: int | None = None) -> Iterator[Finding]:
    """What SQLite's own check finds, unless the file is larger than that; `deep` compares every index as well."""
    pragma = "integrity_check" if deep else "quick_check"
    try:
        (pages,), (size,) = (connection.execute(f"PRAGMA {one}").fetchone() for one in ("page_count", "page_size"))
        if most_bytes is not None and pages * size > most_bytes:
            return
        for (line,) in connection.execute(f"PRAGMA {pragma}({MOST_LINES})"):
            broken = _CONSTRAINT.match(line)
            if broken is not None:
                # Not the disk: somebody has switched the checks off. The job or queue itself is found by its values.
                yield error("check-failed", f"table {broken['table']}", line)
            elif line != "ok":
                yield error("sqlite-damaged", "database", line)
    except sqlite3.DatabaseError as fault:
        yield error("sqlite-damaged", "database", f"it cannot be read to its end: {fault}")


def missing_rules(connection: sqlite3.Connection) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped or changed, and what was added to it."""
    try:
        present = _schema_of(connection)
    except sqlite3.DatabaseError as fault:
        yield error("sqlite-damaged", "schema", f"cannot be read: {fault}")
        return
    expected = expected_schema()
    for name, (_, _, sql) in expected.items():
        if name not in present:
            yield error("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name][2] != sql:
            yield error("rule-changed", f"schema {name}", "is not what the migrations made")
    tables = {name for name, (kind, _, _) in expected.items() if kind == "table"}
    for name, (kind, table, _) in present.items():
        if name not in expected and table in tables:
            say = error if kind == "trigger" else warning
            yield say("rule-added", f"schema {name}", f"somebody has added this {kind} to {table}")
    yield from _migrations(connection)


def _migrations(connection: sqlite3.Connection) -> Iterator[Finding]:
    try:
        applied = connection.execute("SELECT version, name FROM holdfast_migrations ORDER BY version").fetchall()
    except sqlite3.DatabaseError as fault:
        yield error("migrations-changed", "schema holdfast_migrations", f"cannot be read: {fault}")
        return
    if applied != [(migration.version, migration.name) for migration in load_migrations(PACKAGE, "sqlite")]:
        yield error("migrations-changed", "schema holdfast_migrations", "does not list what was applied")


@cache
def expected_schema() -> dict[str, tuple[str, str, str]]:
    """name → kind, table and SQL of everything the migrations make."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.execute(MIGRATIONS)
        for migration in load_migrations(PACKAGE, "sqlite"):
            fresh.executescript(migration.sql)
        return _schema_of(fresh)


def _schema_of(connection: sqlite3.Connection) -> dict[str, tuple[str, str, str]]:
    """name → kind, table and SQL of every index, trigger, view and table; white space does not count."""
    rows = connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {
        name: (kind, table, " ".join(sql.split())) for name, kind, table, sql in rows if not name.startswith("sqlite_")
    }
