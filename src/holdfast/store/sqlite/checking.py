"""Faults of the file and of its schema."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache

from holdfast.core.invariants import Finding
from holdfast.sql_files import load_migrations
from holdfast.store.verbs.checking import fault

PACKAGE = "holdfast.store.sqlite"


def damage(connection: sqlite3.Connection, *, deep: bool) -> Iterator[Finding]:
    """What SQLite's own check finds; `deep` reads every page and every index."""
    pragma = "integrity_check" if deep else "quick_check"
    try:
        for (line,) in connection.execute(f"PRAGMA {pragma}"):
            if line != "ok":
                yield fault("sqlite-damaged", "database", line)
    except sqlite3.DatabaseError as error:
        yield fault("sqlite-damaged", "database", f"it cannot be read to its end: {error}")


def missing_rules(connection: sqlite3.Connection) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped or changed."""
    present = _schema_of(connection)
    for name, sql in expected_schema().items():
        if name not in present:
            yield fault("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name] != sql:
            yield fault("rule-changed", f"schema {name}", "is not what the migrations made")


@cache
def expected_schema() -> dict[str, str]:
    """name → SQL of everything the migrations make."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        for migration in load_migrations(PACKAGE):
            fresh.executescript(migration.sql)
        return _schema_of(fresh)


def _schema_of(connection: sqlite3.Connection) -> dict[str, str]:
    """name → SQL of every index, trigger, view and table."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {name: sql for name, sql in rows if not name.startswith("sqlite_")}
