"""Real workers with threads, killed with SIGKILL at random moments, several on one database."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast import Engine, JobState
from holdfast.guard import check
from tests.crash.killed_app import Request, flow

WORKER = """
import sys, threading
from holdfast import Engine
from tests.crash.killed_app import flow
with Engine.open(sys.argv[1], flows=[flow]) as engine, engine.worker(concurrency=8, lease=5.0):
    print("ready", flush=True)
    threading.Event().wait()
"""
JOBS = 150
QUEUE_LIMIT = 12


@contextmanager
def worker(state: Path, files: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "KILLED_APP_FILES": str(files), "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(state)], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def unfinished(engine: Engine) -> int:
    return sum(n for (_, state), n in engine.store.counts().items() if state in ("pending", "running"))


def test_killed_workers_lose_nothing_and_double_nothing(tmp_path: Path, rng: random.Random) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with Engine.open(tmp_path / "state", flows=[flow]) as engine:
        engine.queue("narrow", limit=QUEUE_LIMIT)
        engine.submit_many([engine.prepare(flow, Request(n)) for n in range(JOBS)])
        kills = 0
        deadline = time.monotonic() + 100
        while unfinished(engine) and time.monotonic() < deadline:
            with worker(tmp_path / "state", files), worker(tmp_path / "state", files):
                # Longer lives as time goes by, so that the last ones can finish.
                time.sleep(rng.uniform(0.02, 0.15 + kills * 0.01))
            kills += 2
        findings = [finding for finding in check(engine.store, deep=True) if finding.severity == "error"]
        jobs = engine.store.jobs(limit=JOBS + 10)
        committed = [
            sum(e.status in ("committed", "done") for e in engine.store.executions(job.job_id)) for job in jobs
        ]
    with sqlite3.connect(tmp_path / "state" / "holdfast.db") as database:
        effects = database.execute("SELECT number, steps FROM effects ORDER BY number").fetchall()
    print(f"{kills} workers killed")

    assert {job.state for job in jobs} == {JobState.SUCCEEDED}
    assert len(jobs) == JOBS
    assert committed == [1] * JOBS
    assert effects == [(n, "a,b,c") for n in range(JOBS)]
    assert sorted(path.name for path in files.iterdir()) == sorted(f"{n}-{s}" for n in range(JOBS) for s in "abc")
    assert not findings
    assert kills >= 2


def test_jobs_of_a_killed_process_are_taken_over_at_once(tmp_path: Path) -> None:
    """Long before the lease runs out: the survivor is told by the kernel that its peer has died."""
    files = tmp_path / "files"
    files.mkdir()
    os.environ["KILLED_APP_FILES"] = str(files)
    with Engine.open(tmp_path / "state", flows=[flow]) as engine:
        with worker(tmp_path / "state", files) as victim:
            engine.queue("narrow", limit=1)
            engine.submit_many([engine.prepare(flow, Request(n)) for n in range(40)])
            with engine.worker(concurrency=4, lease=600.0):
                while not engine.store.under_way():
                    time.sleep(0.001)
                started = time.monotonic()
                victim.send_signal(signal.SIGKILL)
                while unfinished(engine) and time.monotonic() - started < 60:
                    time.sleep(0.01)
                took = time.monotonic() - started
        states = {job.state for job in engine.store.jobs(limit=100)}

    assert states == {JobState.SUCCEEDED}
    assert took < 60
