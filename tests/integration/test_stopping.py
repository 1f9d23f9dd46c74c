"""Stopping: give back at the next safe point, at no cost to the job; what does not stop is left behind, fenced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast import Abort, Engine, Flow, JobState, fixed
from holdfast.core.ending import EndCode
from holdfast.errors import StoreReadOnly
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import (
    Answer,
    Ask,
    AskFlow,
    AskRun,
    Gate,
    Tally,
    flow_of,
    note,
    raises,
    work_for,
    write_effect,
)
from tests.support.waiting import PATIENCE, eventually


def test_a_stop_gives_running_jobs_back_and_costs_them_nothing(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("quick", note("quick")).to("slow", gate.pass_through).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    stopped = engine.store.job(job_id)
    gate.open()
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    [first, _] = engine.store.executions(job_id)
    assert (stopped.state, stopped.failures, stopped.crashes) == (JobState.PENDING, 0, 0)
    assert (first.code, first.disposition) == (EndCode.RELEASED, "retry")
    assert answer.trail == ["quick"]
    assert engine.store.steps(job_id)[1].tries == 1


def test_any_number_of_restarts_is_no_reason_to_give_up_a_job(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through, retry=fixed(0), crash_limit=2)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    for _ in range(5):
        with engine.worker(**QUICK):
            gate.wait_for_arrival()
    gate.open()
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(job_id).attempt == 6


def test_a_step_that_finishes_within_the_grace_is_recorded(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        tally.add("entered")
        gate.pass_through()
        time.sleep(0.3)
        return note("finished")(run)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        gate.open()
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["finished"]
    assert tally.count("entered") == 1


def test_a_step_that_ignores_the_stop_does_not_hold_up_the_worker_beyond_the_grace(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            gate.pass_through()
            tally.add("came back late")
            return Answer(trail=["late"])
        return Answer(trail=["again" if run.interrupted else "not told"])

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=3, stop_grace=0.3):
        gate.wait_for_arrival()
        began = time.monotonic()
    took = time.monotonic() - began
    stopped = engine.store.job(job_id)
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)
    gate.open()
    eventually(lambda: tally.count("came back late"))

    assert took < 3
    assert (stopped.state, stopped.failures, stopped.crashes) == (JobState.PENDING, 0, 0)
    assert answer.trail == ["again"]


def test_a_stop_wakes_jobs_that_sleep_between_tries(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("no"), None), retry=fixed(2, delay=40))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.retry_at])
        began = time.monotonic()
    took = time.monotonic() - began

    [execution] = engine.store.executions(job_id)
    assert took < 5
    assert engine.store.job(job_id).state is JobState.PENDING
    assert execution.tries == 1, "the try that failed counts, the one that did not happen does not"


def test_a_stop_costs_a_cleanup_that_sleeps_between_tries_nothing(open_engine: OpenEngine) -> None:
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        if tally.add("cleanup") == 1:
            raise OSError("busy")

    flow = flow_of(raises(Abort("no such image")), cleanup=cleanup, cleanup_retry=fixed(3, delay=1.0))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.retry_at])
    stopped, cleanups = engine.store.job(job_id), tally.count("cleanup")
    [execution] = engine.store.executions(job_id)
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (stopped.state, execution.code, cleanups) == (JobState.PENDING, EndCode.RELEASED, 1)
    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.ABORT, "no such image")
    assert tally.count("cleanup") == 2


@pytest.mark.parametrize("why", ["timeout", "cancel"])
def test_a_step_that_was_told_to_stop_for_another_reason_does_not_hold_up_the_worker(
    open_engine: OpenEngine, why: str
) -> None:
    """It stops for that reason, and what is to follow some time later is left to the next worker."""
    entered, told = threading.Event(), threading.Event()

    def step(run: AskRun) -> None:
        entered.set()
        try:
            work_for(PATIENCE, run)
        finally:
            told.set()
            time.sleep(0.5)

    def cleanup(run: AskRun) -> None:
        raise OSError("busy")

    timeout = 0.1 if why == "timeout" else None
    patient = fixed(3, delay=30)
    flow = flow_of(step, timeout=timeout, retry=patient, cleanup=cleanup, cleanup_retry=patient)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=3, timeout_grace=20, stop_grace=10):
        assert entered.wait(PATIENCE)
        if why == "cancel":
            engine.cancel(job_id, reason="not needed")
        assert told.wait(PATIENCE)
        began = time.monotonic()
    took = time.monotonic() - began

    [execution] = engine.store.executions(job_id)
    assert took < 5
    assert (engine.store.job(job_id).state, execution.code) == (JobState.PENDING, EndCode.RELEASED)


def test_a_job_given_back_while_it_backs_off_still_waits_its_time(open_engine: OpenEngine) -> None:
    """Restarting a worker must not turn a patient retry into an eager one."""
    tally = Tally()

    def step(run: AskRun) -> None:
        tally.add("tried")
        raise ValueError("the other side is overloaded")

    flow = flow_of(step, retry=fixed(9, delay=30))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    for _ in range(3):
        with engine.worker(**QUICK):
            eventually(lambda: tally.count("tried"))
            time.sleep(0.2)

    assert tally.count("tried") == 1
    assert engine.store.job(job_id).state is JobState.PENDING


def test_a_worker_may_be_stopped_twice(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    with engine.worker(**QUICK) as worker:
        job_id = engine.submit(flow, Ask())
        engine.wait(job_id, timeout=20)
        first = worker.stop()
        second = worker.stop()

    assert (first, second) == (True, True)


def test_a_stopped_worker_has_retired_and_left_nothing_behind(open_engine: OpenEngine, state: Path) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    before = {thread.name for thread in threading.enumerate()}
    with engine.worker(**QUICK):
        during = engine.store.workers()
        engine.wait(engine.submit(flow, Ask()), timeout=20)

    assert len(during) == 1
    assert engine.store.workers() == []
    assert list((state / "holdfast.db.wake").iterdir()) == []
    eventually(lambda: not {t.name for t in threading.enumerate()} - before, "its threads end")


def set_read_only(engine: Engine, on: bool) -> None:
    """Let the database refuse every write, as on a file system that was remounted."""
    engine.store._database._writer.execute(f"PRAGMA query_only = {on}")  # type: ignore[attr-defined]


def test_a_worker_stops_although_the_database_does_not_take_its_leave(open_engine: OpenEngine, state: Path) -> None:
    engine = open_engine(flow_of(note("work")))
    with engine.worker(**QUICK) as worker:
        set_read_only(engine, True)
        clean = worker.stop()
    set_read_only(engine, False)

    assert clean
    assert list((state / "holdfast.db.wake").iterdir()) == []


def test_a_worker_that_cannot_start_leaves_nothing_behind(open_engine: OpenEngine, state: Path) -> None:
    engine = open_engine(flow_of(note("work")))
    set_read_only(engine, True)
    with pytest.raises(StoreReadOnly), engine.worker(**QUICK):
        pass
    set_read_only(engine, False)

    assert list((state / "holdfast.db.wake").iterdir()) == []


WORKER = """
import sys
from holdfast import Engine
from tests.integration.test_stopping import signalled_flow

flow = signalled_flow(sys.argv[1])
with Engine.open(sys.argv[1], flows=[flow]) as engine:
    {install}
    with engine.worker(lease=5, stop_grace=10) as worker:
        print("ready", flush=True)
        {wait}
print("stopped cleanly", flush=True)
"""


def signalled_flow(directory: str) -> AskFlow:
    """A step that takes its time, listens, and says when it has begun."""

    def slow(run: AskRun) -> None:
        Path(directory, "began").touch()
        while not Path(directory, "go").exists():
            run.check()
            time.sleep(0.01)

    return flow_of(slow, "signalled")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_worker_process_cleanly(open_engine: OpenEngine, state: Path, number: signal.Signals) -> None:
    flow = signalled_flow(str(state))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    install = (
        "import signal, threading; done = threading.Event(); [signal.signal(s, lambda *_: done.set()) for s in (2, 15)]"
    )
    script = WORKER.format(install=install, wait="done.wait(60)")
    root = Path(__file__).parents[2]
    worker = subprocess.Popen([sys.executable, "-c", script, state], cwd=root, stdout=subprocess.PIPE, text=True)
    eventually((state / "began").exists, "the step has begun")
    os.kill(worker.pid, number)
    out, _ = worker.communicate(timeout=30)

    job = engine.store.job(job_id)
    assert "stopped cleanly" in out
    assert (job.state, job.failures, job.crashes) == (JobState.PENDING, 0, 0)
