"""Pipelines: flows one after the other as one job, each response mapped to the next request, whatever crashes."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Abort, Flow, Handoff, JobState, Pipeline, fixed
from holdfast.core.step import EndCode
from holdfast.testing import VirtualClock, run_until_idle
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, raises, write_effect
from tests.support.waiting import eventually


class Image(msgspec.Struct):
    name: str


def adder(name: str, amount: int) -> AskFlow:
    """A flow whose answer is its number and a bit."""

    def step(run: AskRun) -> Answer:
        return Answer(trail=[f"{name}({run.request.number})"], total=run.request.number + amount)

    return flow_of(step, name)


def pipeline_of(one: AskFlow, two: AskFlow, three: AskFlow | None = None, **settings: Any) -> Pipeline[Image]:
    pipeline: Pipeline[Image] = Pipeline("process", request=Image, **settings)
    pipeline.then(one, request=lambda view: Ask(view.request.name, 1))
    pipeline.then(two, request=lambda view: Ask(view.request.name, view.previous.total))
    if three is not None:
        pipeline.then(three, request=lambda view: Ask(view.request.name, view.responses[one.name].total))
    return pipeline


def test_each_response_makes_the_next_request(open_engine: OpenEngine) -> None:
    pipeline = pipeline_of(adder("one", 10), adder("two", 100), adder("three", 1000))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("debian"))
    with engine.worker(**QUICK):
        response = engine.result(pipeline, job_id, timeout=20)

    stages = {name: stage.response["total"] for name, stage in response.stages.items()}
    assert stages == {"one": 11, "two": 111, "three": 1011}
    assert [child.name for child in engine.store.children(job_id)] == ["one", "two", "three"]
    assert {child.state for child in engine.store.children(job_id)} == {JobState.SUCCEEDED}
    assert [response.stages[c.name].job_id for c in engine.store.children(job_id)] == [
        c.job_id for c in engine.store.children(job_id)
    ]


def test_waits_and_graceful_stops_are_no_attempts(open_engine: OpenEngine, caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()
    pipeline = pipeline_of(flow_of(gate.pass_through, "one"), adder("two", 100))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("debian"))
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        [current] = engine.store.running([engine.store.children(job_id)[0].job_id])
    waiting = engine.store.job(job_id)
    gate.open()
    with caplog.at_level("INFO", "holdfast.job"), engine.worker(**QUICK):
        engine.result(pipeline, job_id, timeout=20)

    family = [job_id, *(child.job_id for child in engine.store.children(job_id))]
    assert [engine.store.job(one).attempts for one in family] == [1, 1, 1]
    assert [engine.store.job(one).attempt for one in family] == [3, 2, 1]
    assert (waiting.attempts, current.attempt) == (1, 1)
    assert engine.explain(job_id).details["attempt"] == 1
    assert {record.__dict__["attempt"] for record in caplog.records if "attempt" in record.__dict__} == {1}


def test_a_worker_of_one_slot_is_enough(open_engine: OpenEngine) -> None:
    pipeline = pipeline_of(adder("one", 10), adder("two", 100))
    engine = open_engine(pipeline)
    jobs = [engine.submit(pipeline, Image(str(n))) for n in range(4)]
    with engine.worker(concurrency=1, **QUICK):
        states = [engine.wait(job_id, timeout=30).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 4


def test_a_pipeline_in_the_same_queue_as_its_stages_does_not_wait_for_itself(open_engine: OpenEngine) -> None:
    one, two = flow_of(note("one"), "one", queue="q"), flow_of(note("two"), "two", queue="q")
    pipeline = pipeline_of(one, two, queue="q")
    engine = open_engine(pipeline)
    engine.queue("q", limit=1)
    jobs = [engine.submit(pipeline, Image(str(n))) for n in range(3)]
    with engine.worker(**QUICK):
        states = [engine.wait(job_id, timeout=30).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 3


@pytest.mark.parametrize(
    "outcome, ends_as", [(Abort("no such image"), "failed"), (ValueError("broken"), "quarantined")]
)
def test_the_failure_of_a_stage_is_the_failure_of_the_pipeline(
    open_engine: OpenEngine, outcome: Exception, ends_as: str
) -> None:
    tally = Tally()
    bad = flow_of(raises(outcome), "bad")
    after = flow_of(lambda run: tally.add("ran"), "after")
    pipeline = pipeline_of(adder("one", 1), bad, after)
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.ABORT)
    assert "stage bad" in (result.reason or "")
    assert ends_as in (result.reason or "")
    assert str(outcome) in (result.reason or "")
    assert tally.events == []
    assert [(c.name, c.state.value) for c in engine.store.children(job_id)] == [("one", "succeeded"), ("bad", ends_as)]


def test_a_retried_pipeline_runs_the_failed_stage_again_and_not_the_finished_ones(open_engine: OpenEngine) -> None:
    tally = Tally()

    def one(run: AskRun) -> Answer:
        tally.add("one")
        return Answer(total=5)

    pipeline = pipeline_of(flow_of(one, "one"), flow_of(raises(Abort("busy"), None), "two"))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    with engine.worker(**QUICK):
        first = engine.wait(job_id, timeout=20)
        engine.retry(job_id, reason="again")
        second = engine.wait(job_id, timeout=20)

    assert (first.state, second.state) == (JobState.FAILED, JobState.SUCCEEDED)
    assert tally.count("one") == 1


def test_a_handed_off_stage_passes_its_response_on(open_engine: OpenEngine) -> None:
    there = flow_of(raises(Handoff(Answer(total=40))), "there")
    pipeline = pipeline_of(there, adder("two", 2))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    with engine.worker(**QUICK):
        response = engine.result(pipeline, job_id, timeout=20)

    assert response.stages["there"].outcome == EndCode.HANDOFF
    assert response.stages["two"].response["total"] == 42


def test_two_pipelines_share_a_stage_with_the_same_key(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def download(run: AskRun) -> Answer:
        tally.add("downloaded")
        gate.pass_through(run)
        return Answer(total=7)

    flow = flow_of(download, "download")
    pipeline: Pipeline[Image] = Pipeline("process", request=Image)
    pipeline.then(flow, request=lambda v: Ask(v.request.name), key=lambda v: v.request.name)
    pipeline.then(adder("two", 1), request=lambda view: Ask("x", view.previous.total))
    engine = open_engine(pipeline)
    jobs = [engine.submit(pipeline, Image("debian")) for _ in range(3)]
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        eventually(lambda: [engine.store.job(job).hold for job in jobs] == ["child"] * 3, "all of them wait")
        gate.open()
        totals = [engine.result(pipeline, job, timeout=20).stages["two"].response["total"] for job in jobs]

    assert totals == [8, 8, 8]
    assert tally.count("downloaded") == 1


def test_a_pipeline_may_be_a_stage_of_another(open_engine: OpenEngine) -> None:
    inner = pipeline_of(adder("one", 10), adder("two", 100))
    outer: Pipeline[Image] = Pipeline("outer", request=Image)
    outer.then(inner, request=lambda view: view.request)
    outer.then(adder("last", 1), request=lambda view: Ask("x", view.previous.stages["two"].response["total"]))
    engine = open_engine(outer)
    job_id = engine.submit(outer, Image("x"))
    with engine.worker(concurrency=1, **QUICK):
        response = engine.result(outer, job_id, timeout=30)

    assert response.stages["last"].response["total"] == 112


def test_a_mapping_that_fails_is_an_error_of_the_pipeline(open_engine: OpenEngine) -> None:
    pipeline: Pipeline[Image] = Pipeline("process", request=Image)
    pipeline.then(adder("one", 1), request=lambda view: view.request.nothing)  # type: ignore[attr-defined]
    clock = VirtualClock()
    engine = open_engine(pipeline, clock=clock)
    job_id = engine.submit(pipeline, Image("x"))
    run_until_idle(engine, clock)
    result = engine.wait(job_id)

    assert result.state is JobState.QUARANTINED
    assert "nothing" in (result.reason or "")


def test_a_cancelled_pipeline_does_not_go_on(open_engine: OpenEngine) -> None:
    gate = Gate()
    pipeline = pipeline_of(flow_of(gate.pass_through, "one"), adder("two", 1))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        eventually(lambda: engine.store.job(job_id).hold == "child")
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)
        gate.open()

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.CANCELLED)
    assert [child.name for child in engine.store.children(job_id)] == ["one"]


def test_a_stage_that_is_cancelled_fails_the_pipeline(open_engine: OpenEngine) -> None:
    gate = Gate()
    pipeline = pipeline_of(flow_of(gate.pass_through, "one"), adder("two", 1))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        [child] = engine.store.children(job_id)
        engine.cancel(child.job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.FAILED
    assert "not needed" in (result.reason or "")


def test_children_of_any_flow_are_submitted_once_and_waited_for(open_engine: OpenEngine) -> None:
    from holdfast import WaitFor

    leaf = flow_of(lambda run: Answer(total=run.request.number * 2), "leaf")

    def fan_out(run: AskRun) -> Answer:
        children = [run.submit_child(f"leaf-{n}", leaf, Ask("x", n)) for n in range(5)]
        results = [run.child_result(child) for child in children]
        for child, result in zip(children, results, strict=True):
            if result.state in (JobState.PENDING, JobState.RUNNING):
                raise WaitFor(child)
        answers = [msgspec.json.decode(result.response or "", type=Answer) for result in results]
        return Answer(total=sum(answer.total for answer in answers))

    parent: AskFlow = Flow("parent", request=Ask, response=Answer)
    parent.start("fan-out", fan_out, retry=fixed(0)).commit("save", write_effect)
    engine = open_engine(parent, leaf)
    job_id = engine.submit(parent, Ask())
    with engine.worker(concurrency=2, **QUICK):
        answer = engine.result(parent, job_id, timeout=30)

    assert answer.total == 20
    assert len(engine.store.children(job_id)) == 5
    assert {engine.store.job(child.job_id).parent for child in engine.store.children(job_id)} == {job_id}


CHILD = """
import os, signal, sys
from holdfast import Engine
from holdfast.crash_points import set_hook
from tests.integration.test_pipeline import Image, adder, pipeline_of

passed = 0
def die(name):
    global passed
    if name == sys.argv[2]:
        passed += 1
        if passed == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

pipeline = pipeline_of(adder("one", 10), adder("two", 100))
with Engine.open(sys.argv[1], flows=[pipeline]) as engine:
    set_hook(die)
    with engine.worker(concurrency=2):
        engine.wait(sys.argv[4], timeout=30)
"""


@pytest.mark.parametrize(
    "point", ["submit.after-commit", "step.one.after", "step.two.before", "write.Commit.after-commit"]
)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_pipeline_that_was_killed_goes_on_and_submits_no_stage_twice(
    open_engine: OpenEngine, state: Path, point: str, nth: int
) -> None:
    pipeline = pipeline_of(adder("one", 10), adder("two", 100))
    engine = open_engine(pipeline)
    job_id = engine.submit(pipeline, Image("x"))
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, state, point, str(nth), job_id], cwd=root, capture_output=True, check=False
    )
    with engine.worker(**QUICK):
        response = engine.result(pipeline, job_id, timeout=20)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert response.stages["two"].response["total"] == 111
    assert len(engine.store.jobs()) == 3
