"""Bulk actions: one action on all jobs that match, as a job of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine
from holdfast.bulk import NAME, Bulk, BulkResponse
from holdfast.core.records import JournalEntry
from holdfast.core.states import Disposition, JobState
from holdfast.errors import BadInput, ReasonRequiredError, StoreBusy
from holdfast.store.protocol import Store
from holdfast.views import BoundedCount, JobFilter
from tests.support.backends import Backend
from tests.support.bench import Bench, SettableClock, give_back
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


def test_a_job_that_has_failed_is_not_cancelled_when_somebody_tries_it_again(bench: Bench, engine: Engine) -> None:
    failed, waiting = bench.ended(queue="q"), bench.submit(queue="q")
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "cancel", reason="not needed")
    engine.retry(failed, reason="it is needed")
    response = run_to_end(engine, bulk, job_id)

    assert (response.done, response.passed_over) == (1, 1)
    assert (bench.state(failed), bench.job(failed).cancel_reason) == (JobState.PENDING, None)
    assert bench.state(waiting) is JobState.FAILED


def test_a_running_job_is_cancelled_though_it_has_gone_on_since(bench: Bench, engine: Engine) -> None:
    claim = bench.running(queue="q")
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "cancel", reason="not needed")
    eventually(lambda: bench.store.now() > bench.job(job_id).created_at)
    bench.apply(give_back(claim))
    response = run_to_end(engine, bulk, job_id)

    assert response.done == 1
    assert bench.job(claim.job.job_id).cancel_reason == "not needed"


def test_nothing_is_acted_on_twice_though_the_clock_was_set_back(bench: Bench, engine: Engine) -> None:
    """Begun anew, an action finds the job that it has tried again, failed again, at a time before its own."""
    failed = bench.ended(queue="q")
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="r")
    entry = bench.store.journal(failed)[-1]
    bench.store.retry(
        failed,
        actor="operator",
        reason="r",
        from_state=JobState.FAILED,
        expected_head=entry.hash,
        metadata={"bulk": job_id},
    )
    bench.store.fail(failed, actor="operator", reason="again", quarantine=False)
    request = bulk.flow.request_codec.decode(bench.store.request(job_id))
    later = msgspec.structs.replace(request, as_of=bench.store.now() + 3_600_000)

    assert list(bulk._matching(later)) != []
    response = BulkResponse()
    for job in bulk._matching(later):
        bulk._act(job, later, job_id, response)
    assert (response.done, response.passed_over) == (0, 1)


def test_a_job_whose_rows_cannot_be_read_costs_no_other_one(backend: Backend, bench: Bench, engine: Engine) -> None:
    good, spoiled, other = [bench.ended(queue="q") for _ in range(3)]
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(f"UPDATE jobs SET ending = 'garbage', attempt = 7 WHERE job_id = '{spoiled}'")
        put_back()
    bulk = Bulk(engine)
    response = run_to_end(engine, bulk, bulk.submit(JobFilter(queue="q"), "retry", reason="r"))

    assert [bench.state(one) for one in (good, other)] == [JobState.PENDING] * 2
    assert response.done + response.refused == 3


def test_a_store_that_is_busy_for_a_while_does_not_end_an_action(
    bench: Bench, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [bench.ended(queue="q") for _ in range(3)]
    ask, busy = bench.store.retry, iter([StoreBusy("a moment")])

    def retry(job_id: str, **options: Any) -> JobState:
        if job_id == failed[1]:
            for error in busy:
                raise error
        return ask(job_id, **options)

    monkeypatch.setattr(engine.store, "retry", retry)
    bulk = Bulk(engine)
    job_id = bulk.submit(JobFilter(queue="q"), "retry", reason="r")
    run_to_end(engine, bulk, job_id)

    assert [len(by_bulk(bench.store, one)) for one in failed] == [1, 1, 1]


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


def test_any_worker_of_the_command_line_runs_it(backend: Backend, bench: Bench, engine: Engine) -> None:
    failed = bench.ended(queue="q")
    job_id = Bulk(engine).submit(JobFilter(queue="q"), "retry", reason="r")
    command = [
        sys.executable,
        "-m",
        "holdfast.cli",
        "--store",
        backend.place,
        "--app",
        "tests.integration.fleet_app:fleet_flow",
    ]
    worker = subprocess.run(
        [*command, "worker", "--exit-when-idle"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert engine.wait(job_id, timeout=1).state is JobState.SUCCEEDED, worker.stderr
    assert bench.state(failed) is JobState.PENDING


def test_what_makes_no_sense_is_refused(engine: Engine) -> None:
    bulk = Bulk(engine)

    with pytest.raises(BadInput):
        bulk.submit(JobFilter(), "explode", reason="r")  # type: ignore[arg-type]
    with pytest.raises(ReasonRequiredError):
        bulk.submit(JobFilter(), "retry", reason=" ")
    with pytest.raises(BadInput):
        bulk.submit(JobFilter(), "retry", reason="r", per_second=0)
    with pytest.raises(BadInput):
        bulk.submit(JobFilter(), "retry", reason="r", per_second=0.001)
    assert engine.flows[NAME] is bulk.flow
