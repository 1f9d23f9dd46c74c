"""Each fault that is planted into the engine is found by the checker, and nothing is found where none was planted."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.histories.plan import Store
from tests.histories.planted import PLANTS
from tests.histories.planted_plans import SHOWN_BY, planted_plan
from tests.histories.run import run_history

SLOW = ("lost-wake-up", "unfenced-write")
"""They need a worker that sleeps, or a lease that runs out: one of them is tried, by chance."""
QUICK = sorted(set(PLANTS) - set(SLOW))
STORES: tuple[Store, ...] = ("sqlite", "postgres")
pytestmark = pytest.mark.timeout(300)


def assert_found(name: str, store: Store, directory: Path) -> None:
    verdict = run_history(planted_plan(name, store), directory)

    assert {violation.rule for violation in verdict.violations} & SHOWN_BY[name], verdict


def test_every_plant_has_a_history_that_shows_it() -> None:
    assert set(SHOWN_BY) == set(PLANTS)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_found(name: str, rng: random.Random, tmp_path: Path) -> None:
    assert_found(name, rng.choice(STORES), tmp_path)


def test_a_planted_fault_that_takes_time_is_found(rng: random.Random, tmp_path: Path) -> None:
    assert_found(rng.choice(SLOW), rng.choice(STORES), tmp_path)


def test_without_its_fault_such_a_history_is_clean(rng: random.Random, tmp_path: Path) -> None:
    plan = planted_plan(rng.choice(sorted(PLANTS)), rng.choice(STORES))
    plan.planted = ""

    verdict = run_history(plan, tmp_path)

    assert not verdict.violations, verdict


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_a_planted_fault_is_found_on_both_stores(name: str, store: Store, tmp_path: Path) -> None:
    assert_found(name, store, tmp_path)


@pytest.mark.exhaustive
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", sorted(PLANTS))
def test_without_their_faults_all_of_them_are_clean(name: str, store: Store, tmp_path: Path) -> None:
    plan = planted_plan(name, store)
    plan.planted = ""

    verdict = run_history(plan, tmp_path)

    assert not verdict.violations, verdict
