"""Leases are kept alive whatever the steps do, and a worker that lost one lets go of the job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import JobState
from holdfast.errors import LeaseLost, StoreBusy
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskRun, Gate, Tally, flow_of, note
from tests.support.waiting import eventually


def test_leases_outlive_steps_that_spin_the_processor(open_engine: OpenEngine) -> None:
    def spin(run: AskRun) -> Answer:
        until = time.monotonic() + 5
        total = 0
        while time.monotonic() < until:
            total += sum(range(2000))
        return Answer(total=1)

    flow = flow_of(spin)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(3)]
    with engine.worker(concurrency=3, lease=2.0, recovery_interval=0.2) as worker:
        results = [engine.wait(job_id, timeout=60) for job_id in jobs]

    assert [result.state for result in results] == [JobState.SUCCEEDED] * 3
    assert [engine.store.job(job_id).attempt for job_id in jobs] == [1, 1, 1]
    assert worker.telemetry.lost_leases == 0


def test_leases_outlive_a_slow_commit_step_of_the_same_worker(open_engine: OpenEngine) -> None:
    from holdfast import Flow, Transaction
    from tests.support.flows import AskFlow

    def slow_save(run: AskRun, tx: Transaction) -> None:
        time.sleep(1.5)

    slow: AskFlow = Flow("slow", request=Ask, response=Answer)
    slow.start("one", note("one")).commit("save", slow_save)
    gate = Gate()
    waiting = flow_of(gate.pass_through, "waiting")
    engine = open_engine(slow, waiting)
    other = engine.submit(waiting, Ask())
    with engine.worker(lease=0.8, recovery_interval=0.2):
        gate.wait_for_arrival()
        first = engine.wait(engine.submit(slow, Ask()), timeout=30)
        gate.open()
        second = engine.wait(other, timeout=30)

    assert (first.state, second.state) == (JobState.SUCCEEDED, JobState.SUCCEEDED)
    assert engine.store.job(other).attempt == 1


def test_a_worker_lets_go_of_a_job_whose_lease_it_lost(open_engine: OpenEngine) -> None:
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            try:
                gate.pass_through(run)
            except LeaseLost:
                tally.add("told")
        return note("done")(run)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        taken = engine.store.recover(is_dead=lambda _owner: True, actor="somebody who thinks it is dead")
        result = engine.wait(job_id, timeout=20)
        eventually(lambda: tally.count("told"), "the step hears that it works for nobody")

    assert [one.job_id for one in taken] == [job_id]
    assert result.state is JobState.SUCCEEDED
    assert tally.count("entered") == 2
    assert worker.telemetry.lost_leases <= 1


def test_a_lock_on_the_database_longer_than_the_busy_timeout_costs_no_job(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`database is locked` on a heartbeat, on a claim and on a write: each is tried again."""
    flow = flow_of(lambda run: time.sleep(0.05))
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(10)]
    failing: dict[str, int] = {}
    for verb in ("claim", "write", "extend_leases", "recover"):
        original = getattr(engine.store, verb)

        def locked(*args: object, _verb: str = verb, _original: object = original, **kwargs: object) -> object:
            failing[_verb] = failing.get(_verb, 0) + 1
            if failing[_verb] in (2, 3):
                raise StoreBusy("database is locked")
            return _original(*args, **kwargs)  # type: ignore[operator]

        monkeypatch.setattr(engine.store, verb, locked)
    with engine.worker(lease=1, recovery_interval=0.3):
        results = [engine.wait(job_id, timeout=60) for job_id in jobs]

    assert {result.state for result in results} == {JobState.SUCCEEDED}
    assert failing["claim"] >= 2
    assert failing["write"] >= 2


def test_an_answer_lost_after_the_commit_is_found_by_its_evidence(
    open_engine: OpenEngine, effects: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection dies during COMMIT: the write is there, but nobody was told."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(5)]
    original = engine.store.write
    calls = 0

    def write(*args: object, **kwargs: object) -> object:
        nonlocal calls
        answer = original(*args, **kwargs)  # type: ignore[arg-type]
        calls += 1
        if calls % 2:
            raise StoreBusy("the answer was lost")
        return answer

    monkeypatch.setattr(engine.store, "write", write)
    with engine.worker(**QUICK):
        results = [engine.wait(job_id, timeout=60) for job_id in jobs]

    assert {result.state for result in results} == {JobState.SUCCEEDED}
    assert effects() == sorted(jobs)  # type: ignore[operator]
    assert [engine.store.job(job_id).attempt for job_id in jobs] == [1] * 5


def test_a_write_whose_evidence_cannot_be_read_either_is_tried_until_it_is_known(
    open_engine: OpenEngine, effects: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away just when it is asked for evidence: a step that is there must not look like a lost lease."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    write, evidence = engine.store.write, engine.store.evidence
    lost = {"write": 1, "evidence": 1}

    def losing_write(*args: object, **kwargs: object) -> object:
        answer = write(*args, **kwargs)  # type: ignore[arg-type]
        if lost["write"]:
            lost["write"] -= 1
            raise StoreBusy("the answer was lost")
        return answer

    def losing_evidence(*args: object, **kwargs: object) -> object:
        if lost["evidence"]:
            lost["evidence"] -= 1
            raise StoreBusy("still away")
        return evidence(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(engine.store, "write", losing_write)
    monkeypatch.setattr(engine.store, "evidence", losing_evidence)
    with engine.worker(lease=60, recovery_interval=1, stop_grace=1):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert effects() == [job_id]  # type: ignore[operator]
    assert engine.store.job(job_id).attempt == 1


VICTIM = """
import sys
from holdfast import Engine
from tests.integration.test_lease_renewal import endless_flow

flow = endless_flow(sys.argv[1])
with Engine.open(sys.argv[1], flows=[flow]) as engine:
    with engine.worker(lease=600):
        engine.wait(sys.argv[2])
"""


def endless_flow(directory: str) -> object:
    """The first to come waits for ever; whoever comes after a crash does not."""

    def step(run: AskRun) -> Answer:
        Path(directory, f"entered-{os.getpid()}").touch()
        while not run.interrupted:
            time.sleep(0.05)
        return note("resumed")(run)

    return flow_of(step, "endless")


@pytest.mark.parametrize("already_watching", [True, False], ids=["a worker was there", "a worker comes later"])
def test_the_jobs_of_a_killed_process_are_taken_over_at_once_and_not_after_the_lease(
    open_engine: OpenEngine, state: Path, already_watching: bool
) -> None:
    flow = endless_flow(str(state))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())  # type: ignore[arg-type]
    root = Path(__file__).parents[2]
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, state, job_id], cwd=root)
    eventually((state / f"entered-{victim.pid}").exists, "the victim has begun")

    def kill() -> float:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        return time.monotonic()

    if already_watching:
        with engine.worker(lease=600, recovery_interval=60):
            time.sleep(0.5)
            killed_at = kill()
            result = engine.wait(job_id, timeout=20)
    else:
        killed_at = kill()
        with engine.worker(lease=600, recovery_interval=60):
            result = engine.wait(job_id, timeout=20)
    took = time.monotonic() - killed_at

    assert result.state is JobState.SUCCEEDED
    assert took < 5
    assert engine.store.job(job_id).crashes == 1


def test_a_process_that_is_only_stopped_is_not_dead(open_engine: OpenEngine, state: Path) -> None:
    """SIGSTOP for less than a lease: its job is still its own."""
    flow = endless_flow(str(state))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())  # type: ignore[arg-type]
    root = Path(__file__).parents[2]
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, state, job_id], cwd=root)
    try:
        eventually((state / f"entered-{victim.pid}").exists, "the victim has begun")
        os.kill(victim.pid, signal.SIGSTOP)
        with engine.worker(lease=600, recovery_interval=0.1):
            time.sleep(1)
            job = engine.store.job(job_id)
    finally:
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()

    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
