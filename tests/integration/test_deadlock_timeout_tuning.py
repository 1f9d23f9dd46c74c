"""How long is too long is for each flow to say, and a step's own timeout is part of the answer."""

from __future__ import annotations

import pytest

from holdfast import Flow, minutes
from holdfast.errors import DefinitionError
from holdfast.guard import stop_stalled
from tests.integration.conftest import OpenEngine
from tests.support.bench import STEPS, WORKER, Bench, SettableClock, finish_step
from tests.support.flows import Answer, Ask, AskFlow, flow_of, note, write_effect


@pytest.mark.parametrize("seconds", [0.5, 60, 1800])
def test_each_flow_has_its_own_patience(open_engine: OpenEngine, seconds: float) -> None:
    flow = flow_of(note("x"), stall_after=seconds)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    assert engine.store.job(job_id).stall_ms == round(seconds * 1000)


def test_ten_minutes_are_the_default(open_engine: OpenEngine) -> None:
    flow = flow_of(note("x"))
    engine = open_engine(flow)

    assert engine.store.job(engine.submit(flow, Ask())).stall_ms == 600_000


def test_a_step_that_may_take_longer_is_given_its_whole_timeout(open_engine: OpenEngine) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer, stall_after=60)
    flow.start("long", note("long"), timeout=minutes(30)).commit("save", write_effect)
    engine = open_engine(flow)
    job = engine.store.job(engine.submit(flow, Ask()))

    assert (job.stall_ms, job.stall_limits) == (60_000, f'{{"0":{31 * 60 * 1000}}}')


@pytest.mark.parametrize("minutes_later, finished, stalls", [(5, 0, True), (5, 1, False), (40, 1, True), (5, 2, True)])
def test_the_patience_is_that_of_the_step_that_runs(
    open_engine: OpenEngine, minutes_later: int, finished: int, stalls: bool
) -> None:
    """A job with one long step is not given that step's time in the others."""
    clock = SettableClock()
    bench = Bench(open_engine(clock=clock).store, clock)
    claim = bench.running(stall_ms=60_000, stall_limits='{"1":1860000}')
    for position in range(finished):
        bench.apply(finish_step(claim, position, STEPS[position]))
    for _ in range(minutes_later * 3):
        clock.advance(20)
        bench.store.extend_leases(worker_id=WORKER, lease_ms=30_000)

    assert (stop_stalled(bench.store, actor="guard") == [claim.job.job_id]) is stalls


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_patience_at_all_is_refused(seconds: float) -> None:
    with pytest.raises(DefinitionError):
        Flow("flow", request=Ask, response=Answer, stall_after=seconds)

    assert seconds <= 0


@pytest.mark.parametrize("patience, stalls", [(30, True), (90, False)])
def test_the_same_silence_is_a_stall_for_one_and_not_for_another(
    open_engine: OpenEngine, patience: int, stalls: bool
) -> None:
    clock = SettableClock()
    engine = open_engine(clock=clock)
    claim = Bench(engine.store, clock).running(stall_ms=patience * 1000)
    for _ in range(3):
        clock.advance(20)
        engine.store.extend_leases(worker_id=WORKER, lease_ms=30_000)

    assert (stop_stalled(engine.store, actor="guard") == [claim.job.job_id]) is stalls
