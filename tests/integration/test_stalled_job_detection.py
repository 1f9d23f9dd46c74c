"""Stalls are found: a worker that renews its lease and gets nowhere is told apart from one that works."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.progress import StallVerdict
from holdfast.guard import Watch, stalled
from holdfast.store.commands import Write
from holdfast.worker.telemetry import Telemetry
from tests.support.backends import SqliteBackend
from tests.support.bench import (
    LEASE_MS,
    WORKER,
    Bench,
    SettableClock,
    commit,
    finish_step,
    record_try,
    report_progress,
)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    clock = SettableClock()
    return Bench(SqliteBackend(tmp_path / "other").open(clock), clock)


def keep_alive_for(bench: Bench, seconds: float) -> None:
    """The worker renews its leases and does nothing else."""
    while seconds > 0:
        bench.clock.advance(min(20, seconds))
        bench.store.extend_leases(worker_id=WORKER, lease_ms=LEASE_MS)
        seconds -= 20


def verdicts(bench: Bench) -> dict[str, StallVerdict]:
    return {execution.exec_id: verdict for execution, verdict in stalled(bench.store)}


def test_a_job_without_progress_is_first_slow_and_then_stalled(bench: Bench) -> None:
    claim = bench.running(stall_ms=600_000)
    fresh = verdicts(bench)
    keep_alive_for(bench, 301)
    halfway = verdicts(bench)
    keep_alive_for(bench, 300)

    assert fresh == {}
    assert halfway == {claim.exec_id: StallVerdict.SLOW}
    assert verdicts(bench) == {claim.exec_id: StallVerdict.STALLED}


def test_ten_minutes_are_the_default(bench: Bench) -> None:
    claim = bench.running()
    keep_alive_for(bench, 600)
    at_the_limit = verdicts(bench)
    bench.clock.advance(0.001)

    assert at_the_limit == {claim.exec_id: StallVerdict.SLOW}
    assert verdicts(bench) == {claim.exec_id: StallVerdict.STALLED}


@pytest.mark.parametrize("sign", ["a finished step", "a report", "a failed try"])
def test_any_sign_of_progress_begins_a_new_patience(bench: Bench, sign: str) -> None:
    claim = bench.running(stall_ms=60_000)
    signs: dict[str, Write] = {
        "a finished step": finish_step(claim),
        "a report": report_progress(claim),
        "a failed try": record_try(claim),
    }
    keep_alive_for(bench, 50)
    bench.apply(signs[sign])
    keep_alive_for(bench, 20)

    assert StallVerdict.STALLED not in verdicts(bench).values()


def test_a_job_that_waits_for_its_next_try_is_not_stalled(bench: Bench) -> None:
    claim = bench.running(stall_ms=30_000)
    bench.apply(record_try(claim, retry_at=bench.clock() + 50_000))
    keep_alive_for(bench, 60)

    assert StallVerdict.STALLED not in verdicts(bench).values()
    assert bench.status(claim) == "in_progress"


def test_what_is_committed_waiting_or_ended_is_not_stalled(bench: Bench) -> None:
    done = bench.running(stall_ms=1)
    bench.apply(commit(done))
    bench.ended(stall_ms=1)
    bench.submit(stall_ms=1)
    bench.clock.advance(3600)

    assert verdicts(bench) == {}


def test_a_lease_alone_is_no_progress(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 100)

    assert bench.latest(claim.job.job_id).lease_expires_at > bench.clock()
    assert verdicts(bench) == {claim.exec_id: StallVerdict.STALLED}


def test_the_watch_reports_a_stall_and_leaves_it_to_an_operator_if_so_configured(bench: Bench) -> None:
    claim = bench.running(stall_ms=60_000)
    keep_alive_for(bench, 100)
    watch = Watch(bench.store, telemetry=Telemetry(), automatic=False, actor="guard")

    lines = watch.run_once()

    assert any(claim.job.job_id in line and "stalled" in line for line in lines)
    assert bench.status(claim) == "in_progress"
    assert watch.run_once() == lines


def test_the_watch_has_nothing_to_say_about_healthy_jobs(bench: Bench) -> None:
    bench.running()
    bench.succeeded()
    bench.ended()

    assert Watch(bench.store, telemetry=Telemetry(), automatic=True, actor="guard").run_once() == []
