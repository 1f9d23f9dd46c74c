"""Cancelling: heard promptly wherever the job is, after its cleanup, and never once it has committed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast import Flow, JobState, fixed
from holdfast.core.step import EndCode
from holdfast.errors import BadInput, InvalidStateTransitionError, ReasonRequiredError, StepCancelled
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, raises, write_effect
from tests.support.waiting import eventually

PATIENT: dict[str, Any] = {"lease": 120.0, "recovery_interval": 60.0, "stop_grace": 2.0}
"""Nothing is noticed by looking now and then: what is heard in time was heard because it was said."""


def test_a_running_job_stops_at_its_next_check_and_is_cleaned_up(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"))
    flow.start("slow", gate.pass_through).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.CANCELLED, "not needed")
    assert tally.events == ["cleaned"]


def test_a_cancel_is_heard_promptly_even_right_after_other_news(open_engine: OpenEngine) -> None:
    slow: list[float] = []
    engine_flow = flow_of(lambda run: gates[run.request.name].pass_through(run))
    engine = open_engine(engine_flow)
    gates = {str(n): Gate() for n in range(6)}
    with engine.worker(**PATIENT):
        for name, gate in gates.items():
            job_id = engine.submit(engine_flow, Ask(name))
            gate.wait_for_arrival()
            began = time.monotonic()
            engine.cancel(job_id, reason="not needed")
            try:
                assert engine.wait(job_id, timeout=3).state is JobState.FAILED
            except Exception:  # or the step would keep its worker from stopping
                gate.open()
                raise
            slow.append(time.monotonic() - began)

    assert max(slow) < 3


def test_a_step_that_does_not_listen_ends_as_cancelled_before_its_commit(open_engine: OpenEngine) -> None:
    """The worker hears of the cancel when it wants to commit, and runs the cleanup."""
    gate, tally = Gate(), Tally()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"))
    flow.start("deaf", lambda run: gate.pass_through()).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**PATIENT):
        gate.wait_for_arrival()
        engine.cancel(job_id, reason="not needed")
        gate.open()
        result = engine.wait(job_id, timeout=30)

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.CANCELLED, "not needed")
    assert tally.events == ["cleaned"]


def test_a_job_that_sleeps_between_tries_is_cancelled_at_once(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("no")), retry=fixed(5, delay=50))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**PATIENT):
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.retry_at])
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=10)

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.CANCELLED)


def test_a_job_that_was_given_back_is_cleaned_up_by_whoever_comes_next(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"))
    flow.start("slow", gate.pass_through).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    engine.cancel(job_id, reason="not needed")
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.outcome == EndCode.CANCELLED
    assert tally.events == ["cleaned"]
    assert gate.arrivals == 1


def test_a_job_that_never_ran_is_cancelled_without_a_worker(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    assert engine.cancel(job_id, reason="not needed") is JobState.FAILED
    assert engine.wait(job_id).reason == "not needed"


def test_a_step_that_finishes_all_the_same_is_followed_by_no_other(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def stubborn(run: AskRun) -> Answer:
        try:
            gate.pass_through(run)
        except StepCancelled:
            tally.add("heard it")
        return note("finished")(run)

    def following(run: AskRun) -> None:
        tally.add("next")

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("stubborn", stubborn).to("next", following).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert result.outcome == EndCode.CANCELLED
    assert tally.events == ["heard it"]
    assert [step.step for step in engine.store.steps(job_id)] == ["stubborn"]


@pytest.mark.parametrize("reason", ["", "   ", None, 7, b"why"])
def test_an_override_needs_a_reason(open_engine: OpenEngine, reason: Any) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    for verb in (engine.cancel, engine.retry, engine.release):
        with pytest.raises(ReasonRequiredError):
            verb(job_id, reason=reason)
    with pytest.raises(ReasonRequiredError):
        engine.force(job_id, JobState.FAILED, reason=reason)

    assert engine.store.job(job_id).state is JobState.PENDING


@pytest.mark.parametrize("reason", ["caf\udce9", "nul \x00 byte", "x" * 1_000_000], ids=["surrogate", "nul", "long"])
def test_a_reason_may_be_any_text_or_is_refused_as_bad_input(open_engine: OpenEngine, reason: str) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    try:
        engine.cancel(job_id, reason=reason)
        taken = True
    except BadInput:
        taken = False

    assert (engine.store.job(job_id).state is JobState.FAILED) is taken


def test_a_job_that_has_succeeded_cannot_be_cancelled_or_forced(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
    with pytest.raises(InvalidStateTransitionError):
        engine.cancel(job_id, reason="x")
    for to in (JobState.PENDING, JobState.FAILED, JobState.QUARANTINED, JobState.RUNNING):
        with pytest.raises(InvalidStateTransitionError):
            engine.force(job_id, to, reason="x")

    assert engine.store.job(job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("to", [JobState.SUCCEEDED, JobState.RUNNING])
def test_success_cannot_be_forced(open_engine: OpenEngine, to: JobState) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with pytest.raises(InvalidStateTransitionError):
        engine.force(job_id, to, reason="x")

    assert engine.store.job(job_id).state is JobState.PENDING


def test_a_dry_run_of_a_force_says_the_way_and_changes_nothing(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    path = engine.force(job_id, JobState.QUARANTINED, reason="x", dry_run=True)

    assert list(path) == [JobState.PENDING, JobState.RUNNING, JobState.FAILED, JobState.QUARANTINED]
    assert engine.store.job(job_id).state is JobState.PENDING
    assert len(list(engine.store.journal(job_id))) == 1


def test_a_running_job_forced_back_to_pending_keeps_its_dependents(open_engine: OpenEngine) -> None:
    """The operator wants the job to run again, not those that wait for it to fail."""
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    first = engine.submit(flow, Ask())
    second = engine.submit(flow, Ask(), run_after=first)
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        engine.force(first, JobState.PENDING, reason="try elsewhere")
        gate.open()
        states = [engine.wait(job_id, timeout=20).state for job_id in (first, second)]

    assert states == [JobState.SUCCEEDED, JobState.SUCCEEDED]


def test_a_forced_job_is_dropped_by_the_worker_that_held_it(open_engine: OpenEngine) -> None:
    gate = Gate()

    def step(run: AskRun) -> None:
        gate.pass_through()

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        engine.force(job_id, JobState.QUARANTINED, reason="stop it now")
        eventually(lambda: worker.active == 0, "the worker lets go of it")
        gate.open()

    assert engine.store.job(job_id).state is JobState.QUARANTINED
    assert engine.store.steps(job_id) == []
