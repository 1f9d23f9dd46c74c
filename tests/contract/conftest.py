"""Every test here runs on every store. A store cannot opt out: a new one is one more parameter.

What is about one database only (a file, pragmas, its shell) says so: `@on_sqlite`, `@on_postgres`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.protocol import Store
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.bench import Bench, SettableClock

BACKENDS: dict[str, type[SqliteBackend | PostgresBackend]] = {
    "sqlite": SqliteBackend,
    "postgres": PostgresBackend,
}


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    backend = BACKENDS[request.param](tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def store(backend: Backend, clock: SettableClock) -> Store:
    return backend.open(clock)


@pytest.fixture
def bench(store: Store, clock: SettableClock) -> Bench:
    return Bench(store, clock)
