"""Fleets of real worker processes on one PostgreSQL store, and what must be true after any fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from holdfast import Engine, JobState
from holdfast.guard import check
from tests.integration.fleet_app import Work, fleet_flow
from tests.support.backends import PostgresBackend

ROOT = Path(__file__).parents[2]
WORKER = """
import logging, sys, threading, time
logging.basicConfig(level=logging.WARNING)
place, lease, interval, concurrency, clock_error = sys.argv[1], *map(float, sys.argv[2:6])
if clock_error:
    # A host whose clock is wrong: everything that asks the host for the time of day gets it.
    right, right_ns = time.time, time.time_ns
    time.time = lambda: right() + clock_error
    time.time_ns = lambda: right_ns() + int(clock_error * 1e9)
from holdfast import Engine
from tests.integration.fleet_app import fleet_flow
with Engine.open(place, flows=[fleet_flow]) as engine:
    with engine.worker(concurrency=int(concurrency), lease=lease, recovery_interval=interval) as worker:
        print("ready", worker.worker_id, flush=True)
        while worker.failure is None:
            threading.Event().wait(0.1)
"""
EFFECTS = "CREATE TABLE effects (number BIGINT NOT NULL, exec_id TEXT NOT NULL)"


class WorkerProcess:
    """One worker in a process of its own."""

    def __init__(
        self,
        place: str,
        *,
        lease: float = 5.0,
        recovery_interval: float = 0.5,
        concurrency: int = 8,
        clock_error: float = 0.0,
    ) -> None:
        arguments = [place, *map(str, (lease, recovery_interval, concurrency, clock_error))]
        self._errors = open(os.devnull, "wb") if not os.environ.get("FLEET_TALKS") else None  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *arguments],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.worker_id = ""

    def wait_until_ready(self) -> None:
        """Until it claims jobs."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line[:1] == ["ready"], "the worker did not start"
        self.worker_id = line[1]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        if self._errors is not None:
            self._errors.close()


@contextmanager
def fleet(
    places: Sequence[str], *, clock_errors: Sequence[float] = (), **settings: float
) -> Iterator[list[WorkerProcess]]:
    """One worker process for each place, all ready."""
    with ExitStack() as stack:
        workers = []
        for index, place in enumerate(places):
            error = clock_errors[index] if clock_errors else 0.0
            worker = WorkerProcess(place, clock_error=error, **settings)  # type: ignore[arg-type]
            stack.callback(worker.close)
            workers.append(worker)
        for worker in workers:
            worker.wait_until_ready()
        yield workers


@contextmanager
def engine_on(backend: PostgresBackend) -> Iterator[Engine]:
    """The test's own way to the store, with the table of effects made."""
    backend.execute(EFFECTS)
    with Engine.open(backend.place, flows=[fleet_flow]) as engine:
        yield engine


def submit(engine: Engine, numbers: range, *, seconds: float = 0.0, log: str = "", together: int = 0) -> list[str]:
    return engine.submit_many([engine.prepare(fleet_flow, Work(n, seconds, log, together)) for n in numbers])


def unfinished(engine: Engine) -> int:
    return sum(n for (_, state), n in engine.store.counts().items() if state in ("pending", "running"))


def wait_until_done(engine: Engine, seconds: float = 60.0) -> float:
    """Until no job is unfinished; how long that took."""
    began = time.monotonic()
    while unfinished(engine):
        assert time.monotonic() - began < seconds, f"unfinished after {seconds} s: {engine.store.counts()}"
        time.sleep(0.02)
    return time.monotonic() - began


def assert_all_done_once(engine: Engine, backend: PostgresBackend, count: int) -> None:
    """Nothing lost, nothing doubled, and every invariant kept."""
    jobs = engine.store.jobs(limit=count + 100)
    effects = sorted(number for number, _ in backend.query("SELECT number, exec_id FROM effects"))
    commits = [sum(e.status in ("committed", "done") for e in engine.store.executions(job.job_id)) for job in jobs]
    findings = [finding for finding in check(engine.store, deep=True) if finding.severity == "error"]

    others = [job.job_id for job in jobs if job.state is not JobState.SUCCEEDED]
    reasons = [execution.error for job_id in others for execution in engine.store.executions(job_id)]
    assert not others, f"{len(others)} jobs have not succeeded: {reasons}"
    assert effects == list(range(count))
    assert commits == [1] * count
    assert not findings
