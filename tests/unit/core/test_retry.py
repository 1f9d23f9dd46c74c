"""When a step is tried again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import (
    RetryPolicy,
    delays,
    exponential,
    fixed,
    hours,
    minutes,
    never,
    policy_of,
    seconds,
    wait_before,
)
from holdfast.errors import DefinitionError

chances = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RetryPolicy,
    retries=st.integers(0, 1000),
    delay=st.floats(0, 1e6),
    factor=st.floats(1, 10),
    cap=st.floats(0, 1e6),
    jitter=st.booleans(),
)


@given(policies, st.integers(2, 10_000), chances)
def test_a_delay_is_never_negative_and_never_over_the_cap(policy: RetryPolicy, next_try: int, chance: float) -> None:
    delay = policy.delay_before(next_try, chance=chance)

    assert 0 <= delay <= policy.cap


@given(policies, st.integers(2, 200))
def test_delays_grow_up_to_the_cap(policy: RetryPolicy, next_try: int) -> None:
    without_jitter = RetryPolicy(policy.retries, policy.delay, policy.factor, policy.cap)
    delays = [without_jitter.delay_before(n, chance=0.0) for n in (next_try, next_try + 1)]

    assert delays == sorted(delays)


@given(policies, st.integers(2, 200), chances)
def test_jitter_draws_from_the_upper_half(policy: RetryPolicy, next_try: int, chance: float) -> None:
    full = RetryPolicy(policy.retries, policy.delay, policy.factor, policy.cap).delay_before(next_try, chance=chance)
    delay = RetryPolicy(policy.retries, policy.delay, policy.factor, policy.cap, jitter=True).delay_before(
        next_try, chance=chance
    )

    assert full / 2 <= delay <= full


@given(policies, st.integers(2, 200), chances)
def test_without_jitter_chance_has_no_say(policy: RetryPolicy, next_try: int, chance: float) -> None:
    plain = RetryPolicy(policy.retries, policy.delay, policy.factor, policy.cap)

    assert plain.delay_before(next_try, chance=chance) == plain.delay_before(next_try, chance=0.0)


@given(policies)
def test_the_first_retry_waits_for_the_delay_itself(policy: RetryPolicy) -> None:
    plain = RetryPolicy(policy.retries, policy.delay, policy.factor, policy.cap)

    assert plain.delay_before(2, chance=0.0) == min(policy.delay, policy.cap)


@given(policies, st.integers(0, 2000))
def test_a_policy_allows_one_try_and_its_retries(policy: RetryPolicy, tries: int) -> None:
    assert policy.is_used_up(tries) == (tries >= policy.retries + 1)


def test_an_exponential_policy_doubles() -> None:
    policy = exponential(5)

    assert [policy.delay_before(n, chance=0.0) for n in range(2, 9)] == [1, 2, 4, 8, 16, 32, 60]


def test_a_fixed_policy_keeps_its_delay_even_a_long_one() -> None:
    policy = fixed(2, delay=300)

    assert [policy.delay_before(n, chance=0.0) for n in (2, 3, 50)] == [300, 300, 300]


def test_never_is_used_up_after_the_first_try() -> None:
    assert not never().is_used_up(0)
    assert never().is_used_up(1)


def test_a_huge_number_of_tries_does_not_overflow() -> None:
    assert exponential(10**9, factor=1000).delay_before(10**9, chance=0.0) == 60


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"delay": -0.1},
        {"factor": 0.5},
        {"cap": -1},
        {"factor": 1001},
        {"delay": float("nan")},
        {"cap": float("nan")},
        {"cap": float("inf")},
        {"delay": "1"},
        {"delay": True},
        {"delay": None},
        {"retries": 2.5},
        {"retries": True},
        {"retries": "3"},
        {"retries": 10**30},
        {"factor": "2"},
        {"factor": True},
        {"factor": float("nan")},
        {"jitter": 0.5},
        {"waits": (1, -1)},
        {"waits": (1, "2")},
        {"limits": {OSError: -1}},
        {"limits": {OSError: 1.5}},
        {"limits": {"OSError": 1}},
        {"limits": {int: 1}},
        {"limits": 2},
        {"limits": "OSError"},
    ],
)
def test_a_policy_out_of_range_is_refused_with_what_is_wrong(wrong: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as refused:
        RetryPolicy(**{"retries": 1, "delay": 1.0} | wrong)

    [name] = wrong
    assert str(refused.value).startswith("delay" if name == "waits" else name)


def test_durations_may_be_timedeltas() -> None:
    policy = exponential(5, delay=timedelta(milliseconds=500), cap=timedelta(minutes=1))

    assert (policy.delay, policy.cap) == (0.5, 60.0)
    assert fixed(1, delay=timedelta(hours=2)).delay_before(2, chance=0.0) == 7200


def test_delays_are_waited_for_one_by_one() -> None:
    policy = delays(1, 10, minutes(5))

    assert policy.retries == 3
    assert [policy.delay_before(n, chance=0.0) for n in (2, 3, 4)] == [1, 10, 300]
    assert not policy.is_used_up(3)
    assert policy.is_used_up(4)


def test_delays_without_any_are_refused() -> None:
    with pytest.raises(DefinitionError):
        delays()


def test_a_whole_number_stands_for_an_exponential_policy() -> None:
    assert policy_of(3, "retry") == exponential(3)
    assert policy_of(0, "retry").is_used_up(1)


@pytest.mark.parametrize("wrong", [True, 2.5, "3", None, -1, [1, 10], exponential])
def test_what_is_no_policy_is_refused(wrong: Any) -> None:
    with pytest.raises(DefinitionError):
        policy_of(wrong, "retry")


# --- limits for classes of errors ---


def test_an_error_with_a_limit_counts_against_that_and_not_against_the_retries() -> None:
    policy = exponential(5, limits={OSError: 2, ValueError: 0, TimeoutError: 7})

    assert [policy.is_used_up(tries, OSError()) for tries in (1, 2, 3)] == [False, False, True]
    assert policy.is_used_up(1, ValueError())
    assert [policy.is_used_up(tries, KeyError()) for tries in (5, 6)] == [False, True]
    assert not policy.is_used_up(7, TimeoutError())


def test_the_most_specific_class_decides() -> None:
    policy = fixed(1, limits={Exception: 4, OSError: 2, ConnectionError: 3})

    assert policy.kind_of(ConnectionResetError()) is ConnectionError
    assert policy.kind_of(FileNotFoundError()) is OSError
    assert policy.kind_of(KeyError()) is Exception
    assert policy.kind_of(KeyboardInterrupt()) is None


def test_the_most_tries_are_those_of_all_limits_together() -> None:
    assert exponential(5).most_tries == 6
    assert exponential(5, limits={OSError: 2}).most_tries == 8


def test_a_policy_of_ones_own_that_says_nonsense_waits_for_the_cap() -> None:
    class Nonsense(RetryPolicy, frozen=True):
        def delay_before(self, next_try: int, *, chance: float) -> float:
            return [float("nan"), -1.0, float("inf"), 1 / (next_try - 5)][next_try - 2]

    policy = Nonsense(retries=4, delay=1.0, cap=3.0)

    assert [wait_before(policy, next_try, chance=0.0) for next_try in (2, 3, 4, 5)] == [3.0] * 4


def test_spans_of_time_are_seconds() -> None:
    assert (seconds(3), minutes(2), hours(1)) == (3.0, 120.0, 3600.0)
