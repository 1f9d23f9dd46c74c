"""An engine on a real file, opened as often as a test wants and closed at its end."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, Flow
from holdfast.core.invariants import Severity
from holdfast.guard.check import check

OpenEngine = Callable[..., Engine]

QUICK: dict[str, Any] = {"lease": 3.0, "recovery_interval": 1.0, "timeout_grace": 0.2, "stop_grace": 5.0}
"""Settings of a worker in a test that does not care about them."""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def open_engine(state: Path) -> Iterator[OpenEngine]:
    opened: list[Engine] = []

    def open_engine(*flows: Flow[Any, Any], **settings: Any) -> Engine:
        engine = Engine.open(state, flows=flows, **settings)
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.close()


@pytest.fixture(autouse=True)
def nothing_is_broken_at_the_end(request: pytest.FixtureRequest, state: Path) -> Iterator[None]:
    """Whatever a test did to the engine, no invariant may be broken by it."""
    yield
    if (state / "holdfast.db").exists() and "damages_the_database" not in request.keywords:
        with Engine.open(state) as engine:
            findings = check(engine.store, deep=True)
        assert [finding for finding in findings if finding.severity is Severity.ERROR] == []


@pytest.fixture
def effects(state: Path) -> Callable[[], list[str]]:
    """The jobs that have left an effect, one entry for each time."""

    def effects() -> list[str]:
        with closing(sqlite3.connect(state / "holdfast.db", isolation_level=None)) as shell:
            if not shell.execute("SELECT 1 FROM sqlite_master WHERE name = 'effects'").fetchone():
                return []
            return [row[0] for row in shell.execute("SELECT job_id FROM effects ORDER BY job_id")]

    return effects
