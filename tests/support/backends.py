"""The stores under test, and a side door to look at the tables of a user of each."""

from __future__ import annotations

import atexit
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from tests.support.postgres_server import PostgresServer

on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
"""For tests of what only a file has: its place, its pragmas, its full disk, its shell's own statements."""
on_postgres = pytest.mark.parametrize("backend", ["postgres"], indirect=True)
"""For tests of what only a server has."""


class Shell(Protocol):
    """A database shell: every statement is its own transaction."""

    def execute(self, sql: Any, /) -> Any:
        """Run one statement."""
        ...


def is_refusal(error: BaseException) -> bool:
    """Did the database refuse a statement by its rules? A statement that it does not understand is not refused."""
    if isinstance(error, psycopg.Error):
        # HF001 is what the triggers raise; DataError is a text for a number.
        return isinstance(error, psycopg.IntegrityError | psycopg.DataError) or error.sqlstate == "HF001"
    return isinstance(error, sqlite3.IntegrityError)


class Backend(Protocol):
    """A place for one store. `open` may be called several times: each is another process, as far as it can tell."""

    name: str
    parameter: str
    """What stands for a parameter in a statement."""

    @property
    def place(self) -> str:
        """What Engine.open and --store take."""
        ...

    def open(self, clock: Callable[[], int] | None) -> Store:
        """The store."""
        ...

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement, read over a connection of its own."""
        ...

    def execute(self, *statements: str) -> None:
        """Change something as a stray shell would: with none of the engine's settings."""
        ...

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        """As a person at a prompt has it."""
        ...

    def without_triggers(self, shell: Shell) -> Callable[[], None]:
        """Take the triggers away, and the types that a table insists on; the answer puts them back."""
        ...

    def restore(self, dump: str) -> None:
        """Make the database that another Holdfast has dumped, before it is opened."""
        ...

    def close(self) -> None:
        """Close what was opened."""
        ...


class SqliteBackend:
    """One SQLite file."""

    name = "sqlite"
    parameter = "?"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.place = str(directory)
        self.path = directory / "holdfast.db"
        self._opened: list[Store] = []

    def open(self, clock: Callable[[], int] | None) -> Store:
        store = open_store(self.directory, clock=clock)
        self._opened.append(store)
        return store

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, *statements: str) -> None:
        with self.shell() as shell:
            for statement in statements:
                shell.execute(statement)

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            yield connection

    def without_triggers(self, shell: Shell) -> Callable[[], None]:
        triggers = shell.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            shell.execute(f"DROP TRIGGER {name}")
        put_types_back = self.without_types(shell)

        def put_back() -> None:
            put_types_back()
            for _, sql in triggers:
                shell.execute(sql)

        return put_back

    def without_types(self, shell: Shell) -> Callable[[], None]:
        """Let every column take what SQLite takes by default; the answer makes them strict again."""
        tables = shell.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE '%) STRICT,%'")
        strict = ", ".join(f"'{name}'" for (name,) in tables.fetchall())
        self._rewrite_schema(shell, strict, ") STRICT, WITHOUT ROWID", ") WITHOUT ROWID")
        return lambda: self._rewrite_schema(shell, strict, ") WITHOUT ROWID", ") STRICT, WITHOUT ROWID")

    def _rewrite_schema(self, shell: Shell, tables: str, before: str, after: str) -> None:
        shell.execute("PRAGMA writable_schema = ON")
        shell.execute(f"UPDATE sqlite_schema SET sql = replace(sql, '{before}', '{after}') WHERE name IN ({tables})")
        shell.execute("PRAGMA writable_schema = RESET")
        version = shell.execute("PRAGMA schema_version").fetchone()[0]
        shell.execute(f"PRAGMA schema_version = {version + 1}")  # or who has the file open would not notice

    def restore(self, dump: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.executescript(dump)

    def close(self) -> None:
        for store in self._opened:
            store.close()


@cache
def shared_server() -> PostgresServer:
    """The server of this test process, started when the first test asks for it."""
    server = PostgresServer()
    atexit.register(server.close)
    server.start()
    return server


class PostgresBackend:
    """One schema of a PostgreSQL server that the tests started; a user's tables are in another schema."""

    name = "postgres"
    parameter = "%s"

    def __init__(self, directory: Path, server: PostgresServer | None = None) -> None:
        self.server = server or shared_server()
        self.schema = f"t_{secrets.token_hex(6)}"
        self.user_schema = f"{self.schema}_user"
        self._opened: list[Store] = []
        self.server.execute(f"CREATE SCHEMA {self.user_schema}")

    @property
    def place(self) -> str:
        return self.place_at(self.server.url)

    def place_at(self, url: str) -> str:
        """The store, reached by another way: as another role, through a proxy."""
        return f"{url}?holdfast_schema={self.schema}&options=-csearch_path%3D{self.user_schema}"

    def open(self, clock: Callable[[], int] | None) -> Store:
        store = open_store(self.place, clock=clock)
        self._opened.append(store)
        return store

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self.shell() as shell:
            rows: list[tuple[Any, ...]] = shell.execute(sql).fetchall()
            return rows

    def execute(self, *statements: str) -> None:
        with self.shell() as shell:
            for statement in statements:
                shell.execute(statement)

    @contextmanager
    def shell(self) -> Iterator[Shell]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f"SET search_path TO {self.user_schema}, {self.schema}".encode())
            yield connection

    def without_triggers(self, shell: Shell) -> Callable[[], None]:
        shell.execute("SET session_replication_role = replica")

        def put_back() -> None:
            shell.execute("SET session_replication_role = origin")

        return put_back

    def restore(self, dump: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute("SET check_function_bodies = off")
            connection.execute(dump.replace("older_schema", self.schema).encode())

    def close(self) -> None:
        for store in self._opened:
            store.close()
        # Most of the time of a test would go into dropping its schemas one by one; the server is thrown away whole.
