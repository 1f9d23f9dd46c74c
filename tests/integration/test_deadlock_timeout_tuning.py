"""How long is too long is for each flow to say, and a step's own timeout is part of the answer."""

from __future__ import annotations

import pytest

from holdfast import Flow, minutes
from holdfast.errors import DefinitionError
from tests.integration.conftest import OpenEngine
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

    assert engine.store.job(engine.submit(flow, Ask())).stall_ms > 30 * 60 * 1000


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_patience_at_all_is_refused(seconds: float) -> None:
    with pytest.raises(DefinitionError):
        Flow("flow", request=Ask, response=Answer, stall_after=seconds)

    assert seconds <= 0


@pytest.mark.parametrize("patience, stalls", [(30, True), (90, False)])
def test_the_same_silence_is_a_stall_for_one_and_not_for_another(
    open_engine: OpenEngine, patience: int, stalls: bool
) -> None:
    from holdfast.guard.watch import stop_stalled
    from tests.support.bench import WORKER, Bench, SettableClock

    clock = SettableClock()
    engine = open_engine(clock=clock)
    claim = Bench(engine.store, clock).running(stall_ms=patience * 1000)
    for _ in range(3):
        clock.advance(20)
        engine.store.extend_leases(worker_id=WORKER, lease_ms=30_000)

    assert (stop_stalled(engine.store, actor="guard") == [claim.job.job_id]) is stalls
