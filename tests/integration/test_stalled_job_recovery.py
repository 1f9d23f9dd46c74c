"""Stalls are recovered from: the worker is fenced, the job goes through failed to pending and is tried again later."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import JobState
from holdfast.core.step import EndCode
from holdfast.errors import LeaseLost
from holdfast.guard import Watch, stop_stalled
from holdfast.worker.telemetry import Telemetry
from tests.integration.conftest import OpenEngine
from tests.support.backends import SqliteBackend
from tests.support.bench import LEASE_MS, OTHER, WORKER, Bench, SettableClock, commit, finish_step
from tests.support.flows import Answer, Ask, AskRun, Gate, Tally, flow_of, note
from tests.support.waiting import eventually


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    clock = SettableClock()
    return Bench(SqliteBackend(tmp_path / "other").open(clock), clock)


def watch(bench: Bench, *, automatic: bool = True) -> Watch:
    return Watch(bench.store, telemetry=Telemetry(), automatic=automatic, actor="guard")


def stall(bench: Bench, seconds: float = 100) -> None:
    for _ in range(int(seconds // 20)):
        bench.clock.advance(20)
        bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)


def test_a_stalled_job_is_reset_to_pending_and_tried_again_after_a_pause(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    bench.apply(finish_step(claim, response='{"a":1}'))
    stall(bench)

    lines = watch(bench).run_once()

    assert any(claim.job.job_id in line for line in lines)
    assert bench.states(claim.job.job_id) == ["pending", "running", "failed", "pending"]
    assert bench.claim(OTHER) == []
    bench.clock.advance(60)
    again = bench.take(OTHER)
    assert (again.position, again.response, again.interrupted) == (1, '{"a":1}', True)
    bench.assert_sound()


def test_the_worker_that_stalled_is_fenced(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    stall(bench)
    watch(bench).run_once()

    [answer] = bench.write(commit(claim))

    assert isinstance(answer, LeaseLost)
    assert bench.store.extend_leases(worker_id=WORKER, lease_ms=1000) == []


def test_a_recovery_is_journaled_with_the_guard_as_its_actor(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    stall(bench)
    watch(bench).run_once()

    entries = [entry for entry in bench.journal(claim.job.job_id) if entry.actor == "guard"]
    assert [(e.job_from, e.job_to) for e in entries] == [("running", "failed"), ("failed", "pending")]
    assert all("no progress for 100 s" in entry.reason for entry in entries)


def test_a_second_round_finds_nothing_more_to_do(bench: Bench) -> None:
    bench.running(stall_ms=60_000)
    stall(bench)

    assert len(watch(bench).run_once()) == 1
    assert watch(bench).run_once() == []


def test_a_job_that_stalls_for_ever_ends_in_quarantine(bench: Bench) -> None:
    job_id = bench.submit(stall_ms=60_000, crash_limit=3)
    for _ in range(3):
        bench.clock.advance(61)
        bench.take()
        stall(bench)
        watch(bench).run_once()

    assert bench.state(job_id) is JobState.QUARANTINED
    assert bench.latest(job_id).code == EndCode.STALLED
    bench.assert_sound()


def test_progress_made_between_the_look_and_the_stop_saves_the_job(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = bench.running(stall_ms=60_000)
    stall(bench)
    original = bench.store.stop_stalled

    def stop_late(*args: object, **kwargs: object) -> bool:
        bench.apply(finish_step(claim))
        return original(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(bench.store, "stop_stalled", stop_late)

    assert stop_stalled(bench.store, actor="guard") == []
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_an_operator_approves_what_the_guard_only_reported(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    stall(bench)
    watch(bench, automatic=False).run_once()
    before = bench.state(claim.job.job_id)

    approved = stop_stalled(bench.store, actor="operator:alice")

    assert before is JobState.RUNNING
    assert approved == [claim.job.job_id]
    assert bench.journal(claim.job.job_id)[-1].actor == "operator:alice"


def test_a_real_worker_is_freed_of_a_step_that_hangs(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            gate.pass_through()
        return note("done")(run)

    flow = flow_of(step, stall_after=0.3)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=1, recovery_interval=0.2) as worker:
        gate.wait_for_arrival()
        eventually(lambda: stop_stalled(engine.store, actor="guard"), "the stall is found")
        eventually(lambda: worker.active == 0, "the worker lets go of it")
        gate.open()

    job = engine.store.job(job_id)
    assert (job.state, job.crashes) == (JobState.PENDING, 1)
    assert engine.store.steps(job_id) == []
