"""One seed for everything that is drawn at random, so that any run can be run again."""

from __future__ import annotations

import os
import random
import secrets

import pytest
from hypothesis import settings

SEED_VARIABLE = "HOLDFAST_TEST_SEED"

# No database of examples: the seed alone says what is drawn.
settings.register_profile("holdfast", deadline=None, database=None, max_examples=60)
settings.load_profile("holdfast")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # Through the environment, because the processes of xdist have to draw from the same seed.
    os.environ.setdefault(SEED_VARIABLE, str(secrets.randbelow(1 << 32)))
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = os.environ[SEED_VARIABLE]


def pytest_report_header() -> str:
    return f"holdfast seed: {os.environ[SEED_VARIABLE]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"to draw the same samples again: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]}")


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Chance for one test: different in each, the same again for the same seed."""
    return random.Random(f"{seed}:{request.node.nodeid}")
