"""`async def` steps: awaited on one loop, cancelled when they are to stop, and as fenced as any other."""

from __future__ import annotations

import asyncio
import time

from holdfast import Flow, JobState, fixed
from holdfast.core.step import EndCode
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Tally, flow_of, note, write_effect
from tests.support.waiting import eventually


def test_async_and_plain_steps_take_turns_in_one_flow(open_engine: OpenEngine) -> None:
    async def fetch(run: AskRun) -> Answer:
        await asyncio.sleep(0.01)
        return note("fetch")(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("fetch", fetch).to("two", note("two")).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["one", "fetch", "two"]


def test_many_async_steps_wait_at_the_same_time(open_engine: OpenEngine) -> None:
    async def wait(run: AskRun) -> None:
        await asyncio.sleep(0.3)

    flow = flow_of(wait)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(30)]
    began = time.monotonic()
    with engine.worker(concurrency=30, **QUICK):
        states = {engine.wait(job_id, timeout=20).state for job_id in jobs}

    assert states == {JobState.SUCCEEDED}
    assert time.monotonic() - began < 5


def test_an_async_step_that_fails_is_tried_again(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> Answer:
        await asyncio.sleep(0)
        if tally.add("tried") < 3:
            raise ValueError("no")
        return Answer(total=run.tries)

    flow = flow_of(step, retry=fixed(5, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.total == 3


def test_an_async_step_is_cancelled_at_its_timeout_and_may_tidy_up(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> Answer:
        if tally.add("tried") > 1:
            return Answer(total=1)
        try:
            await asyncio.sleep(60)
        finally:
            tally.add("tidied")
        return Answer()

    flow = flow_of(step, timeout=0.1, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.total == 1
    assert tally.events == ["tried", "tidied", "tried"]


def test_an_async_step_that_is_always_too_slow_fails_with_a_timeout(open_engine: OpenEngine) -> None:
    async def step(run: AskRun) -> None:
        await asyncio.sleep(60)

    flow = flow_of(step, timeout=0.05, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)


def test_an_async_step_that_swallows_its_cancellation_is_abandoned(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> Answer:
        if tally.add("tried") > 1:
            return Answer(trail=["second"])
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                tally.add("swallowed")
        tally.add("came back late")
        return Answer(trail=["late"])

    flow = flow_of(step, timeout=0.1, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)
        eventually(lambda: tally.count("came back late"))

    assert answer.trail == ["second"]
    assert [e.code for e in engine.store.executions(job_id)] == [EndCode.TIMEOUT, EndCode.COMPLETED]


def test_a_running_async_step_is_cancelled_with_its_job(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> None:
        tally.add("began")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            tally.add("cancelled")
            raise

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: tally.count("began"))
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.CANCELLED, "not needed")
    assert tally.events == ["began", "cancelled"]


def test_a_running_async_step_is_given_back_when_the_worker_stops(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> None:
        if tally.add("began") == 1:
            await asyncio.sleep(60)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: tally.count("began"))
    after_stop = engine.store.job(job_id)
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (after_stop.state, after_stop.failures, after_stop.crashes) == (JobState.PENDING, 0, 0)
    assert result.state is JobState.SUCCEEDED


def test_an_async_step_that_is_cancelled_by_its_own_doing_has_failed_and_does_not_run_for_ever(
    open_engine: OpenEngine,
) -> None:
    """A cancellation that the worker did not ask for is an error of the step, to be counted like any other."""
    tally = Tally()

    async def step(run: AskRun) -> None:
        tally.add("tried")
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    flow = flow_of(step, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert tally.count("tried") == 2


def test_an_async_step_whose_lease_is_lost_is_cancelled(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> None:
        tally.add("began")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            tally.add("cancelled")
            raise

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        eventually(lambda: tally.count("began"))
        engine.force(job_id, JobState.FAILED, reason="stop it now")
        eventually(lambda: worker.active == 0, "the worker lets go of what is not its own")
        eventually(lambda: tally.count("cancelled"), "and stops it")

    assert engine.store.job(job_id).state is JobState.FAILED
