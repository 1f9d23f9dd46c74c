"""Every test here runs on every store. A store cannot opt out: a new one is one more parameter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.protocol import Store
from tests.support.backends import SqliteBackend
from tests.support.bench import Bench, SettableClock


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture(params=["sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteBackend]:
    backend = {"sqlite": SqliteBackend}[request.param](tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def sqlite_file(backend: SqliteBackend) -> Path:
    """For the few tests that are about the file itself."""
    if backend.name != "sqlite":
        pytest.skip("there is no file")
    return backend.path


@pytest.fixture
def store(backend: SqliteBackend, clock: SettableClock) -> Store:
    return backend.open(clock)


@pytest.fixture
def bench(store: Store, clock: SettableClock) -> Bench:
    return Bench(store, clock)
