"""Workers to be measured: one in this process, or some in processes of their own.

As a program (`python -m measuring.workers DIR CONCURRENCY`) it is such a process: it says `ready`, works until it is
told to stop, and then says in one line of JSON what it has done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast import Engine, Flow
from holdfast.worker.telemetry import Telemetry
from measuring import flows

PATIENCE = 600.0


class Drained(msgspec.Struct, frozen=True):
    """What it took to run the jobs to their end."""

    jobs: int
    seconds: float
    cpu_seconds: float
    writes: int
    group_commits: int

    @property
    def group(self) -> float:
        """How many writes shared one commit, on average."""
        return self.writes / max(1, self.group_commits)


@contextmanager
def new_engine(directory: str) -> Iterator[Engine]:
    """An engine on a database of its own, removed at the end."""
    with tempfile.TemporaryDirectory(dir=directory) as folder, Engine.open(folder, flows=flows.ALL) as engine:
        yield engine


def submit(engine: Engine, flow: Flow[Any, Any], jobs: int) -> None:
    """Have that many jobs waiting."""
    for first in range(0, jobs, 1000):
        numbers = range(first, min(jobs, first + 1000))
        engine.submit_many([engine.prepare(flow, flows.Work(number)) for number in numbers])


def drain(engine: Engine, flow: Flow[Any, Any], jobs: int, concurrency: int) -> Drained:
    """Submit, then run all to their end by a worker in this process; from its start to the last success."""
    submit(engine, flow, jobs)
    telemetry = Telemetry()
    began, cpu_began = time.perf_counter(), time.process_time()
    with engine.worker(telemetry=telemetry, concurrency=concurrency):
        wait_until(lambda: telemetry.transitions[flow.name, "running", "succeeded"] >= jobs)
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    return Drained(jobs, seconds, cpu_seconds, telemetry.writes, telemetry.group_commits)


def wait_until(condition: Any, pause: float = 0.002) -> None:
    """Look often enough to be exact, seldom enough not to be in the way."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: nothing came of it in {PATIENCE:.0f} s")
        time.sleep(pause)


def wait_until_settled(engine: Engine) -> None:
    """Until no job is unfinished; answered from an index that finished jobs are not in."""
    reader = engine.store._database.reader()  # type: ignore[attr-defined]  # noqa: SLF001
    statement = "SELECT EXISTS (SELECT 1 FROM jobs WHERE state <> 'succeeded' AND state IN ('pending', 'running'))"
    wait_until(lambda: not reader.execute(statement).fetchone()[0], pause=0.005)


class WorkerProcess:
    """A worker in a process of its own."""

    def __init__(self, state: str | Path, *, concurrency: int = 32, **variables: str) -> None:
        here = Path(__file__).resolve().parent.parent
        library = Path(holdfast.__file__).resolve().parent.parent
        paths = [str(here), str(library), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "measuring.workers", str(state), str(concurrency)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait_until_ready(self) -> float:
        """Until it has recovered what was there and begun to claim; seconds since its start."""
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit("error: the worker process did not start")
        return time.perf_counter() - self.began

    def stop(self) -> Drained:
        """Stop it cleanly; what it has done."""
        self.process.send_signal(signal.SIGTERM)
        output, _ = self.process.communicate(timeout=60)
        return msgspec.json.decode(output.strip().splitlines()[-1], type=Drained)

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        self.process.kill()
        self.process.communicate(timeout=60)


def main(state: str, concurrency: int) -> None:
    """A worker process."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    telemetry = Telemetry()
    began = time.perf_counter()
    with closing(Engine.open(state, flows=flows.ALL)) as engine:
        with engine.worker(telemetry=telemetry, concurrency=concurrency):
            print("ready", flush=True)
            stopped.wait()
        done = sum(count for (_, _, to), count in telemetry.transitions.items() if to == "succeeded")
        seconds = time.perf_counter() - began
        drained = Drained(done, seconds, time.process_time(), telemetry.writes, telemetry.group_commits)
        print(msgspec.json.encode(drained).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
