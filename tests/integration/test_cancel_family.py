"""Cancelling a job that has children, with workers at work: the whole family ends, in bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from holdfast import Engine, Flow, JobState, Pipeline, WaitFor
from holdfast.core.states import UNFINISHED_STATES
from holdfast.core.step import EndCode
from holdfast.errors import LeaseLost, StepCancelled
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, work_for
from tests.support.waiting import eventually


def children_of(engine: Engine, job_id: str) -> list[JobState]:
    return [child.state for child in engine.store.children(job_id)]


def all_ended(engine: Engine) -> Callable[[], bool]:
    return lambda: not engine.store.jobs(states=UNFINISHED_STATES)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_pipeline_that_is_cancelled_takes_its_running_stage_along(open_engine: OpenEngine, concurrency: int) -> None:
    """Also where the stage holds the only slot there is: it has to end before the pipeline can be claimed again."""
    gate = Gate()
    stage = flow_of(gate.pass_through, "stage")
    never = flow_of(note("never"), "never")
    pipeline = Pipeline("pipeline", request=Ask).then(stage, request=lambda view: view.request)
    pipeline.then(never, request=lambda view: view.request)
    engine = open_engine(pipeline)
    engine.register(pipeline)
    job_id = engine.submit(pipeline, Ask())
    with engine.worker(concurrency=concurrency, **QUICK):
        gate.wait_for_arrival()
        engine.cancel(job_id, reason="wrong image")
        result = engine.wait(job_id, timeout=30)
        eventually(all_ended(engine), "the stage has ended, too")

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.CANCELLED, "wrong image")
    [child] = engine.store.children(job_id)
    ended = engine.wait(child.job_id)
    assert (ended.state, ended.outcome) == (JobState.FAILED, EndCode.CANCELLED)
    assert ended.reason == f"cancelled with its parent {job_id}: wrong image"


def family(tally: Tally, gate: Gate, depth: int, width: int) -> AskFlow:
    """Each job has children of the same flow, down to where they work for ever."""
    flow: AskFlow = Flow("family", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"))

    def have_children(run: AskRun) -> None:
        if run.request.number >= depth:
            gate.pass_through(run)
            return
        ask = Ask(run.request.name, run.request.number + 1)
        children = [run.submit_child(str(n), flow, ask) for n in range(width)]
        for child in children:
            if run.child_result(child).state in UNFINISHED_STATES:
                raise WaitFor(child)

    return flow.start("have-children", have_children)


def test_a_family_ends_with_its_head_each_after_its_cleanup(open_engine: OpenEngine) -> None:
    tally, gate = Tally(), Gate()
    flow = family(tally, gate, depth=2, width=3)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(concurrency=4, **QUICK):
        for _ in range(4):
            gate.wait_for_arrival()
        engine.cancel(job_id, reason="enough")
        eventually(all_ended(engine), "everybody has ended")

    jobs = engine.store.jobs(limit=100)
    assert len(jobs) == 13
    assert {job.state for job in jobs} == {JobState.FAILED}
    ran = [job for job in jobs if engine.store.executions(job.job_id)[-1].lease_owner != engine.actor]
    assert len(ran) >= 4
    assert tally.count("cleaned") == len(ran)


def test_no_child_escapes_a_step_that_goes_on_having_them(open_engine: OpenEngine) -> None:
    """It never asks whether to stop: the store tells it, at the first child that comes too late."""
    tally, told = Tally(), []
    child = flow_of(note("child"), "child")

    def have_children(run: AskRun) -> None:
        for number in range(100_000):
            try:
                run.submit_child(str(number), child, Ask())
            except (StepCancelled, LeaseLost) as error:
                told.append(error)
                raise
            tally.add("child")
            time.sleep(0.001)

    parent: AskFlow = Flow("parent", request=Ask, response=Answer)
    parent.start("have-children", have_children)
    engine = open_engine(parent, child)
    engine.store.submit([engine.prepare(child, Ask(), queue="closed")], actor="client")
    job_id = engine.submit(parent, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: tally.count("child") >= 20, "it has begun")
        engine.cancel(job_id, reason="enough")
        result = engine.wait(job_id, timeout=60)
        eventually(lambda: not set(children_of(engine, job_id)) & UNFINISHED_STATES, "no child is left", within=60)

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.CANCELLED)
    assert result.reason == "enough"
    assert told
    assert len(engine.store.children(job_id)) == tally.count("child")


def test_of_children_submitted_while_the_parent_is_cancelled_none_is_left(open_engine: OpenEngine) -> None:
    """From many threads at once, against the cancellation: each child is refused, or is cancelled."""
    gate = Gate()
    parent, child = flow_of(gate.pass_through, "parent"), flow_of(note("child"), "child")
    engine = open_engine(parent, child)
    for _turn in range(5):
        job_id = engine.submit(parent, Ask())
        barrier = threading.Barrier(5)
        made: list[str] = []

        def submit(number: int, job_id: str = job_id, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(60)
            for turn in range(10):
                try:
                    made.append(engine.submit(child, Ask(str(number), turn), parent=job_id))  # noqa: B023
                except Exception:
                    return

        threads = [threading.Thread(target=submit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        barrier.wait(60)
        engine.cancel(job_id, reason="enough")
        for thread in threads:
            thread.join(60)

        assert {engine.store.job(each).state for each in made} <= {JobState.FAILED}


def test_a_worker_continues_what_a_process_that_died_has_begun(open_engine: OpenEngine) -> None:
    from holdfast.store import operator

    gate = Gate()
    parent, child = flow_of(gate.pass_through, "parent"), flow_of(note("child"), "child")
    engine = open_engine(parent, child)
    job_id = engine.submit(parent, Ask())
    engine.submit_many([engine.prepare(child, Ask(), parent=job_id, queue="closed") for _ in range(150)])
    engine.store.pause_queue("closed", actor="alice", reason="so that none of them runs")

    def die(*_args: object, **_options: object) -> bool:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as dying:
        dying.setattr(operator, "cancel_some", die)
        with pytest.raises(KeyboardInterrupt):
            engine.cancel(job_id, reason="enough")
    assert len(engine.store.jobs(states=[JobState.PENDING], limit=500)) == 150
    with engine.worker(**QUICK):
        eventually(all_ended(engine), "a worker has gone on with it", within=60)


def test_cancelling_ten_times_while_it_happens_is_one_cancellation(open_engine: OpenEngine) -> None:
    gate = Gate()

    def step(run: AskRun) -> None:
        gate.pass_through()  # deaf
        work_for(0.2)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        answers = {engine.cancel(job_id, reason=f"reason {n}") for n in range(10)}
        gate.open()
        result = engine.wait(job_id, timeout=30)

    assert answers == {JobState.RUNNING}
    assert result.reason == "reason 0"
    assert [entry.reason for entry in engine.store.journal(job_id)].count("cancel requested: reason 0") == 1
    assert engine.cancel(job_id, reason="again") is JobState.FAILED
