"""Event loops of a worker: whatever a step or what it has started does to one, it is the fault of that step alone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast import Engine, JobState, fixed
from holdfast.core.step import EndCode
from holdfast.worker import event_loop
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskRun, Tally, flow_of
from tests.support.waiting import PATIENCE, eventually

PATIENT: dict[str, Any] = {**QUICK, "lease": 60.0}
"""A lease that nothing here outlasts."""


class Panic(BaseException):
    """What extensions in other languages raise when they have failed."""


ERRORS = [SystemExit(2), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), Panic("!"), MemoryError()]


async def in_the_step(error: BaseException) -> None:
    raise error


async def in_a_task(error: BaseException) -> None:
    await asyncio.create_task(in_the_step(error))


async def in_a_task_of_a_task(error: BaseException) -> None:
    await asyncio.create_task(in_a_task(error))


async def in_a_group(error: BaseException) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(in_the_step(error))
        group.create_task(asyncio.sleep(60))


async def in_a_gathering(error: BaseException) -> None:
    await asyncio.gather(in_the_step(error), asyncio.sleep(0.05))


async def in_a_generator(error: BaseException) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        raise error

    async for _ in numbers():
        pass


WAYS: list[Callable[[BaseException], Awaitable[None]]] = [
    in_the_step,
    in_a_task,
    in_a_task_of_a_task,
    in_a_group,
    in_a_gathering,
    in_a_generator,
]


def run_beside_a_good_one(engine: Engine, flows: dict[str, Any], **settings: Any) -> tuple[JobState, ...]:
    """How a bad job, a good one beside it and a good one after it have ended."""
    with engine.worker(**(PATIENT | settings)) as worker:
        beside = engine.submit(flows["good"], Ask())
        bad = engine.submit(flows["bad"], Ask())
        ended = engine.wait(bad, timeout=PATIENCE).state
        after = engine.submit(flows["good"], Ask())
        states = [engine.wait(job_id, timeout=PATIENCE).state for job_id in (beside, after)]
        assert worker.failure is None
    return (ended, *states)


def flows_with(step: Callable[[AskRun], Awaitable[Any]], **settings: Any) -> dict[str, Any]:
    async def good(run: AskRun) -> None:
        await asyncio.sleep(0.05)

    return {"bad": flow_of(step, "bad", **settings), "good": flow_of(good, "good")}


@pytest.mark.parametrize(
    "way, error",
    # A group goes on without a task of its own that was cancelled.
    [(way, error) for way in WAYS for error in ERRORS if (way, type(error)) != (in_a_group, asyncio.CancelledError)],
    ids=lambda part: getattr(part, "__name__", type(part).__name__),
)
@pytest.mark.only_sqlite
def test_whatever_is_raised_and_wherever_is_a_failed_try_of_that_step(
    open_engine: OpenEngine, way: Callable[[BaseException], Awaitable[None]], error: BaseException
) -> None:
    async def step(run: AskRun) -> None:
        await way(error)

    flows = flows_with(step, retry=fixed(1, delay=0.01))
    engine = open_engine(*flows.values())
    states = run_beside_a_good_one(engine, flows)

    assert states == (JobState.QUARANTINED, JobState.SUCCEEDED, JobState.SUCCEEDED)
    job = engine.store.jobs(flow="bad")[0]
    [execution] = engine.store.executions(job.job_id)
    assert execution.code == EndCode.ERROR
    assert "failed 2 time(s)" in str(execution.error)


def test_an_exit_in_a_task_that_nobody_awaits_fails_the_step_that_started_it(open_engine: OpenEngine) -> None:
    """It would end the program; here, the step that would wait for ever."""

    async def step(run: AskRun) -> None:
        task = asyncio.create_task(in_the_step(SystemExit(3)))
        await asyncio.sleep(60)
        await task

    flows = flows_with(step)
    engine = open_engine(*flows.values())
    states = run_beside_a_good_one(engine, flows)

    assert states == (JobState.QUARANTINED, JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert "SystemExit: 3" in str(engine.store.executions(engine.store.jobs(flow="bad")[0].job_id)[0].error)


def test_an_exit_in_a_callback_fails_the_step_that_asked_for_it(open_engine: OpenEngine) -> None:
    async def step(run: AskRun) -> None:
        asyncio.get_running_loop().call_later(0.01, sys.exit, 4)
        await asyncio.sleep(60)

    flows = flows_with(step)
    engine = open_engine(*flows.values())
    states = run_beside_a_good_one(engine, flows)

    assert states == (JobState.QUARANTINED, JobState.SUCCEEDED, JobState.SUCCEEDED)


def test_an_exit_in_a_task_that_outlives_its_step_belongs_to_nobody(open_engine: OpenEngine) -> None:
    left: list[asyncio.Task[None]] = []

    async def exit_later() -> None:
        await asyncio.sleep(0.1)
        sys.exit(5)

    async def step(run: AskRun) -> None:
        left.append(asyncio.create_task(exit_later()))

    flows = flows_with(step)
    engine = open_engine(*flows.values())
    with engine.worker(**PATIENT) as worker:
        first = engine.wait(engine.submit(flows["bad"], Ask()), timeout=PATIENCE).state
        eventually(left[0].done)
        second = engine.wait(engine.submit(flows["good"], Ask()), timeout=PATIENCE).state
        assert worker.failure is None

    assert (first, second) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert isinstance(left[0].exception(), SystemExit)


def test_a_step_that_stops_the_loop_does_not_stop_the_others(open_engine: OpenEngine) -> None:
    async def step(run: AskRun) -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)

    flows = flows_with(step)
    engine = open_engine(*flows.values())

    assert set(run_beside_a_good_one(engine, flows)) == {JobState.SUCCEEDED}


def test_a_step_that_changes_how_its_loop_makes_tasks_does_not_stop_the_others(open_engine: OpenEngine) -> None:
    def factory(_loop: asyncio.AbstractEventLoop, coroutine: Any, **_options: Any) -> Any:
        coroutine.close()
        raise SystemExit(6)

    async def step(run: AskRun) -> None:
        asyncio.get_running_loop().set_task_factory(factory)

    flows = flows_with(step)
    engine = open_engine(*flows.values())

    assert set(run_beside_a_good_one(engine, flows)) == {JobState.SUCCEEDED}


def test_steps_that_another_one_cancels_have_failed_whether_they_had_begun_or_not(open_engine: OpenEngine) -> None:
    over = threading.Event()

    async def cancels_all(run: AskRun) -> None:
        while not over.is_set():
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0)

    async def victim(run: AskRun) -> None:
        await asyncio.sleep(60)

    bad, good = flow_of(cancels_all, "bad"), flow_of(victim, "good")
    engine = open_engine(bad, good)
    with engine.worker(**PATIENT):
        first = engine.submit(bad, Ask())
        victims = [engine.submit(good, Ask()) for _ in range(30)]
        states = {engine.wait(job_id, timeout=PATIENCE).state for job_id in victims}
        over.set()
        last = engine.wait(first, timeout=PATIENCE).state

    assert states == {JobState.QUARANTINED}
    assert last is JobState.SUCCEEDED


def test_a_step_that_never_ends_runs_on_no_thread_but_its_own(open_engine: OpenEngine) -> None:
    """What is forgotten is ended by the collector of garbage, on whatever thread that runs."""
    over = threading.Event()
    threads: list[str] = []

    async def deaf(run: AskRun) -> None:
        while not over.is_set():
            try:
                await asyncio.sleep(0.01)
            except BaseException:
                threads.append(threading.current_thread().name)
                if threads[-1] != "holdfast-async":
                    return

    flow = flow_of(deaf, timeout=0.1)
    engine = open_engine(flow)
    with engine.worker(**PATIENT):
        state = engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE).state
    gc.collect()
    over.set()
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "holdfast-async"])

    assert state is JobState.QUARANTINED
    assert set(threads) == {"holdfast-async"}


def test_a_loop_that_died_is_replaced_and_what_was_on_it_has_failed_a_try(open_engine: OpenEngine) -> None:
    tally = Tally()

    async def step(run: AskRun) -> Answer:
        if tally.add("tried") == 1:
            loop: Any = asyncio.get_running_loop()
            loop._run_once = None  # as a library might that patches loops
            await asyncio.sleep(60)
        return Answer(total=run.tries)

    flow = flow_of(step, "bad", retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    with engine.worker(**PATIENT) as worker:
        answer = engine.result(flow, engine.submit(flow, Ask()), timeout=PATIENCE)
        faults = worker.telemetry.faults["run the event loop"]
        assert worker.failure is None

    assert answer.total == 2
    assert faults == 1


# --- a step that blocks the loop ---


class Block:
    """Blocks a thread until the test is over."""

    def __init__(self) -> None:
        self.entered, self.over = threading.Event(), threading.Event()

    async def step(self, run: AskRun) -> None:
        self.entered.set()
        self.over.wait(PATIENCE * 4)

    async def step_in_a_task(self, run: AskRun) -> None:
        await asyncio.create_task(self.step(run))


@pytest.fixture
def block() -> Any:
    block = Block()
    yield block
    block.over.set()


def test_a_blocked_loop_times_out_its_step_and_the_next_ones_run_elsewhere(
    open_engine: OpenEngine, block: Block
) -> None:
    flows = flows_with(block.step, timeout=0.2)
    engine = open_engine(*flows.values())
    with engine.worker(**PATIENT):
        bad = engine.submit(flows["bad"], Ask())
        assert block.entered.wait(PATIENCE)
        good = [engine.submit(flows["good"], Ask()) for _ in range(5)]
        ended = engine.wait(bad, timeout=PATIENCE)
        states = {engine.wait(job_id, timeout=PATIENCE).state for job_id in good}

    assert (ended.state, ended.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)
    assert states == {JobState.SUCCEEDED}


def test_steps_that_have_not_begun_leave_a_loop_that_is_blocked_without_a_timeout(
    open_engine: OpenEngine, block: Block
) -> None:
    flows = flows_with(block.step)
    engine = open_engine(*flows.values())
    with engine.worker(**PATIENT):
        bad = engine.submit(flows["bad"], Ask())
        assert block.entered.wait(PATIENCE)
        good = [engine.submit(flows["good"], Ask()) for _ in range(5)]
        states = {engine.wait(job_id, timeout=PATIENCE).state for job_id in good}
        running = engine.store.job(bad).state
        block.over.set()
        after = engine.wait(bad, timeout=PATIENCE).state

    assert states == {JobState.SUCCEEDED}
    assert running is JobState.RUNNING, "it works, if badly, and is left to it"
    assert after is JobState.SUCCEEDED


@pytest.mark.parametrize("way", ["step", "step_in_a_task"])
def test_steps_in_the_midst_of_an_await_are_given_back_when_their_loop_stays_blocked(
    open_engine: OpenEngine, block: Block, way: str
) -> None:
    tally = Tally()

    async def waits(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            await asyncio.sleep(0.2)
            await asyncio.sleep(60)
        return Answer(total=run.job.failures + run.job.crashes, trail=[str(run.interrupted)])

    waiting, blocking = flow_of(waits, "waiting"), flow_of(getattr(block, way), "blocking")
    engine = open_engine(waiting, blocking)
    with engine.worker(**{**QUICK, "lease": 4.0}):
        victim = engine.submit(waiting, Ask())
        eventually(lambda: tally.count("entered"))
        culprit = engine.submit(blocking, Ask())
        answer = engine.result(waiting, victim, timeout=PATIENCE * 2)
        blocked = engine.store.job(culprit)

    [first, _] = engine.store.executions(victim)
    assert (answer.total, answer.trail) == (0, ["True"]), "it cost nothing, and it was told"
    assert (first.code, first.disposition) == (EndCode.ABANDONED, "retry")
    assert (blocked.state, blocked.attempt) == (JobState.RUNNING, 1)


def test_steps_in_the_midst_of_an_await_go_on_when_their_loop_does(open_engine: OpenEngine, block: Block) -> None:
    tally = Tally()

    async def waits(run: AskRun) -> None:
        tally.add("entered")
        await asyncio.sleep(0.5)

    waiting, blocking = flow_of(waits, "waiting"), flow_of(block.step, "blocking")
    engine = open_engine(waiting, blocking)
    with engine.worker(**PATIENT):
        victim = engine.submit(waiting, Ask())
        eventually(lambda: tally.count("entered"))
        culprit = engine.submit(blocking, Ask())
        assert block.entered.wait(PATIENCE)
        time.sleep(event_loop.BLOCKED_AFTER + 1.5)
        block.over.set()
        states = [engine.wait(job_id, timeout=PATIENCE).state for job_id in (victim, culprit)]

    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED]
    assert tally.count("entered") == 1


def test_the_timeout_of_a_step_runs_although_another_one_blocks_the_loop(open_engine: OpenEngine, block: Block) -> None:
    entered = threading.Event()

    async def waits(run: AskRun) -> None:
        entered.set()
        await asyncio.sleep(60)

    waiting, blocking = flow_of(waits, "waiting", timeout=1.0), flow_of(block.step, "blocking")
    engine = open_engine(waiting, blocking)
    with engine.worker(**PATIENT):
        victim = engine.submit(waiting, Ask())
        assert entered.wait(PATIENCE)
        engine.submit(blocking, Ask())
        result = engine.wait(victim, timeout=PATIENCE)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)


def test_a_worker_with_a_blocked_loop_stops_and_gives_back(open_engine: OpenEngine, block: Block) -> None:
    flows = flows_with(block.step)
    engine = open_engine(*flows.values())
    with engine.worker(**{**PATIENT, "stop_grace": 0.3}) as worker:
        jobs = [engine.submit(flows["bad"], Ask())]
        assert block.entered.wait(PATIENCE)
        jobs += [engine.submit(flows["good"], Ask()) for _ in range(3)]
        began = time.monotonic()
        clean = worker.stop()
        took = time.monotonic() - began

    records = [engine.store.job(job_id) for job_id in jobs]
    assert not clean
    assert took < 15
    assert {(job.state, job.crashes, job.failures) for job in records} <= {
        (JobState.PENDING, 0, 0),
        (JobState.SUCCEEDED, 0, 0),
    }
    assert engine.store.under_way() == []


# --- no threads ---


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_without_threads_work_waits_and_goes_on_when_there_are_some(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def plain(run: AskRun) -> None:
        pass

    async def later(run: AskRun) -> None:
        pass

    flow = flow_of(plain if kind == "plain" else later)
    engine = open_engine(flow)
    exhausted = exhaust_threads(monkeypatch)
    with engine.worker(**PATIENT) as worker:
        job_id = engine.submit(flow, Ask())
        eventually(lambda: exhausted.refused > 1)
        waiting = engine.store.job(job_id).state
        exhausted.over = True
        ended = engine.wait(job_id, timeout=PATIENCE).state
        assert worker.failure is None

    assert (waiting, ended) == (JobState.RUNNING, JobState.SUCCEEDED)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_without_threads_for_as_long_as_a_lease_work_is_given_back(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    async def later(run: AskRun) -> None:
        pass

    flow = flow_of(later if kind == "async" else lambda run: None)
    engine = open_engine(flow)
    exhausted = exhaust_threads(monkeypatch)
    with engine.worker(**{**QUICK, "lease": 1.0}):
        job_id = engine.submit(flow, Ask())
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.code])
        [first, *_] = engine.store.executions(job_id)
        exhausted.over = True
        ended = engine.wait(job_id, timeout=PATIENCE).state

    job = engine.store.job(job_id)
    assert first.code == EndCode.RELEASED
    assert (ended, job.crashes, job.failures) == (JobState.SUCCEEDED, 0, 0)


class Exhausted:
    """The system has no more threads for steps and loops."""

    def __init__(self) -> None:
        self.over = False
        self.refused = 0


def exhaust_threads(monkeypatch: pytest.MonkeyPatch) -> Exhausted:
    exhausted = Exhausted()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if not exhausted.over and thread.name in ("holdfast-step", "holdfast-async"):
            exhausted.refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return exhausted
