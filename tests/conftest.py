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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test that is marked `sampled`, keep one case for each value of the named parameters, drawn from the others.

    Where parameters do not depend on each other, their whole product says little more than a sample of it; the whole
    product runs with `-m exhaustive`.
    """
    sampled = [each for each in items if isinstance(each, pytest.Function) and each.get_closest_marker("sampled")]
    if config.getoption("markexpr") != "not exhaustive":
        for item in sampled:
            item.add_marker(pytest.mark.exhaustive)
        return
    groups: dict[tuple[str, ...], list[pytest.Item]] = {}
    for item in sampled:
        names = [name for mark in item.iter_markers("sampled") for name in mark.args]
        # By identity: not every value can be hashed, and the text of some is another in each process.
        values = [str(id(item.callspec.params[name])) for name in names]
        groups.setdefault((item.nodeid.partition("[")[0], *values), []).append(item)
    chances = {group[0]: random.Random(f"{os.environ[SEED_VARIABLE]}:{group[0]}") for group in groups}
    drawn = {chances[group[0]].choice(cases).nodeid for group, cases in groups.items()}
    left_out = {item.nodeid: item for item in sampled if item.nodeid not in drawn}
    config.hook.pytest_deselected(items=list(left_out.values()))
    items[:] = [item for item in items if item.nodeid not in left_out]


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run."""
    return int(os.environ[SEED_VARIABLE])


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Chance for one test: different in each, the same again for the same seed."""
    return random.Random(f"{seed}:{request.node.nodeid}")
