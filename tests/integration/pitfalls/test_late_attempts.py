"""Pitfalls 1 to 4: late attempts and limits."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from holdfast import JobState
from holdfast.errors import LeaseLost
from tests.integration.conftest import OpenEngine
from tests.support.bench import (
    LEASE_MS,
    OTHER,
    WORKER,
    Bench,
    commit,
    end,
    finish,
    finish_step,
    give_back,
)
from tests.support.flows import Ask, flow_of, note
from tests.support.processes import join_all, kill, logging_flow, most_at_once, run_worker, start
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]


def test_01_a_late_attempt_does_not_overwrite_the_end_that_a_newer_one_has_written(bench: Bench) -> None:
    """A first attempt that was taken for dead comes back and reports a failure after the second has succeeded."""
    late = bench.running(WORKER)
    bench.crash()
    newer = bench.take(OTHER)
    bench.apply(commit(newer), worker=OTHER)
    bench.apply(finish(newer), worker=OTHER)

    answers = bench.write(end(late), give_back(late), finish_step(late), commit(late))

    assert all(isinstance(answer, LeaseLost) for answer in answers)
    assert bench.state(late.job.job_id) is JobState.SUCCEEDED


def test_02_a_blip_of_the_heartbeat_does_not_free_a_slot_twice(bench: Bench) -> None:
    """A heartbeat comes late, several processes release the same lock, and a job limited to one runs many times."""
    bench.store.set_queue("q", max_running=1, actor=None)
    blip = bench.running(queue="q")
    for _ in range(10):
        bench.submit(queue="q")
    bench.expire()
    recovered = [bench.recover(WORKER) for _ in range(5)]
    renewed = bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)
    bench.write(give_back(blip), end(blip))
    claims = [claim for worker in ("a", "b", "c") for claim in bench.claim(worker)]

    assert recovered == [["given back"], [], [], [], []]
    assert renewed == []
    assert len(claims) == 1


def test_03_a_limit_holds_after_a_kill_whoever_starts_first(
    open_engine: OpenEngine, state: Path, effects: Effects
) -> None:
    """Workers that started before the slots of the dead were sorted out ran more jobs than the limit allows."""
    flow = logging_flow(str(state))
    engine = open_engine(flow)
    engine.queue("q", limit=1)
    jobs = [engine.submit(flow, Ask("x", n)) for n in range(12)]
    victim = start(run_worker, str(state), 0.05, 4, 600.0)
    eventually(lambda: (state / "log").exists() and "end" in (state / "log").read_text(), "the victim works")
    kill(victim)
    codes = join_all([start(run_worker, str(state), 0.02, 4, 600.0) for _ in range(3)])

    # The victim never wrote the end of its last step, so that step is the one the log cannot close.
    killed = {line.split()[2] for line in (state / "log").read_text().splitlines() if line.startswith("begin")}
    ended = {line.split()[2] for line in (state / "log").read_text().splitlines() if line.startswith("end")}
    assert codes == [0, 0, 0]
    assert most_at_once(state) <= 1 + len(killed - ended)
    assert effects() == sorted(jobs)


def test_04_the_slot_of_a_dead_worker_is_free_at_once(open_engine: OpenEngine, state: Path) -> None:
    """The limit stayed taken after a worker had died, and everything behind it waited for the whole lease."""
    flow = logging_flow(str(state), 60)
    engine = open_engine(flow)
    engine.queue("q", limit=1)
    engine.submit(flow, Ask())
    victim = start(run_worker, str(state), 60.0, 1, 3600.0)
    eventually((state / "log").exists, "the victim works")
    kill(victim)
    quick = flow_of(note("quick"), "quick", queue="q")
    other = open_engine(quick)
    began = time.monotonic()
    with other.worker(lease=3600, recovery_interval=60):
        result = other.wait(other.submit(quick, Ask(), priority=9), timeout=30)

    assert result.state is JobState.SUCCEEDED
    assert time.monotonic() - began < 10
