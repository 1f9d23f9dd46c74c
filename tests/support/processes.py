"""Other processes that work on the same database, for tests in which a thread would be too polite."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from holdfast import Engine
from holdfast.store.open import open_store
from tests.support.bench import FLOWS, LEASE_MS, Bench, SettableClock, commit, effect_of, finish, finish_step
from tests.support.flows import Answer, Ask, AskFlow, AskRun, flow_of
from tests.support.waiting import PATIENCE

_context = multiprocessing.get_context("spawn")


def start(target: Callable[..., Any], *arguments: Any) -> BaseProcess:
    """A process of its own, started afresh and not forked."""
    process = _context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def join_all(processes: list[BaseProcess]) -> list[int | None]:
    """Their exit codes, when all have ended."""
    for process in processes:
        process.join(PATIENCE * 4)
    return [process.exitcode for process in processes]


def kill(process: BaseProcess) -> None:
    """SIGKILL, and wait until it is gone."""
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)


# --- what other processes do ---------------------------------------------------------------------------------


def claim_and_commit(directory: str, name: str, total: int) -> None:
    """Claim, finish a step, commit and finish whatever there is, over the bare store, until all jobs have ended."""
    store = open_store(directory, synchronous="NORMAL")
    bench = Bench(store, SettableClock())
    deadline = time.monotonic() + PATIENCE * 3
    while time.monotonic() < deadline:
        claims = store.claim(worker_id=name, flows=FLOWS, limit=3, lease_ms=LEASE_MS)
        for claim in claims:
            bench.write(finish_step(claim), worker=name)
            bench.write(commit(claim, effect_of(claim), position=1), worker=name)
            bench.write(finish(claim), worker=name)
        if not claims and store.counts().get(("demo", "succeeded"), 0) == total:
            break
    store.close()


def submit_same_key(directory: str, key: str, answers: Any) -> None:
    """Submit a job under a key, all at the same moment as the others."""
    store = open_store(directory, synchronous="NORMAL")
    bench = Bench(store, SettableClock(time.time_ns() // 1_000_000))
    submitted = bench.submit_one(key=key)
    answers.put((submitted.job_id, submitted.created))
    store.close()


def logging_flow(directory: str, pause: float = 0.0) -> AskFlow:
    """Each execution of the step says in a log of its own when it began and ended."""
    log = Path(directory) / "log"

    def write(line: str) -> None:
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)

    def step(run: AskRun) -> Answer:
        write(f"begin {run.job.job_id} {run.exec_id} {time.monotonic_ns()}")
        time.sleep(pause)
        write(f"end {run.job.job_id} {run.exec_id} {time.monotonic_ns()}")
        return Answer(total=1)

    return flow_of(step, "logging", queue="q")


def run_worker(directory: str, pause: float, concurrency: int, lease: float) -> None:
    """A worker until it is killed, or until nothing is left to do."""
    flow = logging_flow(directory, pause)
    with (
        Engine.open(directory, flows=[flow]) as engine,
        engine.worker(concurrency=concurrency, lease=lease, recovery_interval=0.2),
    ):
        while any(state in ("pending", "running") for _, state in engine.store.counts()):
            time.sleep(0.05)


def submit_numbers(directory: str, first: int, count: int) -> None:
    """Submit requests with these numbers."""
    flow = logging_flow(directory)
    with Engine.open(directory, flows=[flow]) as engine:
        for number in range(first, first + count):
            engine.submit(flow, Ask("x", number))


def most_at_once(directory: Path) -> int:
    """How many steps were between their begin and their end at the same time, by the log."""
    events = []
    for line in (directory / "log").read_text().splitlines():
        kind, _, exec_id, at = line.split()
        events.append((int(at), kind, exec_id))
    events.sort()
    running: set[str] = set()
    most = 0
    for _, kind, exec_id in events:
        if kind == "begin":
            running.add(exec_id)
        else:
            running.discard(exec_id)
        most = max(most, len(running))
    return most
