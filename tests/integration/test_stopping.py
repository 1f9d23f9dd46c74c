"""Stopping: give back at the next safe point, at no cost to the job; what does not stop is left behind, fenced."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Abort, Engine, Flow, JobState, Transaction, fixed
from holdfast.core.step import EndCode
from holdfast.errors import StoreReadOnly
from holdfast.worker.worker import Worker
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import PostgresBackend
from tests.support.cutting_proxy import CuttingProxy
from tests.support.flows import (
    EFFECTS,
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


# --- what was claimed and not begun ---


class Held:
    """A call of the store's that waits inside until the test lets it go on."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.arrived = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        answer = self._call(*arguments, **named)
        if answer and not self.go_on.is_set():
            self.arrived.set()
            assert self.go_on.wait(PATIENCE)
        return answer


def stop_in_the_background(worker: Worker) -> threading.Thread:
    """A stop that has been asked for, and waits for the worker."""
    stopper = threading.Thread(target=worker.stop)
    stopper.start()
    eventually(worker._stopping.is_set)
    return stopper


def test_a_claim_that_is_answered_during_a_stop_is_given_back(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(note("work"), crash_limit=1)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(5)]
    held = Held(engine.store.claim)
    monkeypatch.setattr(engine.store, "claim", held)
    with engine.worker(lease=60) as worker:
        assert held.arrived.wait(PATIENCE)
        stopper = stop_in_the_background(worker)
        held.go_on.set()
        stopper.join(PATIENCE)

    records = [engine.store.job(job_id) for job_id in jobs]
    codes = {execution.code for job_id in jobs for execution in engine.store.executions(job_id)}
    assert {(job.state, job.crashes, job.failures) for job in records} == {(JobState.PENDING, 0, 0)}
    assert codes == {EndCode.RELEASED}
    assert engine.store.under_way() == []


def test_a_job_that_is_given_back_unbegun_is_still_told_that_it_was_interrupted(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tally = Tally()

    def step(run: AskRun) -> Answer:
        tally.add("told" if run.interrupted else "not told")
        return Answer()

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    fingerprints = {flow.name: flow.fingerprint}
    assert engine.store.claim(worker_id="one that dies", flows=fingerprints, limit=1, lease_ms=1)
    time.sleep(0.01)
    held = Held(engine.store.claim)
    with monkeypatch.context() as patch:
        patch.setattr(engine.store, "claim", held)
        with engine.worker(lease=60) as worker:
            assert held.arrived.wait(PATIENCE)
            stopper = stop_in_the_background(worker)
            held.go_on.set()
            stopper.join(PATIENCE)
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)

    assert tally.events == ["told"]


def test_a_stop_while_a_changed_definition_is_looked_at_gives_the_job_back(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = flow_of(note("work"), version="1")
    new = flow_of(note("work"), version="2", crash_limit=1)
    engine = open_engine(new)
    jobs = [open_engine(old).submit(old, Ask()) for _ in range(3)]
    held = Held(engine.store.definitions)
    monkeypatch.setattr(engine.store, "definitions", held)
    with engine.worker(lease=60) as worker:
        assert held.arrived.wait(PATIENCE)
        stopper = stop_in_the_background(worker)
        held.go_on.set()
        stopper.join(PATIENCE)

    assert {engine.store.job(job_id).state for job_id in jobs} == {JobState.PENDING}
    assert {engine.store.job(job_id).crashes for job_id in jobs} == {0}
    assert engine.store.under_way() == []


@pytest.mark.only_sqlite
def test_what_was_claimed_is_given_back_although_the_database_is_busy_for_a_while(
    open_engine: OpenEngine, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(note("work"), crash_limit=1)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(3)]
    held = Held(engine.store.claim)
    monkeypatch.setattr(engine.store, "claim", held)
    with engine.worker(lease=60) as worker, closing(sqlite3.connect(state / "holdfast.db")) as shell:
        assert held.arrived.wait(PATIENCE)
        stopper = stop_in_the_background(worker)
        shell.isolation_level = None
        shell.execute("BEGIN IMMEDIATE")
        held.go_on.set()
        time.sleep(6)  # longer than a statement waits for the lock
        shell.execute("ROLLBACK")
        stopper.join(PATIENCE)
        clean = worker.stop()

    assert clean
    assert {engine.store.job(job_id).state for job_id in jobs} == {JobState.PENDING}


class AfterCommit(random.Random):
    """Lets a proxy cut the connection after a COMMIT has gone through, each time."""

    def random(self) -> float:
        return 0.6


def test_a_claim_whose_answer_was_lost_is_given_back_by_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = PostgresBackend(tmp_path)
    home.execute(f"SET search_path TO {home.user_schema}; {EFFECTS}")
    proxy = CuttingProxy(home.server.port, AfterCommit())
    address = home.server.url.replace(f":{home.server.port}/", f":{proxy.port}/")
    flow = flow_of(note("work"), crash_limit=1)
    asked = threading.Event()
    with Engine.open(home.place_at(address), flows=[flow]) as engine:
        jobs = [engine.submit(flow, Ask()) for _ in range(3)]
        claim = engine.store.claim

        def claim_and_lose_the_answer(**wanted: Any) -> Any:
            if asked.is_set():
                return claim(**wanted)
            proxy.chance = 1.0
            try:
                return claim(**wanted)
            finally:
                proxy.chance = 0.0
                asked.set()
                worker._stopping.set()

        monkeypatch.setattr(engine.store, "claim", claim_and_lose_the_answer)
        with engine.worker(lease=60) as worker:
            assert asked.wait(PATIENCE)

        records = [engine.store.job(job_id) for job_id in jobs]
        executions = [len(engine.store.executions(job_id)) for job_id in jobs]
    proxy.close()
    home.close()

    assert proxy.after == 1
    assert executions == [1, 1, 1], "the claim was granted"
    assert {(job.state, job.crashes) for job in records} == {(JobState.PENDING, 0)}


# --- who stops it, and how ---


@pytest.mark.parametrize("kind", ["plain", "async", "commit"])
def test_a_step_may_ask_its_own_worker_to_stop(open_engine: OpenEngine, kind: str) -> None:
    answers: list[bool] = []

    def ask(run: AskRun) -> None:
        answers.append(workers[0].stop())

    async def ask_later(run: AskRun) -> None:
        ask(run)

    def ask_in_commit(run: AskRun, tx: Transaction) -> None:
        ask(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    if kind == "commit":
        flow.start("work", note("work")).commit("save", ask_in_commit)
    else:
        flow.start("work", ask if kind == "plain" else ask_later).commit("save", write_effect)
    engine = open_engine(flow)
    workers: list[Worker] = []
    with engine.worker(**QUICK) as worker:
        workers.append(worker)
        job_id = engine.submit(flow, Ask())
        eventually(lambda: answers)
        began = time.monotonic()
        clean = worker.stop()
        took = time.monotonic() - began

    assert answers == [False]
    assert clean
    assert took < QUICK["stop_grace"], "it did not wait for itself"
    assert engine.store.job(job_id).state in (JobState.PENDING, JobState.SUCCEEDED)
    assert engine.store.under_way() == []


def test_two_that_stop_a_worker_at_once_get_the_same_answer(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    answers: list[bool] = []
    with engine.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        stoppers = [threading.Thread(target=lambda: answers.append(worker.stop())) for _ in range(4)]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join(PATIENCE)

    assert answers == [True] * 4
    assert engine.store.job(job_id).state is JobState.PENDING


def test_a_block_that_is_left_by_an_exception_stops_its_worker_cleanly(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    def leave_early() -> None:
        with engine.worker(**QUICK):
            gate.wait_for_arrival()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave_early()

    job = engine.store.job(job_id)
    assert (job.state, job.crashes, job.failures) == (JobState.PENDING, 0, 0)
    assert engine.store.workers() == []


def test_a_stop_that_is_interrupted_renews_no_lease_any_more(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever presses Ctrl-C twice wants to go; what is left must not be held by a process that has given up on it."""
    gate = Gate()
    flow = flow_of(lambda run: gate.pass_through())
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    def interrupted(_timeout: float) -> bool:
        raise KeyboardInterrupt

    def stop_impatiently() -> None:
        with engine.worker(lease=1.0) as worker:
            gate.wait_for_arrival()
            monkeypatch.setattr(worker._runs, "wait_until_idle", interrupted)

    with pytest.raises(KeyboardInterrupt):
        stop_impatiently()
    [execution] = engine.store.under_way()
    eventually(lambda: engine.store.now() > execution.lease_expires_at + 2000)
    [later] = engine.store.under_way()
    gate.open()
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert later.lease_expires_at <= execution.lease_expires_at + 1000
    assert result.state is JobState.SUCCEEDED
