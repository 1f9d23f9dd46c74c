"""Idle costs nothing, and news from anywhere ends it at once."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import JobState
from holdfast.cli.worker import StopSignals, has_work, wait_until_idle
from holdfast.core.records import JobRecord
from holdfast.core.states import UNFINISHED_STATES
from tests.integration.conftest import OpenEngine
from tests.support.flows import Ask, AskFlow, flow_of, note

ROOT = Path(__file__).parents[2]
IDLE: dict[str, Any] = {"lease": 30.0, "recovery_interval": 30.0}


def noop_flow() -> AskFlow:
    return flow_of(note("work"), "noop")


def test_an_idle_worker_uses_next_to_no_processor_time(open_engine: OpenEngine) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    with engine.worker():
        engine.wait(engine.submit(flow, Ask()), timeout=20)
        before = time.process_time()
        time.sleep(2)
        used = time.process_time() - before

    assert used < 0.1, f"{used:.3f} s of processor time in 2 s of doing nothing"


def test_an_idle_worker_is_hardly_ever_switched_to(open_engine: OpenEngine) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    with engine.worker(**IDLE):
        engine.wait(engine.submit(flow, Ask()), timeout=20)
        time.sleep(0.3)
        before = resource.getrusage(resource.RUSAGE_SELF)
        time.sleep(2)
        after = resource.getrusage(resource.RUSAGE_SELF)

    assert after.ru_nvcsw - before.ru_nvcsw < 100


def test_whoever_waits_until_a_worker_is_idle_does_not_wait_for_one_that_has_failed(open_engine: OpenEngine) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    engine.submit(flow, Ask(), delay=600)
    with StopSignals() as signals, engine.worker(**IDLE) as worker:
        waiter = threading.Thread(
            target=wait_until_idle, args=(engine.store, [flow.name], worker, signals), daemon=True
        )
        waiter.start()
        worker._fail(RuntimeError("a bug"))
        waiter.join(10)

    assert not waiter.is_alive()


def test_a_job_that_starts_between_two_looks_is_work_all_the_same(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    engine.submit(flow, Ask())
    look, claimed = engine.store.jobs, []

    def look_and_start(**wanted: Any) -> list[JobRecord]:
        found = look(**wanted)
        claimed.extend(
            engine.store.claim(worker_id="w", flows={flow.name: flow.fingerprint}, limit=1, lease_ms=600_000)
        )
        return found

    monkeypatch.setattr(engine.store, "jobs", look_and_start)

    assert has_work(engine.store, [flow.name])
    assert len(claimed) == 1


@pytest.mark.parametrize("obstacle", ["paused", "full", "unknown flow", "later", "waiting"])
def test_a_worker_that_may_not_start_what_is_there_does_not_spin(open_engine: OpenEngine, obstacle: str) -> None:
    flow, other = noop_flow(), flow_of(note("x"), "other")
    engine = open_engine(flow)
    engine.queue("q", limit=0 if obstacle == "full" else 5)
    if obstacle == "paused":
        engine.store.pause_queue("q", actor="alice", reason="lunch")
    later = engine.submit(flow, Ask(), delay=600)
    for _ in range(5):
        engine.submit(
            other if obstacle == "unknown flow" else flow,
            Ask(),
            queue="q",
            delay=600 if obstacle == "later" else 0,
            run_after=later if obstacle == "waiting" else None,
        )
    with engine.worker(**IDLE):
        time.sleep(0.5)
        before = time.process_time()
        time.sleep(1.5)
        used = time.process_time() - before

    assert used < 0.1, f"{used:.3f} s of processor time in 1.5 s of waiting"


SUBMITTER = """
import sys, time
from holdfast import Engine
from tests.integration.test_idle import noop_flow
from tests.support.flows import Ask

flow = noop_flow()
with Engine.open(sys.argv[1], flows=[flow]) as engine:
    for _ in range(int(sys.argv[2])):
        print(engine.submit(flow, Ask()), flush=True)
        time.sleep(0.05)
"""


def test_a_submit_from_another_process_starts_on_an_idle_worker_promptly(open_engine: OpenEngine, state: Path) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    with engine.worker(**IDLE):
        time.sleep(0.3)
        submitter = subprocess.run(
            [sys.executable, "-c", SUBMITTER, state, "20"], cwd=ROOT, capture_output=True, check=True, text=True
        )
        jobs = submitter.stdout.split()
        states = {engine.wait(job_id, timeout=20).state for job_id in jobs}

    delays = [engine.store.executions(job)[0].started_at - engine.store.job(job).created_at for job in jobs]
    assert states == {JobState.SUCCEEDED}
    assert len(jobs) == 20
    assert statistics.median(delays) < 100, f"{delays} ms"
    assert max(delays) < 2000, f"{delays} ms"


def test_a_delayed_job_starts_when_it_is_due_without_being_told(open_engine: OpenEngine) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    with engine.worker(**IDLE):
        time.sleep(0.2)
        job_id = engine.submit(flow, Ask(), delay=0.5)
        result = engine.wait(job_id, timeout=20)

    job, [execution] = engine.store.job(job_id), engine.store.executions(job_id)
    assert result.state is JobState.SUCCEEDED
    assert 0 <= execution.started_at - job.not_before < 1000


@pytest.mark.parametrize("news", ["resume", "limit", "release", "retry"])
def test_what_an_operator_allows_starts_at_once(open_engine: OpenEngine, news: str) -> None:
    flow = noop_flow()
    engine, operator = open_engine(flow), open_engine(flow, actor="alice")
    engine.queue("q", limit=0 if news == "limit" else 5)
    if news == "resume":
        engine.store.pause_queue("q", actor="alice", reason="lunch")
    job_id = engine.submit(flow, Ask(), queue="q")
    if news in ("release", "retry"):
        operator.force(job_id, JobState.QUARANTINED if news == "release" else JobState.FAILED, reason="hold on")
    with engine.worker(**IDLE):
        time.sleep(0.5)
        began = time.monotonic()
        if news == "resume":
            operator.store.resume_queue("q")
        elif news == "limit":
            operator.store.set_queue("q", max_running=1, actor="alice")
        elif news == "release":
            operator.release(job_id, reason="go on")
        else:
            operator.retry(job_id, reason="go on")
        result = operator.wait(job_id, timeout=20)
        took = time.monotonic() - began

    assert result.state is JobState.SUCCEEDED
    assert took < 3


def test_a_slot_that_becomes_free_in_one_process_is_used_by_another(open_engine: OpenEngine, state: Path) -> None:
    """The worker that waits for the slot is not the one that frees it."""
    from tests.support.flows import Gate

    gate = Gate()
    holder = flow_of(gate.pass_through, "holder", queue="q")
    waiter = flow_of(note("x"), "waiter", queue="q")
    first, second = open_engine(holder), open_engine(waiter)
    first.queue("q", limit=1)
    with first.worker(**IDLE), second.worker(**IDLE):
        first.submit(holder, Ask())
        gate.wait_for_arrival()
        job_id = second.submit(waiter, Ask())
        time.sleep(0.3)
        began = time.monotonic()
        gate.open()
        result = second.wait(job_id, timeout=20)
        took = time.monotonic() - began

    assert result.state is JobState.SUCCEEDED
    assert took < 3


def test_a_worker_on_a_large_history_is_as_idle_as_on_a_small_one(open_engine: OpenEngine) -> None:
    flow = noop_flow()
    engine = open_engine(flow)
    engine.submit_many([engine.prepare(flow, Ask()) for _ in range(1000)])
    with engine.worker(**IDLE):
        while engine.store.jobs(states=UNFINISHED_STATES, limit=1):
            time.sleep(0.05)
        before = time.process_time()
        time.sleep(1)
        used = time.process_time() - before

    assert used < 0.1
