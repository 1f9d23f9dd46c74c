"""A transaction on SQLite: rows go into a statement as they are, many at a time."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any

from holdfast.errors import StoreBusy
from holdfast.store.session import Connection, Rows, Session, storable_values
from holdfast.store.sqlite.connection import translate
from holdfast.store.statement import SQLITE_COMMENTS, leading_words

MOST_ROWS = 64
FEW_ROWS = 16
"""One statement takes 64 rows, a multiple of 16, or what is left over: two for most batches, and few to be prepared."""

TEMPORARY = """
SELECT type, name FROM temp.sqlite_master
WHERE type IN ('trigger', 'view', 'table') AND name NOT LIKE 'sqlite#_%' ESCAPE '#'
ORDER BY type = 'trigger' DESC, type = 'view' DESC, sql LIKE 'CREATE VIRTUAL%' DESC
"""

_ROW = re.compile(r"\bVALUES (\((?:\?, )*\?\))")
_NAME = re.compile(r":([a-z_]+)")


class SqliteSession(Session):
    """Statements for many rows say `VALUES (?, ...)` for one of them, before any named parameter."""

    __slots__ = ("_created",)

    def __init__(self, connection: Connection, sql: Mapping[str, str], now: int) -> None:
        super().__init__(connection, sql, now)
        self._created = False

    def execute_effect(self, sql: str, parameters: Any) -> Rows:
        self._created |= leading_words(sql, 1, SQLITE_COMMENTS) == ["create"]
        return super().execute_effect(sql, parameters)

    def passing(self, error: BaseException) -> Exception | None:
        return passing_in_effect(error)

    def keep_effect(self) -> None:
        # Names of temporary tables go before all others on this connection, and would hide the engine's from it.
        if self._created:
            self._created = False
            for kind, name in self.connection.execute(TEMPORARY).fetchall():
                self.connection.execute(f'DROP {kind} IF EXISTS temp."{name.replace(chr(34), chr(34) * 2)}"')
        super().keep_effect()

    @contextmanager
    def running_effects(self) -> Iterator[None]:
        # The user's tables are read as SQLite reads them.
        connection: Any = self.connection
        before, connection.text_factory = connection.text_factory, str
        try:
            yield
        finally:
            connection.text_factory = before

    def digest_of(self, column: str) -> str:
        return f"digest({column})"

    def attempt(self, sql: str, parameters: Mapping[str, Any]) -> tuple[list[Any], str | None]:
        try:
            return self.connection.execute(sql, parameters).fetchall(), None
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            return [], str(error)

    def run_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> None:
        self.fetch_rows(statement, rows, **parameters)

    def fetch_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> list[Any]:
        answers: list[Any] = []
        done = 0
        while done < len(rows):
            count = min(MOST_ROWS, len(rows) - done)
            if count > FEW_ROWS:
                count -= count % FEW_ROWS
            sql, names = _for_rows(self._sql[statement], count)
            values = [*chain.from_iterable(rows[done : done + count]), *(parameters[name] for name in names)]
            try:
                cursor = self.connection.execute(sql, values)
            except UnicodeEncodeError:
                # Raised before anything is written.
                cursor = self.connection.execute(sql, storable_values(values))
            answers += cursor.fetchall()
            done += count
        return answers


@cache
def _for_rows(sql: str, count: int) -> tuple[str, tuple[str, ...]]:
    """The statement for that many rows, all its parameters positional, and the names of those after the rows."""
    repeated = _ROW.sub(lambda found: f"VALUES {', '.join([found[1]] * count)}", sql, count=1)
    return _NAME.sub("?", repeated), tuple(_NAME.findall(repeated))


def passing_in_effect(error: BaseException) -> Exception | None:
    """Our error for one of the disk's. Inside a transaction nobody else is in the way: there "busy" and "locked" speak
    of a statement of the effect's own that is still being read.
    """
    ours = translate(error, "in a commit step") if isinstance(error, sqlite3.Error) else None
    return ours if ours is not None and ours.passing and not isinstance(ours, StoreBusy) else None
