"""Bulk actions: one action on all jobs that match, as a job of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Engine
from holdfast.bulk import NAME, Bulk, BulkResponse
from holdfast.core.records import JournalEntry
from holdfast.core.states import Disposition, JobState
from holdfast.errors import BadInput, ReasonRequiredError
from holdfast.store.protocol import Store
from holdfast.views import BoundedCount, JobFilter
from tests.support.backends import Backend
from tests.support.bench import Bench, SettableClock
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
RUNNER = """
import sys, time
from holdfast import Engine
from holdfast.bulk import Bulk
engine = Engine.open(sys.argv[1])
Bulk(engine)
with engine.worker(concurrency=1):
    time.sleep(60)
"""


@pytest.fixture
def clock() -> None:
    """Workers run here, by the time that it is."""
    return


@pytest.fixture
def bench(store: Store) -> Bench:
    clock = SettableClock()
    clock.now = store.now()
    return Bench(store, clock)


@pytest.fixture
def engine(store: Store) -> Engine:
    return Engine(store)


def by_bulk(store: Store, job_id: str) -> list[JournalEntry]:
    return [entry for entry in store.journal(job_id) if '"bulk"' in entry.metadata]


def run_to_end(engine: Engine, bulk: Bulk, job_id: str) -> BulkResponse:
    with engine.worker(concurrency=1):
        return engine.result(bulk.flow, job_id, timeout=60)


def test_a_preview_says_what_an_action_is_for(bench: Bench, engine: Engine) -> None:
    failed = [bench.ended() for _ in range(7)]
    bench.ended(Disposition.QUARANTINED)
    bench.submit()
    shown = Bulk(engine).preview(JobFilter(flow="demo"), "retry")

    assert {state: one.count for state, one in shown.counts.items() if one.count} == {
        "pending": 1,
        "failed": 7,
        "quarantined": 1,
    }
    assert (shown.acted_on, shown.refused) == (BoundedCount(count=7), BoundedCount(count=2))
    assert [job.job_id for job in shown.samples] == sorted(failed, reverse=True)[:5]
    assert Bulk(engine).preview(JobFilter(states=(JobState.FAILED,)), "release").acted_on.count == 0


def test_all_that_matches_is_acted_on_once_and_the_reason_is_on_record(bench: Bench, engine: Engine) -> None:
    failed = [bench.ended(queue="q") for _ in range(5)]
    other, quarantined = bench.ended(queue="other"), bench.ended(Disposition.QUARANTINED, queue="q")
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="the disk was full", actor="operator:alice")
    response = run_to_end(engine, bulk, job_id)

    assert (response.done, response.refused, response.passed_over) == (5, 0, 0)
    assert [bench.state(one) for one in failed] == [JobState.PENDING] * 5
    assert (bench.state(other), bench.state(quarantined)) == (JobState.FAILED, JobState.QUARANTINED)
    [entry] = by_bulk(bench.store, failed[0])
    assert (entry.actor, entry.reason) == ("operator:alice", "the disk was full")
    assert job_id in entry.metadata


def test_quarantined_jobs_are_released_and_waiting_ones_cancelled(bench: Bench, engine: Engine) -> None:
    quarantined, pending = bench.ended(Disposition.QUARANTINED, queue="q"), bench.submit(queue="p")
    bulk = Bulk(engine)
    run_to_end(engine, bulk, bulk.submit(JobFilter(queue="q"), "release", reason="mended"))
    response = run_to_end(engine, bulk, bulk.submit(JobFilter(), "cancel", reason="not needed"))

    released = bench.job(quarantined)
    assert (released.state, released.cancel_reason) == (JobState.PENDING, "not needed"), "a worker cleans up after it"
    assert bench.state(pending) is JobState.FAILED
    assert response.done == 2


def test_what_changed_after_it_was_submitted_is_passed_over(bench: Bench, engine: Engine) -> None:
    changed = bench.ended(queue="q")
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="r")
    engine.force(changed, "quarantined", reason="look at it first")
    engine.release(changed, reason="looked")
    engine.force(changed, "failed", reason="it is no use")
    late = bench.ended(queue="q")
    response = run_to_end(engine, bulk, job_id)

    assert (response.done, bench.state(changed), bench.state(late)) == (0, JobState.FAILED, JobState.FAILED)


def test_a_job_that_cannot_be_acted_on_is_named(bench: Bench, engine: Engine) -> None:
    failed = bench.ended(key="k", queue="q")
    bench.submit(key="k")
    bulk = Bulk(engine)
    response = run_to_end(engine, bulk, bulk.submit(JobFilter(queue="q"), "retry", reason="r"))

    assert (response.done, response.refused) == (0, 1)
    assert [one.job_id for one in response.refusals] == [failed]
    assert "has the key" in response.refusals[0].message


def test_a_bulk_action_is_cancelled_as_any_job(bench: Bench, engine: Engine) -> None:
    failed = [bench.ended(queue="q") for _ in range(20)]
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="r", per_second=5)
    with engine.worker(concurrency=1):
        eventually(lambda: any(by_bulk(bench.store, one) for one in failed))
        engine.cancel(job_id, reason="too many")
        result = engine.wait(job_id, timeout=30)
    acted_on = [one for one in failed if by_bulk(bench.store, one)]

    assert result.state is JobState.FAILED
    assert 0 < len(acted_on) < 20


def test_a_killed_bulk_action_goes_on_and_acts_on_no_job_twice(backend: Backend, bench: Bench, engine: Engine) -> None:
    failed = [bench.ended(queue="q") for _ in range(30)]
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="r", per_second=20)
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, backend.place], cwd=ROOT)
    try:
        eventually(lambda: sum(bool(by_bulk(bench.store, one)) for one in failed) >= 3)
    finally:
        runner.kill()
        runner.wait()
    before = sum(bool(by_bulk(bench.store, one)) for one in failed)
    run_to_end(engine, bulk, job_id)

    assert before < 30
    assert [len(by_bulk(bench.store, one)) for one in failed] == [1] * 30
    assert len(bench.store.executions(job_id)) == 2


def test_what_makes_no_sense_is_refused(engine: Engine) -> None:
    bulk = Bulk(engine)

    with pytest.raises(BadInput):
        bulk.submit(JobFilter(), "explode", reason="r")  # type: ignore[arg-type]
    with pytest.raises(ReasonRequiredError):
        bulk.submit(JobFilter(), "retry", reason=" ")
    with pytest.raises(BadInput):
        bulk.submit(JobFilter(), "retry", reason="r", per_second=0)
    assert engine.flows[NAME] is bulk.flow
