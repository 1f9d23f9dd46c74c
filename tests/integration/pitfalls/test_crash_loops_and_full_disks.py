"""Pitfalls 21 to 24: crash loops, lost jobs, half writes, full disks."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import JobState, fixed
from holdfast.core.states import Disposition
from holdfast.core.step import EndCode
from holdfast.crash_points import set_hook
from holdfast.sql_files import load_statements
from holdfast.store import liveness
from tests.integration.conftest import OpenEngine
from tests.support.bench import (
    OPERATOR,
    OTHER,
    Bench,
    commit,
    effect_of,
    finish,
)
from tests.support.flows import Ask, AskFlow, AskRun, flow_of

Effects = Callable[[], list[str]]
ROOT = Path(__file__).parents[3]


SUICIDE = """
import sys
from holdfast import Engine
from tests.integration.pitfalls.test_crash_loops_and_full_disks import suicidal_flow

flow = suicidal_flow()
with Engine.open(sys.argv[1], flows=[flow]) as engine, engine.worker(concurrency=1):
    engine.wait(sys.argv[2], timeout=30)
"""


def suicidal_flow() -> AskFlow:
    """Its step brings down the process, as the kernel does when memory runs out."""

    def step(run: AskRun) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return flow_of(step, "suicidal", crash_limit=3, retry=fixed(50))


def test_21_a_job_that_kills_its_worker_again_and_again_is_quarantined(open_engine: OpenEngine, state: Path) -> None:
    """A job that got its process killed was delivered again for ever, because only exceptions were counted."""
    flow = suicidal_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    codes = [
        subprocess.run([sys.executable, "-c", SUICIDE, state, job_id], cwd=ROOT, check=False, timeout=60).returncode
        for _ in range(3)
    ]
    engine.store.recover(is_dead=liveness.is_dead, actor="guard")
    last = subprocess.run([sys.executable, "-c", SUICIDE, state, job_id], cwd=ROOT, check=False, timeout=60)

    job = engine.store.job(job_id)
    assert codes == [-signal.SIGKILL] * 3
    assert last.returncode == 0, "a fourth worker does not touch it any more"
    assert (job.state, job.crashes, job.attempt) == (JobState.QUARANTINED, 3, 3)
    assert engine.store.executions(job_id)[-1].code == EndCode.CRASHED


@pytest.mark.parametrize("point", ["claim.before-commit", "claim.after-commit"])
def test_22_a_job_taken_from_the_queue_by_a_process_that_dies_is_not_lost(bench: Bench, point: str) -> None:
    """Jobs were deleted when they were taken, or read as due and then put into the queue by a process that died."""
    ready = bench.submit()
    due = bench.submit(not_before=bench.clock() + 10)
    bench.clock.advance(1)

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.claim()
    finally:
        set_hook(None)
    bench.expire()
    bench.recover()

    assert sorted(claim.job.job_id for claim in bench.claim(OTHER)) == sorted([ready, due])
    bench.assert_sound()


@pytest.mark.parametrize("side", ["before-commit", "after-commit"])
def test_23_pause_is_one_fact_that_can_always_be_taken_back(bench: Bench, side: str) -> None:
    """A flag and a status said different things about a pause, and then neither pause nor unpause worked."""
    bench.submit(queue="q")

    def die(name: str) -> None:
        if name.endswith(side):
            raise KeyboardInterrupt

    def pause() -> None:
        bench.store.pause_queue("q", actor=OPERATOR, reason="x")

    def resume() -> None:
        bench.store.resume_queue("q")

    for verb in (pause, resume):
        set_hook(die)
        try:
            with pytest.raises(KeyboardInterrupt):
                verb()
        finally:
            set_hook(None)
        [queue] = [queue for queue in bench.store.queues() if queue.name == "q"]
        assert (queue.paused_at is None) == (queue.paused_by is None) == (queue.paused_reason is None)
    bench.store.pause_queue("q", actor=OPERATOR, reason="x")
    paused = bench.claim()
    bench.store.resume_queue("q")

    assert paused == []
    assert len(bench.claim()) == 1


@pytest.mark.parametrize("point", ["write.Commit.before-commit", "write.Commit.after-commit"])
def test_23_history_and_state_are_written_together_or_not_at_all(bench: Bench, effects: Effects, point: str) -> None:
    """A crash between the table of events and the table of states left the two telling different stories."""
    claim = bench.running()

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.write(commit(claim, effect_of(claim)))
    finally:
        set_hook(None)

    journaled = [entry.exec_to for entry in bench.journal(claim.job.job_id)]
    committed = point.endswith("after-commit")
    assert ("committed" in journaled) is committed
    assert (bench.status(claim) == "committed") is committed
    assert len(effects()) == committed
    bench.assert_sound()


def test_24_history_can_be_forgotten_when_the_disk_is_already_full(bench: Bench) -> None:
    """Nothing was ever removed, the disk was full, and then nobody could connect to remove anything."""
    for _ in range(50):
        bench.succeeded(request='{"data":"' + "x" * 3000 + '"}')
    writer = bench.store._database._writer  # type: ignore[attr-defined]
    pages = writer.execute("PRAGMA page_count").fetchone()[0]
    writer.execute(f"PRAGMA max_page_count = {pages}")

    removed = bench.store.prune(before=bench.clock() + 1, limit=50, actor=OPERATOR, dry_run=False)

    assert len(removed) == 50
    assert bench.state(bench.submit()) is JobState.PENDING
    bench.assert_sound()


HOT = [
    "has_ready",
    "promote_due",
    "ready_queues",
    "ready_jobs",
    "owners",
    "orphaned",
    "held",
    "extend_leases",
    "next_due",
]


@pytest.mark.parametrize("name", HOT)
def test_24_no_question_that_is_asked_all_the_time_looks_at_finished_jobs(bench: Bench, state: Path, name: str) -> None:
    """Counting over finished rows, again and again, became the most expensive query of the database."""
    bench.succeeded()
    bench.ended(Disposition.FAILED)
    bench.ended(Disposition.QUARANTINED)
    statement = load_statements("holdfast.store", "sqlite")[name]
    with closing(sqlite3.connect(state / "holdfast.db")) as shell:
        parameters = dict.fromkeys(re.findall(r":([a-z_]+)", statement), 1) | {"dead": "[]", "flows": "[]"}
        plan = [row[3] for row in shell.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        small = indexes_without_finished_jobs(shell)

    touching = [line for line in plan if re.search(r"\b(jobs|executions|j|e)\b", line) and "json_each" not in line]
    assert touching
    scanned = [line for line in touching if line.startswith("SCAN")]
    assert [line for line in scanned if line.rpartition("INDEX ")[2] not in small] == [], plan


def indexes_without_finished_jobs(shell: sqlite3.Connection) -> set[str]:
    """Of a database whose jobs have all ended: the indexes that say which rows they have, and have none of them."""
    indexes = shell.execute(
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE%'"
    )
    return {
        name
        for name, table, sql in indexes.fetchall()
        if shell.execute(f"SELECT count(*) FROM {table} WHERE {sql.partition(' WHERE ')[2]}").fetchone() == (0,)
    }


def test_24_the_price_of_a_job_does_not_grow_with_the_number_of_finished_ones(bench: Bench) -> None:
    """The same cycle of claim, commit and finish, counted in steps of the database engine's virtual machine."""
    writer = bench.store._database._writer  # type: ignore[attr-defined]

    def price() -> int:
        steps = 0

        def count() -> int:
            nonlocal steps
            steps += 1
            return 0

        bench.submit()
        writer.set_progress_handler(count, 10)
        claim = bench.take()
        bench.apply(commit(claim))
        bench.apply(finish(claim))
        writer.set_progress_handler(None, 0)
        return steps

    before = price()
    claims = []
    for _ in range(3):
        bench.store.submit([bench.new_job() for _ in range(300)], actor="client")
        claims = bench.claim(limit=300)
        bench.apply(*(commit(claim) for claim in claims))
        bench.apply(*(finish(claim) for claim in claims))
    after = price()

    assert len(claims) == 300
    assert after <= before * 1.5 + 20, (before, after)
