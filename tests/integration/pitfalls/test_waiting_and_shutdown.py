"""Pitfalls 17 to 20: waiting, uniqueness, heartbeats, shutdown."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast import JobState, fixed
from holdfast.errors import KeyInUseError
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.bench import (
    OPERATOR,
    Bench,
)
from tests.support.flows import Answer, Ask, AskRun, Gate, flow_of, note, raises
from tests.support.waiting import eventually


def test_17_a_retry_far_in_the_future_does_not_hold_up_what_shares_its_queue(open_engine: OpenEngine) -> None:
    """A job scheduled for later was the head of its lock, and every ready job behind it waited."""
    bad = flow_of(raises(ValueError("no")), "bad", queue="q", job_retry=fixed(3, delay=3600))
    good = flow_of(note("good"), "good", queue="q")
    engine = open_engine(bad, good)
    engine.queue("q", limit=1)
    later = engine.submit(bad, Ask(), priority=99)
    with engine.worker(**QUICK):
        eventually(lambda: engine.store.job(later).failures == 1)
        result = engine.wait(engine.submit(good, Ask()), timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(later).state is JobState.PENDING


def test_18_a_key_in_any_state_does_not_wedge_the_promotion_of_the_others(bench: Bench) -> None:
    """A uniqueness rule that ignored one state made one statement fail, and with it the promotion of all jobs."""
    bench.succeeded(key="k")
    bench.ended(key="k")
    failed = bench.ended(key="k")
    due = bench.submit(key="k", not_before=bench.clock() + 1000)
    others = [bench.submit(not_before=bench.clock() + 1000, key=f"other-{n}") for n in range(20)]
    with pytest.raises(KeyInUseError):
        bench.store.retry(failed, actor=OPERATOR, reason="x", from_state=JobState.FAILED)
    bench.clock.advance(2)

    claimed = [claim.job.job_id for claim in bench.claim()]

    assert claimed == [due, *others]
    bench.assert_sound()


def test_19_an_event_loop_that_is_busy_costs_no_lease(open_engine: OpenEngine) -> None:
    """The heartbeat was sent from the loop that the jobs were blocking, and a live job was picked again."""

    async def blocks_the_loop(run: AskRun) -> Answer:
        time.sleep(1.5)  # noqa: ASYNC251 - the very mistake this is about
        await asyncio.sleep(0)
        return Answer(total=1)

    flow = flow_of(blocks_the_loop)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(2)]
    with engine.worker(lease=0.6, recovery_interval=0.1) as worker:
        states = [engine.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 2
    assert [engine.store.job(job_id).attempt for job_id in jobs] == [1, 1]
    assert worker.telemetry.lost_leases == 0


def test_20_a_shutdown_is_no_failed_attempt_and_is_not_held_up(open_engine: OpenEngine) -> None:
    """The interruption by a deploy was counted as a failure; and a job that ignored its cancel blocked the shutdown."""
    listens, deaf = Gate(), Gate()
    polite = flow_of(listens.pass_through, "polite")
    rude = flow_of(lambda run: deaf.pass_through(), "rude")
    engine = open_engine(polite, rude)
    jobs = [engine.submit(polite, Ask()), engine.submit(rude, Ask())]
    with engine.worker(lease=30, stop_grace=0.3):
        listens.wait_for_arrival()
        deaf.wait_for_arrival()
        began = time.monotonic()
    took = time.monotonic() - began
    deaf.open()

    records = [engine.store.job(job_id) for job_id in jobs]
    assert took < 5
    assert [(job.state, job.failures, job.crashes) for job in records] == [(JobState.PENDING, 0, 0)] * 2
