"""The fuzzer runs for a while with every run of the tests, from the seed of that run."""

from __future__ import annotations

import pytest

from tests.hostile.fuzz_parser import fuzz


def test_a_few_seconds_of_fuzzing_find_no_surprise(seed: int) -> None:
    runs, steps, kept = fuzz(seed, 60, runs=300)

    assert runs > 0
    assert steps > 500
    assert kept > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_ten_minutes_of_fuzzing_find_no_surprise(seed: int) -> None:
    runs, _, kept = fuzz(seed, 600)

    assert runs > 0
    assert kept > 0
