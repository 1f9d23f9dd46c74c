"""Pitfalls 13 to 16: rescue."""

from __future__ import annotations

import time

import pytest

from holdfast import JobState
from holdfast.errors import StoreBusy
from holdfast.store import liveness
from tests.integration.conftest import OpenEngine
from tests.support.bench import (
    LEASE_MS,
    WORKER,
    Bench,
)
from tests.support.flows import Ask, Gate, Tally, flow_of, note
from tests.support.waiting import eventually


def test_13_rescue_is_neither_hours_late_nor_too_early(open_engine: OpenEngine) -> None:
    """A fixed time after which jobs are rescued is too long for the dead and too short for the slow."""
    slow = flow_of(lambda run: time.sleep(2.0), "slow")
    quick = flow_of(note("quick"), "quick")
    engine = open_engine(slow, quick)
    dead = f"{liveness.new_worker_id().rsplit(':', 5)[0]}:999999999:1:{liveness.boot_id()}:{liveness.pid_namespace()}:x"
    orphan = engine.submit(quick, Ask())
    engine.store.claim(worker_id=dead, flows={"quick": quick.fingerprint}, limit=1, lease_ms=86_400_000)
    working = engine.submit(slow, Ask())
    with engine.worker(lease=0.6, recovery_interval=0.1):
        rescued = engine.wait(orphan, timeout=5)
        finished = engine.wait(working, timeout=20)

    assert (rescued.state, finished.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert engine.store.job(working).attempt == 1


def test_14_a_job_that_its_living_worker_does_not_know_of_is_not_kept_for_ever(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of jobs were `running` for months, although a rescuer was there: their worker lived and renewed.

    Here the answer to a claim is lost after its commit, while the worker is busy with another job.
    """
    gate = Gate()
    keeper = flow_of(gate.pass_through, "keeper")
    flow = flow_of(note("work"))
    engine = open_engine(flow, keeper)
    original, lost = engine.store.claim, Tally()

    def claim(*args: object, **kwargs: object) -> object:
        claims = original(*args, **kwargs)  # type: ignore[arg-type]
        if any(one.job.flow == flow.name for one in claims) and lost.add("answer") == 1:
            raise StoreBusy("the answer was lost")
        return claims

    monkeypatch.setattr(engine.store, "claim", claim)
    with engine.worker(lease=1.0, recovery_interval=0.2, stop_grace=1):
        engine.submit(keeper, Ask())
        gate.wait_for_arrival()
        forgotten = [engine.submit(flow, Ask()) for _ in range(3)]
        states = [engine.wait(job_id, timeout=15).state for job_id in forgotten]
        gate.open()

    assert lost.count("answer") >= 2
    assert states == [JobState.SUCCEEDED] * 3


def test_15_a_dead_worker_is_found_by_its_leases_even_if_its_row_is_gone(bench: Bench) -> None:
    """The row of the dead worker was removed first, and then nothing pointed to its jobs any more."""
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    claim = bench.running(WORKER)
    bench.store.retire(worker_id=WORKER)
    bench.expire()

    assert bench.recover() == ["given back"]
    assert bench.state(claim.job.job_id) is JobState.PENDING


def test_15_a_worker_that_comes_back_under_the_same_name_does_not_hide_what_died(bench: Bench) -> None:
    claim = bench.running(WORKER)
    bench.expire()
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    held = bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)

    assert held == []
    assert bench.recover() == ["given back"]
    assert bench.job(claim.job.job_id).crashes == 1


def test_16_rescue_needs_no_free_slot_and_no_job_of_its_own(open_engine: OpenEngine) -> None:
    """The job that was to rescue stalled jobs had stalled itself."""
    gate = Gate()
    hung = flow_of(lambda run: gate.pass_through(), "hung")
    quick = flow_of(note("quick"), "quick")
    engine = open_engine(hung, quick)
    engine.submit(hung, Ask())
    with engine.worker(concurrency=1, lease=60, recovery_interval=0.2, stop_grace=0.2):
        gate.wait_for_arrival()
        orphan = engine.submit(quick, Ask())
        dead = "elsewhere:1:1:boot:1:dead"
        engine.store.claim(worker_id=dead, flows={"quick": quick.fingerprint}, limit=1, lease_ms=200)
        eventually(lambda: engine.store.job(orphan).state is JobState.PENDING, "rescued by a worker that is full")
        gate.open()

    assert engine.store.job(orphan).crashes == 1
