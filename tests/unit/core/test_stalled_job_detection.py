"""A running job without progress is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.progress import CurrentStep, StallVerdict, stall_limit, stall_verdict
from holdfast.core.states import JobState
from tests.support.facts import JOB_ID, START, a_job, replace

limits = st.integers(1, 10**9)
ages = st.integers(0, 10**10)


@given(limits, ages)
def test_every_age_has_its_verdict(stall_ms: int, idle_ms: int) -> None:
    verdict = stall_verdict(progressed_at=START, now=START + idle_ms, stall_ms=stall_ms)

    if idle_ms > stall_ms:
        assert verdict is StallVerdict.STALLED
    elif 2 * idle_ms > stall_ms:
        assert verdict is StallVerdict.SLOW
    else:
        assert verdict is StallVerdict.MOVING


@given(limits, ages, ages)
def test_a_job_never_gets_better_by_waiting(stall_ms: int, sooner: int, later: int) -> None:
    order = list(StallVerdict)
    verdicts = [
        stall_verdict(progressed_at=START, now=START + idle, stall_ms=stall_ms) for idle in sorted((sooner, later))
    ]

    assert order.index(verdicts[0]) <= order.index(verdicts[1])


@given(limits, st.integers(0, 10**9))
def test_a_clock_that_was_set_back_stalls_nobody(stall_ms: int, back: int) -> None:
    assert stall_verdict(progressed_at=START, now=START - back, stall_ms=stall_ms) is StallVerdict.MOVING


def test_a_step_that_backs_off_is_not_stalled_before_its_next_try_is_overdue() -> None:
    due = START + 3_600_000
    waiting = stall_verdict(progressed_at=START, retry_at=due, now=due, stall_ms=600_000)
    overdue = stall_verdict(progressed_at=START, retry_at=due, now=due + 600_001, stall_ms=600_000)

    assert (waiting, overdue) == (StallVerdict.MOVING, StallVerdict.STALLED)


@pytest.mark.parametrize(
    "idle_ms, verdict",
    [
        (500, StallVerdict.MOVING),
        (501, StallVerdict.SLOW),
        (1_000, StallVerdict.SLOW),
        (1_001, StallVerdict.STALLED),
    ],
)
def test_a_limit_that_is_just_reached_is_not_passed(idle_ms: int, verdict: StallVerdict) -> None:
    assert stall_verdict(progressed_at=START, now=START + idle_ms, stall_ms=1_000) is verdict


@pytest.mark.parametrize("number, limit", [(1, 5000), (2, 7000), (3, 1000), (None, 9000)])
def test_a_step_has_the_limit_of_its_position_and_a_cleanup_its_own(number: int | None, limit: int) -> None:
    job = replace(a_job(JobState.RUNNING), stall_ms=1000, stall_limits='{"0":5000,"1":7000,"-1":9000}')
    current = CurrentStep(
        job_id=JOB_ID,
        exec_id="e",
        attempt=1,
        worker="w",
        step="s",
        number=number,
        steps=3,
        tries=0,
        since=START,
        progress=None,
        progressed_at=START,
        retry_at=None,
    )

    assert stall_limit(job, current) == limit
    assert stall_limit(job, None) == 1000
    assert stall_limit(replace(job, stall_limits="garbage"), current) == 1000
