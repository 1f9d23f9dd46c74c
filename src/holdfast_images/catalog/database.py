"""What a dialect gives to the tables above it, and how they run their statements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_images.catalog.rows import AnyRow, fault_of, to_rows
from holdfast_images.errors import CatalogConflict

if TYPE_CHECKING:
    from holdfast import Transaction


class Executor(Protocol):
    """A connection, or the engine's transaction."""

    def execute(self, sql: Any, parameters: Any = ..., /) -> Any:
        """Run one statement; returns a cursor."""
        ...


class Database(Protocol):
    """One dialect: its statements, its connections, its errors."""

    statements: Mapping[str, str]
    refusals: tuple[type[Exception], ...]
    """What the driver raises when a CHECK, a key or a reference refuses a row."""

    def transaction(self) -> AbstractContextManager[Executor]:
        """Committed at the end, or rolled back whole."""
        ...

    def reading(self) -> AbstractContextManager[Executor]:
        """All reads in it see one state."""
        ...

    def close(self) -> None:
        """Close every connection."""
        ...


class Session:
    """Named statements on one transaction."""

    def __init__(self, executor: Executor, database: Database, host: str) -> None:
        self._executor = executor
        self._database = database
        self._host = host

    def run(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement. Raises CatalogConflict if a rule of the schema refuses it."""
        return self._rows(statement, parameters)[1]

    def select(self, kind: type[AnyRow], statement: str, **parameters: Any) -> list[AnyRow]:
        """The rows of a statement as records."""
        columns, rows = self._rows(statement, parameters)
        return to_rows(kind, columns, rows)

    def unreadable(self, kind: type[AnyRow], statement: str) -> list[tuple[str, str]]:
        """The rows of a statement that are no records: which each is, and why."""
        columns, rows = self._rows(statement, {})
        return [found for row in rows if (found := fault_of(kind, columns, row)) is not None]

    def _rows(self, statement: str, parameters: dict[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        sql = self._database.statements[statement]
        try:
            cursor = self._executor.execute(sql, {**parameters, "host": self._host})
            if cursor.description is None:
                return [], []
            return [column[0] for column in cursor.description], cursor.fetchall()
        except self._database.refusals as error:
            raise CatalogConflict(
                f"{statement}: the database refuses it: {str(error).strip()}",
                hint="nothing was changed; look at the rows it names",
            ) from error


class Tables:
    """Base of the groups of operations: each reads in one state and writes in one transaction."""

    def __init__(self, database: Database, *, host: str) -> None:
        self._database = database
        self._host = host

    @contextmanager
    def _reading(self) -> Iterator[Session]:
        with self._database.reading() as connection:
            yield Session(connection, self._database, self._host)

    @contextmanager
    def _writing(self, tx: Transaction | None) -> Iterator[Session]:
        """The engine's transaction if there is one, else one of our own."""
        if tx is not None:
            yield Session(tx, self._database, self._host)
            return
        with self._database.transaction() as connection:
            yield Session(connection, self._database, self._host)

    def _all(self, kind: type[AnyRow], statement: str, **parameters: Any) -> list[AnyRow]:
        with self._reading() as session:
            return session.select(kind, statement, **parameters)

    def _one(self, kind: type[AnyRow], statement: str, **parameters: Any) -> AnyRow | None:
        rows = self._all(kind, statement, **parameters)
        return rows[0] if rows else None
