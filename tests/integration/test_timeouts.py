"""Timeouts: ask the step to stop, fence it, then abandon it. Whatever it does later is written nowhere."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from holdfast import Flow, JobState, Rewind, fixed
from holdfast.core.step import EndCode
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, work_for, write_effect
from tests.support.waiting import eventually


def test_a_step_that_listens_stops_in_time_and_is_tried_again(open_engine: OpenEngine) -> None:
    tally, gate = Tally(), Gate()

    def step(run: AskRun) -> Answer:
        if tally.add("tried") == 1:
            gate.pass_through(run)
        return note("done")(run)

    flow = flow_of(step, timeout=0.1, retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["done"]
    assert tally.count("tried") == 2
    assert len(engine.store.executions(job_id)) == 1


def test_a_step_knows_how_much_time_is_left(open_engine: OpenEngine) -> None:
    left: list[float | None] = []

    def step(run: AskRun) -> None:
        left.append(run.deadline)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("limited", step, timeout=60).to("unlimited", step).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)

    assert left[0] is not None
    assert 50 < left[0] <= 60
    assert left[1] is None


def test_a_step_that_is_too_slow_too_often_fails_the_job(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through, timeout=0.05, retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)
    assert gate.arrivals == 3


def test_a_step_that_ignores_its_timeout_is_abandoned_and_its_slot_is_free(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            gate.pass_through()
            tally.add("came back late")
            return Answer(trail=["late"])
        assert run.interrupted
        return note("in time")(run)

    deaf = flow_of(step, "deaf", timeout=0.1, retry=fixed(2, delay=0.01), queue="q")
    quick = flow_of(note("quick"), "quick", queue="q")
    engine = open_engine(deaf, quick)
    engine.queue("q", limit=1)
    job_id = engine.submit(deaf, Ask())
    with engine.worker(concurrency=1, **QUICK):
        result = engine.wait(job_id, timeout=20)
        other = engine.wait(engine.submit(quick, Ask()), timeout=20)
        gate.open()
        eventually(lambda: tally.count("came back late"))

    assert (result.state, other.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert [e.code for e in engine.store.executions(job_id)] == [EndCode.TIMEOUT, EndCode.COMPLETED]
    assert engine.result(deaf, job_id).trail == ["in time"]


def test_the_late_result_of_an_abandoned_step_is_written_nowhere(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        gate.pass_through()
        tally.add("came back late")
        return Answer(trail=["late"])

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("slow", step, timeout=0.1).to("next", note("next")).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)
        before = list(engine.store.journal(job_id))
        gate.open()
        eventually(lambda: tally.count("came back late"))
        engine.wait(engine.submit(flow, Ask()), timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)
    assert list(engine.store.journal(job_id)) == before
    assert engine.store.steps(job_id) == []


def test_an_abandoned_step_cannot_report_progress_or_submit_children_unnoticed(open_engine: OpenEngine) -> None:
    gate, errors = Gate(), []

    def step(run: AskRun) -> None:
        gate.pass_through()
        try:
            run.progress(1, 2)
        except Exception as error:
            errors.append(error)

    flow = flow_of(step, timeout=0.1)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
        gate.open()
        eventually(lambda: errors)

    assert type(errors[0]).__name__ == "StepTimeout"


def test_every_slot_survives_steps_that_never_return(open_engine: OpenEngine) -> None:
    """More deaf steps than slots, one after the other: the worker must not run out of threads."""
    gate = Gate()
    deaf = flow_of(lambda run: gate.pass_through(), "deaf", timeout=0.05)
    quick = flow_of(note("quick"), "quick")
    engine = open_engine(deaf, quick)
    jobs = [engine.submit(deaf, Ask()) for _ in range(6)]
    with engine.worker(concurrency=2, **QUICK):
        results = [engine.wait(job_id, timeout=30) for job_id in jobs]
        last = engine.wait(engine.submit(quick, Ask()), timeout=20)
        gate.open()

    assert {result.outcome for result in results} == {EndCode.TIMEOUT}
    assert last.state is JobState.SUCCEEDED


def test_the_time_limit_of_a_first_visit_does_not_run_on_into_the_second(open_engine: OpenEngine) -> None:
    """A step is entered again by a rewind: its clock begins anew."""
    tally = Tally()

    def slow(run: AskRun) -> None:
        work_for(0.35, run)

    def back(run: AskRun) -> None:
        if tally.add("back") < 3:
            raise Rewind("slow")

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("slow", slow, timeout=0.6).to("back", back).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED, result.reason


def test_waiting_for_a_thread_is_not_counted_as_the_time_of_the_step(open_engine: OpenEngine) -> None:
    flow = flow_of(lambda run: time.sleep(0.15), timeout=0.5)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(8)]
    with engine.worker(concurrency=1, **QUICK):
        states = [engine.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 8


@pytest.mark.parametrize("concurrency", [2, 8])
def test_as_many_blocking_steps_run_at_once_as_there_are_slots(open_engine: OpenEngine, concurrency: int) -> None:
    """Each waits for all the others: a step that is not started although there is room would hold up all of them."""
    barrier = threading.Barrier(concurrency)

    def meet(run: AskRun) -> None:
        barrier.wait(4)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("quick", note("quick")).to("meet", meet).to("again", meet).commit("save", write_effect)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(concurrency)]
    with engine.worker(concurrency=concurrency, lease=60, recovery_interval=30, stop_grace=1):
        results = [engine.wait(job_id, timeout=30) for job_id in jobs]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * concurrency, results[0].reason


def test_steps_that_become_ready_in_a_quiet_moment_are_started_at_once(open_engine: OpenEngine) -> None:
    """Nothing wakes the scheduler when a step has been recorded: whoever puts the next one into the pool has to."""
    barrier = threading.Barrier(6)

    async def rest(run: AskRun) -> None:
        await asyncio.sleep(0.7)

    def meet(run: AskRun) -> None:
        barrier.wait(4)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("rest", rest).to("meet", meet).commit("save", write_effect)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(6)]
    with engine.worker(concurrency=6, lease=60, recovery_interval=30, stop_grace=1):
        results = [engine.wait(job_id, timeout=30) for job_id in jobs]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 6, results[0].reason
