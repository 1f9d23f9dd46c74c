"""The whole store against a small model: whatever happens in whatever order, both must come to the same."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.stateful.machine import StoreMachine

UNHURRIED = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
QUICK = settings(max_examples=100, stateful_step_count=50, deadline=None, suppress_health_check=UNHURRIED)
LONG = settings(max_examples=2000, stateful_step_count=120, deadline=None, suppress_health_check=UNHURRIED)


@pytest.mark.timeout(400)
def test_the_store_does_what_its_model_does() -> None:
    run_state_machine_as_test(StoreMachine, settings=QUICK)


@pytest.mark.exhaustive
def test_the_store_does_what_its_model_does_for_long() -> None:
    run_state_machine_as_test(StoreMachine, settings=LONG)
