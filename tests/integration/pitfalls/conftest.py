"""How other durable engines lost, duplicated or stranded work: each of their failures, tried here.

One test (or a few) for each, named after what happened there; the numbers are those of the list they were taken from.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.backends import SqliteBackend
from tests.support.bench import (
    Bench,
    SettableClock,
)


@pytest.fixture
def bench(state: Path) -> Bench:
    clock = SettableClock()
    return Bench(SqliteBackend(state).open(clock), clock)
