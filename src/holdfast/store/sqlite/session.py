"""A transaction on SQLite: rows go into a statement as they are, many at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

from holdfast.store.session import Session

MOST_ROWS = 64
FEW_ROWS = 16
"""One statement takes 64 rows, a multiple of 16, or what is left over: two for most batches, and few to be prepared."""

_ROW = re.compile(r"\bVALUES (\((?:\?, )*\?\))")
_NAME = re.compile(r":([a-z_]+)")


class SqliteSession(Session):
    """Statements for many rows say `VALUES (?, ...)` for one of them, before any named parameter."""

    __slots__ = ()

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
            answers += self.connection.execute(sql, values).fetchall()
            done += count
        return answers


@cache
def _for_rows(sql: str, count: int) -> tuple[str, tuple[str, ...]]:
    """The statement for that many rows, all its parameters positional, and the names of those after the rows."""
    repeated = _ROW.sub(lambda found: f"VALUES {', '.join([found[1]] * count)}", sql, count=1)
    return _NAME.sub("?", repeated), tuple(_NAME.findall(repeated))
