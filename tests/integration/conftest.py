"""An engine on a real store, opened as often as a test wants and closed at its end.

A test that asks for `open_engine` alone says nothing about a file, and runs on both stores.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, Flow
from holdfast.core.facts import Severity
from holdfast.guard import check
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.flows import EFFECTS

OpenEngine = Callable[..., Engine]

QUICK: dict[str, Any] = {"lease": 3.0, "recovery_interval": 1.0, "timeout_grace": 0.2, "stop_grace": 5.0}
"""Settings of a worker in a test that does not care about them."""
ABOUT_A_FILE = {"state", "bench", "tmp_path"}
NO_EFFECTS = ("no such table", "does not exist")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    asked = set(inspect.signature(metafunc.function).parameters)
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "open_engine" in asked and not asked & ABOUT_A_FILE and not marks & {"damages_the_database", "only_sqlite"}:
        metafunc.parametrize("home", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def home(request: pytest.FixtureRequest, state: Path) -> Iterator[Backend]:
    """Where the engine of this test keeps its jobs."""
    backend: Backend = SqliteBackend(state)
    if getattr(request, "param", "sqlite") == "postgres":
        backend = PostgresBackend(state)
        # Of two that make a table at once, though only if it is not there, PostgreSQL may refuse one.
        backend.execute(f"SET search_path TO {backend.user_schema}; {EFFECTS}")
    yield backend
    backend.close()


@pytest.fixture
def open_engine(home: Backend) -> Iterator[OpenEngine]:
    opened: list[Engine] = []

    def open_engine(*flows: Flow[Any, Any], **settings: Any) -> Engine:
        engine = Engine.open(home.place, flows=flows, **settings)
        opened.append(engine)
        return engine

    yield open_engine
    for engine in opened:
        engine.close()


@pytest.fixture(autouse=True)
def nothing_is_broken_at_the_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test did to the engine, no invariant may be broken by it."""
    home = request.getfixturevalue("home") if "home" in request.fixturenames else None
    state = request.getfixturevalue("state") if "state" in request.fixturenames else None
    yield
    place = home.place if home else state
    if place is None or "damages_the_database" in request.keywords:
        return
    if (home is None or home.name == "sqlite") and not (Path(place) / "holdfast.db").exists():
        return
    with Engine.open(place) as engine:
        findings = check(engine.store, deep=True)
    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []


@pytest.fixture
def effects(home: Backend) -> Callable[[], list[str]]:
    """The jobs that have left an effect, one entry for each time."""

    def effects() -> list[str]:
        try:
            return [row[0] for row in home.query("SELECT job_id FROM effects ORDER BY job_id")]
        except Exception as error:
            if not any(words in str(error) for words in NO_EFFECTS):
                raise
            return []

    return effects
