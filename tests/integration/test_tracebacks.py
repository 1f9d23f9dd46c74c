"""A failed try leaves its traceback with the execution and in the log, whatever kind of step it was."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from typing import Any

import msgspec
import pytest

from holdfast import Abort, Engine, Flow, JobState, Pipeline, Run, Transaction, Unrecoverable, fixed
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, flow_of, note, raises, write_effect
from tests.support.waiting import eventually


def deep(values: dict[str, int]) -> int:
    return values["missing"]


def mid(values: dict[str, int]) -> int:
    try:
        return deep(values)
    except KeyError as error:
        raise LookupError("nothing is known of it") from error


def plain(_run: Run[Any, Any]) -> None:
    mid({})


async def on_the_loop(_run: Run[Any, Any]) -> None:
    await asyncio.sleep(0)
    mid({})


def commits(_run: Run[Any, Any], tx: Transaction) -> None:
    tx.execute("SELECT 1")
    mid({})


def gives_up(_run: Run[Any, Any]) -> None:
    try:
        mid({})
    except LookupError as error:
        raise Abort("no use") from error


def never_again(_run: Run[Any, Any]) -> None:
    try:
        mid({})
    except LookupError as error:
        raise Unrecoverable("no use") from error


def run_to_its_end(engine: Engine, flow: Flow[Any, Any], request: object = None) -> str:
    job_id = engine.submit(flow, request or Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=60)
    return job_id


def traceback_of(engine: Engine, job_id: str) -> str:
    return engine.store.executions(job_id)[-1].traceback or ""


@pytest.mark.parametrize("step", [plain, on_the_loop, gives_up, never_again])
def test_the_traceback_of_a_step_is_kept(open_engine: OpenEngine, step: Any) -> None:
    flow = flow_of(step)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert [name for name in ("in deep", "KeyError: 'missing'", "in mid", "LookupError") if name not in text] == []
    assert "direct cause" in text
    assert "holdfast/engine" not in text


def test_the_traceback_of_a_commit_step_is_kept(open_engine: OpenEngine) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).commit("save", commits)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert "in commits" in text
    assert "LookupError: nothing is known of it" in text
    assert "holdfast/engine" not in text
    assert "holdfast/store" not in text


def test_the_tracebacks_of_step_and_cleanup_are_both_kept(open_engine: OpenEngine) -> None:
    def cleans(_run: AskRun) -> None:
        raise OSError("cannot clean")

    flow = flow_of(plain, cleanup=cleans, cleanup_retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert text.index("LookupError") < text.index("Then the cleanup failed") < text.index("OSError: cannot clean")
    assert text.count("LookupError: nothing") == 1


def test_the_traceback_outlives_a_cleanup_that_succeeds(open_engine: OpenEngine) -> None:
    flow = flow_of(plain, cleanup=lambda _run: None)
    engine = open_engine(flow)

    assert "LookupError" in traceback_of(engine, run_to_its_end(engine, flow))


def test_of_a_job_that_succeeds_later_the_last_failed_try_is_kept(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("one"), KeyError("two"), None), retry=fixed(3, delay=0.01))
    engine = open_engine(flow)
    job_id = run_to_its_end(engine, flow)

    assert engine.store.job(job_id).state is JobState.SUCCEEDED
    assert "KeyError: 'two'" in traceback_of(engine, job_id)


def test_a_happy_job_has_none(open_engine: OpenEngine) -> None:
    flow = flow_of(note("fine"))
    engine = open_engine(flow)
    job_id = run_to_its_end(engine, flow)

    assert [e.traceback for e in engine.store.executions(job_id)] == [None]


def test_each_attempt_keeps_its_own(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("one"), KeyError("two")), job_retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = run_to_its_end(engine, flow)

    first, second = engine.store.executions(job_id)
    assert "ValueError: one" in (first.traceback or "")
    assert "KeyError: 'two'" in (second.traceback or "")


def test_the_mapping_of_a_pipeline_is_traced(open_engine: OpenEngine) -> None:
    inner = flow_of(note("fine"), "inner")

    def mapping(_view: Any) -> Ask:
        return Ask(number=mid({}))

    outer = Pipeline("outer", request=Ask).then(inner, request=mapping)
    engine = open_engine(outer, inner)
    job_id = engine.submit(outer, Ask())
    with engine.worker(**QUICK):
        text = eventually(
            lambda: next((e.traceback for e in engine.store.executions(job_id) if e.traceback), ""), "a failed try"
        )

    assert "in mapping" in text
    assert "KeyError: 'missing'" in text


def test_a_stage_that_failed_is_named_by_its_pipeline(open_engine: OpenEngine) -> None:
    inner = flow_of(plain, "inner")
    outer = Pipeline("outer", request=Ask).then(inner, request=lambda view: view.request)
    engine = open_engine(outer, inner)
    job_id = run_to_its_end(engine, outer)

    [child] = engine.store.children(job_id)
    assert child.job_id in traceback_of(engine, job_id)
    assert "in deep" in traceback_of(engine, child.job_id)


# --- steps that did not end by themselves ----------------------------------------------------------------


def deaf(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.01)


def test_of_a_plain_step_that_ignores_its_timeout_it_is_known_where_it_is(open_engine: OpenEngine) -> None:
    flow = flow_of(lambda _run: deaf(3.0), timeout=0.1)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert "in deaf" in text
    assert text.rstrip().endswith("StepTimeout: step work ran longer than its timeout")
    assert "holdfast/engine" not in text


def test_of_an_async_step_that_timed_out_it_is_known_what_it_awaited(open_engine: OpenEngine) -> None:
    async def innermost() -> None:
        await asyncio.sleep(60)

    async def step(_run: AskRun) -> None:
        await innermost()

    flow = flow_of(step, timeout=0.1)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert "in innermost" in text
    assert "StepTimeout" in text


def test_of_an_async_step_that_swallows_its_cancellation_it_is_known_where_it_is(open_engine: OpenEngine) -> None:
    async def stubborn() -> None:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    async def step(_run: AskRun) -> None:
        await stubborn()

    flow = flow_of(step, timeout=0.1)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert "in stubborn" in text
    assert "StepTimeout" in text


def test_a_listening_step_that_timed_out_is_traced_to_where_it_was_told(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through, timeout=0.05)
    engine = open_engine(flow)
    text = traceback_of(engine, run_to_its_end(engine, flow))

    assert "in pass_through" in text
    assert "StepTimeout" in text


def test_of_a_step_that_ignores_the_stop_it_is_known_where_it_is(open_engine: OpenEngine) -> None:
    begun = threading.Event()

    def step(_run: AskRun) -> None:
        begun.set()
        deaf(3.0)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**{**QUICK, "stop_grace": 0.1}):
        assert begun.wait(20)

    [execution] = engine.store.executions(job_id)
    assert execution.code == "abandoned"
    assert "in deaf" in (execution.traceback or "")


# --- odd exceptions through the whole of it ---------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")


@pytest.mark.parametrize(
    "error",
    [Unprintable(), ValueError("\udc80 \ud800"), ValueError("a\0b"), ValueError("x" * 3_000_000), SystemExit(3)],
    ids=["unprintable", "half characters", "nul", "huge", "exit"],
)
def test_an_odd_exception_ends_its_job_and_nothing_else(open_engine: OpenEngine, error: BaseException) -> None:
    flow, fine = flow_of(raises(error)), flow_of(note("fine"), "fine")
    engine = open_engine(flow, fine)
    odd, good = engine.submit(flow, Ask()), engine.submit(fine, Ask())
    with engine.worker(**QUICK):
        states = [engine.wait(job_id, timeout=60).state for job_id in (odd, good)]

    assert states == [JobState.QUARANTINED, JobState.SUCCEEDED]
    assert type(error).__name__ in traceback_of(engine, odd)
    assert len(traceback_of(engine, odd).encode()) < 10_000


class Held:
    """Something in a frame of a step, such as a cursor."""


@pytest.mark.parametrize("kind", ["plain", "async", "commit", "abort in commit", "stopped"])
def test_nothing_of_a_failed_step_is_kept_alive(
    open_engine: OpenEngine, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who collects log records, as pytest does, keeps the frames of what was logged.
    monkeypatch.setattr(logging.getLogger("holdfast.job"), "disabled", True)
    kept: list[weakref.ref[Held]] = []

    def fail(_run: AskRun, _tx: object = None) -> None:
        held = Held()
        kept.append(weakref.ref(held))
        raise Abort("no") if kind == "abort in commit" else ValueError("no")

    async def fail_later(run: AskRun) -> None:
        fail(run)

    def wait_and_fail(run: AskRun) -> None:
        held = Held()
        kept.append(weakref.ref(held))
        while True:
            run.check()
            time.sleep(0.005)

    if "commit" in kind:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer)
        flow.start("one", note("one")).commit("save", fail)
    else:
        steps: dict[str, Any] = {"plain": fail, "async": fail_later, "stopped": wait_and_fail}
        flow = flow_of(steps[kind], timeout=0.1)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    gc.collect()
    gc.disable()
    try:
        with engine.worker(**QUICK):
            engine.wait(job_id, timeout=60)
            eventually(lambda: [ref() for ref in kept] == [None] * len(kept), "the frame is let go of")
    finally:
        gc.enable()

    assert len(kept) == 1


# --- the log -----------------------------------------------------------------------------------------------


def test_each_failed_try_is_logged_with_its_traceback(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    flow = flow_of(plain, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    with caplog.at_level(logging.INFO, logger="holdfast.job"):
        job_id = run_to_its_end(engine, flow)
    lines = [record for record in caplog.records if record.name == "holdfast.job"]

    assert [(record.levelname, bool(record.exc_info)) for record in lines] == [
        ("INFO", False),  # claimed
        ("WARNING", True),  # try 1
        ("ERROR", True),  # try 2
        ("ERROR", False),  # quarantined
    ]
    assert {(record.__dict__["job_id"], record.__dict__["flow"]) for record in lines} == {(job_id, "flow")}
    assert {record.__dict__["attempt"] for record in lines} == {1}
    assert all(record.__dict__["worker"] for record in lines)
    assert [record.__dict__.get("outcome") for record in lines] == [None, "error", "error", "error"]
    assert lines[-1].__dict__["seconds"] >= 0
    assert job_id in lines[0].getMessage()


def test_a_request_that_does_not_decode_is_traced(open_engine: OpenEngine) -> None:
    class Other(msgspec.Struct):
        name: str
        must: int

    old: AskFlow = flow_of(note("fine"))
    engine = open_engine(old)
    job_id = engine.submit(old, Ask())
    new: Flow[Other, Answer] = Flow("flow", request=Other, response=Answer)
    new.start("work", note("fine")).commit("save", write_effect)  # type: ignore[arg-type]
    again = open_engine(new)
    with again.worker(**QUICK):
        again.wait(job_id, timeout=60)

    assert "must" in traceback_of(again, job_id)
