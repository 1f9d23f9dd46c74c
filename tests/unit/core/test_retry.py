"""When a step is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.retry import RetryPolicy, exponential, fixed, hours, minutes, never, seconds
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
    ],
)
def test_a_policy_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(DefinitionError) as refused:
        RetryPolicy(**{"retries": 1, "delay": 1.0} | wrong)  # type: ignore[arg-type]

    assert refused.value.hint is not None


def test_spans_of_time_are_seconds() -> None:
    assert (seconds(3), minutes(2), hours(1)) == (3.0, 120.0, 3600.0)
