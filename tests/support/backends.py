"""The stores under test, and a side door to look at the tables of a user of each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast.store.opening import open_store
from holdfast.store.protocol import Store


class SqliteBackend:
    """One SQLite file. `open` may be called several times: each is another process, as far as the store can tell."""

    name = "sqlite"
    placeholder = "?"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "holdfast.db"
        self._opened: list[Store] = []

    def open(self, clock: Callable[[], int] | None) -> Store:
        store = open_store(self.directory, clock=clock)
        self._opened.append(store)
        return store

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Rows of a statement, read over a connection of its own."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(sql).fetchall()

    def execute(self, *statements: str) -> None:
        """Change something as a stray shell would: with none of the engine's settings."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    def close(self) -> None:
        for store in self._opened:
            store.close()
