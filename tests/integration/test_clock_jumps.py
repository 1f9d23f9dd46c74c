"""The clock of the machine may be set: what a worker waits for is measured by one that cannot be."""

from __future__ import annotations

import time

import pytest

from holdfast import JobState, fixed
from holdfast.core.step import EndCode
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskRun, Gate, Tally, flow_of, note
from tests.support.waiting import PATIENCE, eventually

HOURS = 7_200_000


class SetClock:
    """The wall clock of a machine whose operator sets it."""

    def __init__(self) -> None:
        self.offset = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset


@pytest.mark.only_sqlite
@pytest.mark.parametrize("where", ["step", "cleanup"])
def test_a_retry_is_made_in_its_time_although_the_clock_is_set_back(open_engine: OpenEngine, where: str) -> None:
    clock, tally = SetClock(), Tally()

    def fail_once(run: AskRun) -> None:
        if tally.add("tried") == 1:
            raise OSError("once")

    def fail(run: AskRun) -> None:
        raise ValueError("for good")

    patient = fixed(3, delay=1.0)
    if where == "step":
        flow = flow_of(fail_once, retry=patient, queue="q")
    else:
        flow = flow_of(fail, cleanup=fail_once, cleanup_retry=patient, queue="q")
    engine = open_engine(flow, clock=clock)
    engine.queue("q", limit=1)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**{**QUICK, "lease": 60.0}):
        eventually(lambda: tally.count("tried"))
        clock.offset = -HOURS
        engine.wait(job_id, timeout=PATIENCE)

    assert tally.count("tried") == 2


@pytest.mark.only_sqlite
def test_a_stop_after_the_clock_was_set_back_leaves_the_job_due_in_its_time(open_engine: OpenEngine) -> None:
    clock, tally = SetClock(), Tally()

    def fail_once(run: AskRun) -> Answer:
        if tally.add("tried") == 1:
            raise OSError("once")
        return Answer()

    flow = flow_of(fail_once, retry=fixed(3, delay=3.0))
    engine = open_engine(flow, clock=clock)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**{**QUICK, "lease": 60.0}):
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.retry_at])
        clock.offset = -HOURS
    ahead = engine.store.job(job_id).not_before - clock()
    with engine.worker(**QUICK):
        state = engine.wait(job_id, timeout=PATIENCE).state

    assert ahead <= 3000
    assert state is JobState.SUCCEEDED


@pytest.mark.only_sqlite
def test_a_clock_set_forward_past_all_leases_counts_no_crash(open_engine: OpenEngine) -> None:
    clock, gate = SetClock(), Gate()
    flow = flow_of(gate.pass_through, crash_limit=1)
    engine = open_engine(flow, clock=clock)
    jobs = [engine.submit(flow, Ask()) for _ in range(3)]
    with engine.worker(**QUICK) as worker:
        for _ in jobs:
            gate.wait_for_arrival()
        clock.offset = HOURS
        eventually(lambda: len([e for job_id in jobs for e in engine.store.executions(job_id)]) == 6)
        gate.open()
        states = {engine.wait(job_id, timeout=PATIENCE).state for job_id in jobs}
        assert worker.failure is None

    records = [engine.store.job(job_id) for job_id in jobs]
    assert states == {JobState.SUCCEEDED}
    assert {(job.crashes, job.failures) for job in records} == {(0, 0)}
    assert {engine.store.executions(job_id)[0].code for job_id in jobs} == {EndCode.ABANDONED}


@pytest.mark.only_sqlite
@pytest.mark.parametrize("offset", [-HOURS, HOURS], ids=["back", "forward"])
def test_jobs_submitted_after_the_clock_was_set_start_at_once(open_engine: OpenEngine, offset: int) -> None:
    clock = SetClock()
    flow = flow_of(note("work"))
    engine = open_engine(flow, clock=clock)
    with engine.worker(**{**QUICK, "recovery_interval": 30.0}):
        engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE)
        clock.offset = offset
        began = time.monotonic()
        state = engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE).state
        took = time.monotonic() - began

    assert state is JobState.SUCCEEDED
    assert took < 10
