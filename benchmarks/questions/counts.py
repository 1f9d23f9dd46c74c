"""What noise cannot move: how many statements, transactions and rows does a five-step flow take?"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.workers import drain, new_engine

from holdfast import crash_points

JOBS = 512


class CountingConnection(sqlite3.Connection):
    """Counts what is executed through it, and the virtual machine instructions it takes, in hundreds."""

    statements: ClassVar[Counter[str]] = Counter()
    hundreds = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.set_progress_handler(self._count_hundred, 100)

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Count, then execute."""
        CountingConnection.statements[" ".join(sql.split()[:3])] += 1
        return super().execute(sql, *parameters)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """Count, then execute."""
        CountingConnection.statements[" ".join(sql.split()[:3])] += 1
        return super().executemany(sql, *parameters)

    @staticmethod
    def _count_hundred() -> int:
        CountingConnection.hundreds += 1
        return 0


def counts(settings: Settings) -> Iterator[Figure]:
    """One flow at a time, and 128 at once."""
    for concurrency in (1, 128):
        jobs = JOBS if concurrency > 1 else JOBS // 8
        commits = _Commits()
        connect = sqlite3.connect

        def counting(*arguments: Any, connect: Any = connect, **options: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*arguments, factory=CountingConnection, **options)
            return connection

        with mock.patch("sqlite3.connect", counting), new_engine(settings.directory) as engine:
            crash_points.set_hook(commits)
            CountingConnection.statements.clear()
            CountingConnection.hundreds = 0
            try:
                run = drain(engine, flows.five_steps, jobs, concurrency)
            finally:
                crash_points.set_hook(None)
        each = f"per flow, {concurrency} at once"
        verbs = ", ".join(f"{verb} {count / jobs:.2f}" for verb, count in sorted(commits.counted.items()))
        yield figure("counts", f"transactions {each}", [commits.total / jobs], "", note=verbs)
        statements = sum(CountingConnection.statements.values()) / jobs
        yield figure("counts", f"statements {each}", [statements], "")
        thousands = CountingConnection.hundreds / 10 / jobs
        yield figure("counts", f"SQLite instructions {each}", [thousands], "thousand", note="submit included")
        yield figure("counts", f"writes {each}", [run.writes / jobs], "", note=f"{run.group:.1f} per commit")


class _Commits:
    """Counts durable transactions by verb, from the engine's own crash points."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        if point.endswith(".after-commit"):
            with self._lock:
                self.counted[point.removesuffix(".after-commit").partition(".")[0]] += 1

    @property
    def total(self) -> int:
        """Of all verbs."""
        return sum(self.counted.values())
