"""A full disk: said so, nothing lost, and everything goes on as soon as there is room again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.states import ExecutionStatus, JobState
from holdfast.errors import StoreFull, StoreUnavailable
from holdfast.store.commands import StoreTransaction
from tests.support.backends import SqliteBackend, on_sqlite
from tests.support.bench import Bench, commit, effect_of, finish, finish_step

pytestmark = on_sqlite


def limit_pages(bench: Bench, more: int) -> None:
    """Let the database grow by so many pages and no further; a negative number takes the limit away."""
    writer: Any = bench.store._database._writer  # type: ignore[attr-defined]
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {1 << 30 if more < 0 else pages + more}")


def fill(bench: Bench) -> list[str]:
    """Submit until the disk is full; the jobs that were acknowledged."""
    jobs: list[str] = []
    try:
        while len(jobs) < 10_000:
            jobs.append(bench.submit(request='{"data":"' + "x" * 2000 + '"}'))
    except StoreFull:
        return jobs
    raise AssertionError("the disk never was full")


def test_a_full_disk_is_said_to_be_full_and_nothing_acknowledged_is_lost(bench: Bench) -> None:
    limit_pages(bench, 40)

    jobs = fill(bench)

    assert len(jobs) > 10
    assert sorted(job.job_id for job in bench.store.jobs(limit=10_000)) == sorted(jobs)
    bench.assert_sound()


def test_a_full_disk_can_be_asked_again_later(bench: Bench) -> None:
    limit_pages(bench, 5)
    fill(bench)
    limit_pages(bench, -1)

    assert bench.state(bench.submit()) is JobState.PENDING
    bench.assert_sound()


def test_an_effect_that_meets_a_full_disk_leaves_nothing_and_can_be_tried_again(
    bench: Bench, backend: SqliteBackend
) -> None:
    claim = bench.running()
    other = bench.running()
    backend.execute("CREATE TABLE big (data TEXT)")
    limit_pages(bench, 3)

    def effect(tx: StoreTransaction) -> str:
        tx.execute("INSERT INTO big VALUES ('" + "x" * 1_000_000 + "')")
        return "{}"

    with pytest.raises(StoreUnavailable):
        bench.write(finish_step(other), commit(claim, effect))
    durable = bench.store.evidence([finish_step(other), commit(claim, effect)])
    limit_pages(bench, -1)
    bench.apply(finish_step(other), commit(claim, effect))
    bench.apply(finish(claim))

    assert durable == [False, False]
    assert backend.query("SELECT count(*) FROM big") == [(1,)]
    assert bench.state(claim.job.job_id) is JobState.SUCCEEDED
    bench.assert_sound()


CHILD = """
import resource, signal, sys
from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from tests.support.bench import Bench, SettableClock

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store(sys.argv[1])
bench = Bench(store, SettableClock())
bench.submit()
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
acknowledged = 1
try:
    while acknowledged < 10_000:
        bench.submit(request='{"data":"' + "x" * 2000 + '"}')
        acknowledged += 1
except StoreUnavailable as error:
    print(acknowledged, type(error).__name__)
"""


def test_a_log_that_cannot_grow_loses_nothing_that_was_acknowledged(tmp_path: Path, bench: Bench) -> None:
    """The limit on the size of files stops the write-ahead log in the middle of a page."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, tmp_path / "state"], capture_output=True, check=False, cwd=root, timeout=100
    )

    assert done.stdout, done.stderr.decode()
    acknowledged, error = done.stdout.split()
    survivor = SqliteBackend(tmp_path / "state")
    store = survivor.open(bench.clock)
    assert error in {b"StoreFull", b"StoreUnavailable"}
    assert len(store.jobs(limit=20_000)) == int(acknowledged)
    assert list(store.integrity(deep=True)) == []
    survivor.close()


def test_reading_goes_on_while_the_disk_is_full(bench: Bench) -> None:
    claim = bench.running()
    limit_pages(bench, 2)
    fill(bench)

    assert bench.status(claim) is ExecutionStatus.IN_PROGRESS
    assert bench.store.counts()["demo", "running"] == 1


def test_what_runs_can_still_commit_when_room_is_made(bench: Bench, backend: SqliteBackend) -> None:
    claim = bench.running()
    limit_pages(bench, 1)
    fill(bench)
    limit_pages(bench, -1)

    bench.apply(commit(claim, effect_of(claim)))

    assert backend.query("SELECT count(*) FROM effects") == [(1,)]
