"""Databases for tests of the catalog: a SQLite file, and a schema of a PostgreSQL server."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

PLACES = ("sqlite", "postgres")


class CatalogPlace:
    """Where a catalog is, and a side door to its tables."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement, as a person at a prompt would run it, with the keys and references enforced."""
        raise NotImplementedError


class SqlitePlace(CatalogPlace):
    def __init__(self, directory: Path) -> None:
        super().__init__("sqlite", str(directory))
        self.path = directory / "holdfast.db"

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            return connection.execute(statement).fetchall()


class PostgresPlace(CatalogPlace):
    def __init__(self) -> None:
        from tests.support.backends import shared_server

        self.schema = f"c_{secrets.token_hex(6)}"
        self.server = shared_server()
        super().__init__("postgres", f"{self.server.url}?holdfast_schema={self.schema}")

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(f"SET search_path TO {self.schema}".encode())
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def make_place(name: str, directory: Path) -> CatalogPlace:
    """A place that nobody has used."""
    return SqlitePlace(directory) if name == "sqlite" else PostgresPlace()
