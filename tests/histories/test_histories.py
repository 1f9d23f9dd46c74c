"""Random histories keep every promise: a few short ones each time, many long ones when there is time."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from tests.histories import plan as plans
from tests.histories.plan import Store
from tests.histories.run import run_history

SECONDS = 6.0
ROUNDS = 2
LONG_SECONDS = 25.0
MINUTES_VARIABLE = "HOLDFAST_HISTORY_MINUTES"
"""How long the exhaustive histories of each store go on."""
pytestmark = pytest.mark.timeout(600)


def assert_kept(store: Store, seed: int, seconds: float) -> None:
    """Run the history of this seed; what is left of one that broke a promise is kept."""
    directory = Path(tempfile.mkdtemp(prefix=f"history-{store}-{seed}-"))
    verdict = run_history(plans.make(store, seed, seconds), directory)

    assert not verdict.violations, str(verdict)
    print(verdict)
    shutil.rmtree(directory)


@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_short_history_keeps_every_promise(store: Store, number: int, rng: random.Random) -> None:
    assert_kept(store, rng.randrange(1 << 32), SECONDS)


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_long_histories_keep_every_promise(store: Store, rng: random.Random) -> None:
    deadline = time.monotonic() + 60 * float(os.environ.get(MINUTES_VARIABLE, "60"))
    while time.monotonic() < deadline:
        assert_kept(store, rng.randrange(1 << 32), LONG_SECONDS)
