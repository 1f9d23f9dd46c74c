"""A new version is deployed while jobs are on their way: what can go on goes on, what cannot is quarantined."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Flow, JobState
from holdfast.core.step import EndCode
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, write_effect


def flow_named(*steps: str, version: str = "1", gate: Gate | None = None, name: str = "flow") -> AskFlow:
    """A flow with these steps; the last but one may wait at a gate."""
    flow: AskFlow = Flow(name, request=Ask, response=Answer, version=version)
    for index, step in enumerate(steps):
        waits = gate is not None and index == len(steps) - 1
        function = (gate.pass_through) if waits else note(step)  # type: ignore[union-attr]
        (flow.to if index else flow.start)(step, function)
    return flow.commit("save", write_effect)


def interrupted_after(open_engine: OpenEngine, *steps: str, version: str = "1") -> str:
    """A job that has finished all of these steps but the last, and was then given back."""
    gate = Gate()
    old = flow_named(*steps, version=version, gate=gate)
    engine = open_engine(old)
    job_id = engine.submit(old, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    assert [step.step for step in engine.store.steps(job_id)] == list(steps[:-1])
    return job_id


@pytest.mark.parametrize(
    "steps",
    [
        ("one", "two", "another"),
        ("one", "two", "more", "and-more"),
        ("one", "two"),
    ],
    ids=["a later step replaced", "steps added after", "the unfinished step dropped"],
)
def test_a_compatible_change_goes_on_where_the_job_was(open_engine: OpenEngine, steps: tuple[str, ...]) -> None:
    job_id = interrupted_after(open_engine, "one", "two", "three")
    new = flow_named(*steps)
    engine = open_engine(new)
    with engine.worker(**QUICK):
        answer = engine.result(new, job_id, timeout=20)

    assert answer.trail == list(steps)
    assert engine.store.job(job_id).fingerprint == new.fingerprint
    assert any(new.fingerprint in entry.reason for entry in engine.store.journal(job_id))


@pytest.mark.parametrize(
    "steps, version",
    [
        (("one", "renamed", "three"), "1"),
        (("zero", "one", "two", "three"), "1"),
        (("two", "one", "three"), "1"),
        (("one",), "1"),
        (("one", "two", "three"), "2"),
    ],
    ids=["renamed", "inserted before", "swapped", "removed", "another version"],
)
def test_an_incompatible_change_quarantines_the_job_and_says_why(
    open_engine: OpenEngine, steps: tuple[str, ...], version: str
) -> None:
    job_id = interrupted_after(open_engine, "one", "two", "three")
    new = flow_named(*steps, version=version)
    engine = open_engine(new)
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.DEFINITION_CHANGED)
    assert "flow flow changed" in (result.reason or "")
    assert engine.explain(job_id).code == "definition-changed"
    assert [step.step for step in engine.store.steps(job_id)] == ["one", "two"], "its finished steps are kept"


def test_a_job_that_has_not_begun_takes_any_new_definition(open_engine: OpenEngine) -> None:
    old, new = flow_named("one"), flow_named("completely", "different", version="9")
    job_id = open_engine(old).submit(old, Ask())
    engine = open_engine(new)
    with engine.worker(**QUICK):
        answer = engine.result(new, job_id, timeout=20)

    assert answer.trail == ["completely", "different"]


def test_a_quarantined_job_can_be_released_to_the_old_version(open_engine: OpenEngine) -> None:
    job_id = interrupted_after(open_engine, "one", "two", "three")
    broken = open_engine(flow_named("renamed", "two", "three"))
    with broken.worker(**QUICK):
        broken.wait(job_id, timeout=20)
    fixed_again = flow_named("one", "two", "three")
    engine = open_engine(fixed_again)
    engine.release(job_id, reason="rolled back")
    with engine.worker(**QUICK):
        answer = engine.result(fixed_again, job_id, timeout=20)

    assert answer.trail == ["one", "two", "three"]


def test_a_job_of_a_flow_nobody_registers_waits_and_holds_no_slot(open_engine: OpenEngine) -> None:
    forgotten = flow_of(note("x"), "forgotten", queue="q")
    known = flow_of(note("x"), "known", queue="q")
    engine = open_engine(known)
    engine.queue("q", limit=1)
    waiting = engine.submit(forgotten, Ask(), priority=100)
    with engine.worker(**QUICK):
        result = engine.wait(engine.submit(known, Ask()), timeout=20)
        explanation = engine.explain(waiting)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(waiting).state is JobState.PENDING
    assert explanation.code == "no-worker"


def test_a_request_that_no_longer_decodes_is_quarantined_and_the_others_of_its_batch_run(
    open_engine: OpenEngine,
) -> None:
    class Wider(msgspec.Struct):
        name: str
        number: int = 0
        required: int = msgspec.field(default=0)

    class Stricter(msgspec.Struct):
        name: str
        number: int
        reason: str

    old: Flow[Wider, Answer] = Flow("flow", request=Wider, response=Answer)
    old.start("one", lambda run: Answer(total=1)).commit("save", write_effect)
    other = flow_of(note("other"), "other")
    engine = open_engine(old, other)
    jobs = [engine.submit(other, Ask()), engine.submit(old, Wider("x")), engine.submit(other, Ask())]
    new: Flow[Stricter, Answer] = Flow("flow", request=Stricter, response=Answer)
    new.start("one", lambda run: Answer(total=1)).commit("save", write_effect)
    later = open_engine(new, other)
    with later.worker(**QUICK):
        states = [later.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED, JobState.QUARANTINED, JobState.SUCCEEDED]
    assert "reason" in (later.wait(jobs[1]).reason or "")


def test_a_response_that_no_longer_decodes_is_quarantined_and_not_lost(open_engine: OpenEngine) -> None:
    class Other(msgspec.Struct):
        trail: int = 0

    job_id = interrupted_after(open_engine, "one", "two")
    new: Flow[Ask, Other] = Flow("flow", request=Ask, response=Other)
    new.start("one", lambda run: None).to("two", lambda run: None).commit("save", write_effect)
    engine = open_engine(new)
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert [step.step for step in engine.store.steps(job_id)] == ["one"]


def test_old_and_new_workers_may_run_side_by_side(open_engine: OpenEngine) -> None:
    """A rolling deploy: each new job is run by either, and each runs once."""
    tally = Tally()

    def count(run: AskRun) -> Answer:
        tally.add(run.job.job_id)
        return Answer(total=1)

    def version(*more: str) -> AskFlow:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer)
        flow.start("one", count)
        for step in more:
            flow.to(step, note(step))
        return flow.commit("save", write_effect)

    old, new = version(), version("extra")
    first, second = open_engine(old), open_engine(new)
    with first.worker(concurrency=2, **QUICK), second.worker(concurrency=2, **QUICK):
        jobs = [(first if n % 2 else second).submit((old if n % 2 else new), Ask()) for n in range(20)]
        states = {second.wait(job_id, timeout=30).state for job_id in jobs}

    assert states == {JobState.SUCCEEDED}
    assert sorted(tally.events) == sorted(jobs)
