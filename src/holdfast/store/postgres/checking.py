"""Are the rules still there? What the migrations made is on record, and compared with what is there now."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from holdfast.core.invariants import Finding
from holdfast.store.session import Connection, Session
from holdfast.store.verbs.checking import fault

RULES = """
SELECT 'trigger ' || t.tgname, pg_get_triggerdef(t.oid) || t.tgenabled::text
FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'function ' || p.proname, pg_get_functiondef(p.oid)
FROM pg_proc AS p WHERE p.pronamespace = current_schema()::regnamespace
UNION ALL
SELECT 'index ' || c.relname, pg_get_indexdef(c.oid)
FROM pg_class AS c WHERE c.relkind = 'i' AND c.relnamespace = current_schema()::regnamespace
UNION ALL
SELECT 'constraint ' || n.conname || ' of ' || c.relname, pg_get_constraintdef(n.oid)
FROM pg_constraint AS n JOIN pg_class AS c ON c.oid = n.conrelid
WHERE n.connamespace = current_schema()::regnamespace
"""

INDEXES = """
SELECT c.oid::bigint, c.relname FROM pg_class AS c JOIN pg_am AS a ON a.oid = c.relam
WHERE c.relkind = 'i' AND a.amname = 'btree' AND c.relnamespace = current_schema()::regnamespace
"""


def record_rules(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """Remember every rule as the migrations left it."""
    connection.execute("CREATE TABLE IF NOT EXISTS holdfast_rules (name TEXT PRIMARY KEY, definition TEXT NOT NULL)")
    connection.execute("DELETE FROM holdfast_rules")
    connection.execute(f"INSERT INTO holdfast_rules SELECT * FROM ({RULES}) AS r (name, definition)")
    connection.execute("DELETE FROM holdfast_rules WHERE name LIKE '%holdfast_rules%'")


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
        except psycopg.Error as error:
            run("ROLLBACK TO one_index")
            yield fault("index-damaged", f"index {name}", " ".join(str(error).split()))


def missing_rules(session: Session) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped, disabled or changed."""
    connection: Connection = session.connection
    present = dict(connection.execute(RULES).fetchall())
    for name, definition in connection.execute("SELECT name, definition FROM holdfast_rules ORDER BY name").fetchall():
        if name not in present:
            yield fault("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name] != definition:
            yield fault("rule-changed", f"schema {name}", "is not what the migrations made")
