"""What a claim and a list cost does not depend on what is there besides: queues once named, jobs of other flows."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.states import JobState
from holdfast.store.open import open_store
from tests.support.backends import Backend, on_postgres
from tests.support.bench import FLOWS, OPERATOR, OTHER, WORKER, Bench, SettableClock, commit, finish

INSTRUCTIONS = 100
"""Of SQLite's machine, between two calls of the counter."""


@contextmanager
def counted(store: Any) -> Iterator[list[int]]:
    """How many instructions SQLite runs inside, in hundreds."""
    database = store._database
    connections: list[sqlite3.Connection] = [database._writer, database.reader()]
    count = [0]

    def tick() -> int:
        count[0] += 1
        return 0

    for connection in connections:
        connection.set_progress_handler(tick, INSTRUCTIONS)
    yield count
    for connection in connections:
        connection.set_progress_handler(None, 0)


def cost_of_a_claim(tmp_path: Path, others: int, **fields: Any) -> int:
    clock = SettableClock()
    store = open_store(tmp_path / str(others), clock=clock)
    bench = Bench(store, clock)
    names = fields.pop("queues", None)
    jobs = [bench.new_job(**fields, **({"queue": f"q{n}"} if names else {})) for n in range(others)]
    store.submit(jobs, actor="client")
    if names:
        for claims in iter(lambda: bench.claim(limit=500), []):
            bench.apply(*(commit(claim) for claim in claims))
            bench.apply(*(finish(claim) for claim in claims))
    bench.submit()
    with counted(store) as count:
        assert len(bench.claim(limit=4)) == 1
    store.close()
    return count[0]


def test_jobs_of_flows_that_a_worker_does_not_know_cost_its_claims_nothing(tmp_path: Path) -> None:
    few, many = (cost_of_a_claim(tmp_path, others, flow="unknown") for others in (2, 2000))

    assert many <= few + 5


def test_queues_that_have_no_ready_jobs_cost_claims_nothing(tmp_path: Path) -> None:
    few, many = (cost_of_a_claim(tmp_path, others, queues=True) for others in (2, 1000))

    assert many <= few + 5


def test_jobs_that_wait_cost_claims_nothing(tmp_path: Path) -> None:
    due = SettableClock().now + 1_000_000
    few, many = (cost_of_a_claim(tmp_path, others, not_before=due) for others in (2, 2000))

    assert many <= few + 5


def test_a_list_of_jobs_in_one_state_costs_what_it_shows(tmp_path: Path) -> None:
    costs = []
    for number in (100, 3000):
        clock = SettableClock()
        store = open_store(tmp_path / str(number), clock=clock)
        bench = Bench(store, clock)
        store.submit([bench.new_job(flow=f"f{n % 7}") for n in range(number)], actor="client")
        with counted(store) as count:
            assert len(store.jobs(states=[JobState.PENDING], limit=50)) == 50
        costs.append(count[0])
        store.close()

    assert costs[1] <= costs[0] + 5


def test_the_best_jobs_of_many_queues_and_flows_are_claimed_in_order(bench: Bench) -> None:
    flows = {f"f{n}": "f-demo" for n in range(3)}
    jobs = {bench.submit(flow=f"f{n % 3}", queue=f"q{n % 5}", priority=n * 7 % 11): n * 7 % 11 for n in range(30)}
    best = sorted(jobs, key=lambda job_id: (-jobs[job_id], job_id))
    claimed: list[str] = []
    for _ in range(10):
        claimed += [claim.job.job_id for claim in bench.claim(flows=flows, limit=3)]

    assert [sorted(claimed[n : n + 3]) for n in range(0, 30, 3)] == [sorted(best[n : n + 3]) for n in range(0, 30, 3)]


def test_the_limit_of_a_queue_is_shared_by_the_flows_in_it(bench: Bench) -> None:
    bench.store.set_queue("q", max_running=3, actor=None)
    flows = {f"f{n}": "f-demo" for n in range(4)}
    for n in range(8):
        bench.submit(flow=f"f{n % 4}", queue="q")

    assert len(bench.claim(flows=flows)) == 3
    assert bench.claim(OTHER, flows=flows) == []


def test_a_queue_that_no_job_is_in_is_forgotten_with_the_last_job(bench: Bench) -> None:
    ended = bench.succeeded(queue="gone")
    bench.succeeded(queue="paused")
    bench.submit(queue="busy")
    bench.store.set_queue("limited", max_running=3, actor=None)
    bench.store.pause_queue("paused", actor=OPERATOR, reason="x")
    bench.clock.advance(10)

    assert ended in bench.store.prune(before=bench.clock(), limit=10, actor=OPERATOR, dry_run=False)
    assert {queue.name for queue in bench.store.queues()} == {"busy", "limited", "paused"}
    assert bench.submit(queue="gone")
    bench.assert_sound()


# --- rows that somebody holds ------------------------------------------------------------------------------

HELD = {
    "a limited queue": "SELECT * FROM queues WHERE name = 'q' FOR UPDATE",
    "all queues": "SELECT * FROM queues FOR UPDATE",
    "the queues as a table": "LOCK TABLE queues IN ROW SHARE MODE",
    "a pending job": "SELECT * FROM jobs WHERE priority = 9 FOR UPDATE",
    "a running job": "SELECT * FROM jobs WHERE priority = 8 FOR UPDATE",
    "a running execution": "SELECT * FROM executions WHERE finished_at IS NULL FOR UPDATE",
    "an ended execution": "SELECT * FROM executions WHERE finished_at IS NOT NULL FOR UPDATE",
    "the workers": "SELECT * FROM workers FOR UPDATE",
    "a definition": "SELECT * FROM definitions FOR UPDATE",
}


@on_postgres
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_a_shell_that_holds_a_row_does_not_hold_up_claims_recovery_or_announcements(
    bench: Bench, backend: Backend, held: str
) -> None:
    bench.store.set_queue("q", max_running=5, actor=None)
    bench.ended()
    bench.running(OTHER, priority=8)
    bench.submit(priority=9, queue="q")
    free = bench.submit()
    bench.store.announce(worker_id=WORKER, flows=list(FLOWS))
    with backend.shell() as shell:
        shell.execute("BEGIN")
        shell.execute(held)
        claimed = [claim.job.job_id for claim in bench.claim(limit=8)]
        bench.store.announce(worker_id=WORKER, flows=list(FLOWS))
        bench.store.retire(worker_id=OTHER)
        bench.expire()
        bench.recover()

    assert free in claimed
    assert [worker.worker_id for worker in bench.store.workers()] == [WORKER]
