"""How long from the call of submit to the first line of the step's code, when the worker has nothing to do?"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measuring import flows
from measuring.figures import Figure, Settings, figure, percentile
from measuring.raw import raw_commit_seconds
from measuring.workers import WorkerProcess, new_engine, wait_until

from holdfast import Engine

PAUSE = 0.003
"""Between a job's end and the next submit, so that the worker is asleep again."""

COMMITS_BEFORE_START = 2
"""The job has to be durable, and then its lease: less than two commits is not possible."""


def start(settings: Settings) -> Iterator[Figure]:
    """In this process, and in another one."""
    yield from _report("in process", [_in_process(settings) for _ in range(settings.repeat)])
    yield from _report("across processes", [_across_processes(settings) for _ in range(settings.repeat)])


def _report(where: str, runs: list[tuple[list[float], float]]) -> Iterator[Figure]:
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        values = [percentile(latencies, share) * 1000 for latencies, _ in runs]
        floors = [floor * COMMITS_BEFORE_START * 1000 for _, floor in runs]
        ratios = [value / floor for value, floor in zip(values, floors, strict=True)]
        note = f"two raw commits: {statistics.median(floors):.2f} ms"
        yield figure("start", f"{where}, {label}", values, "ms", ratios=ratios, ratio_to="two raw commits", note=note)


def _in_process(settings: Settings) -> tuple[list[float], float]:
    with tempfile.NamedTemporaryFile(dir=settings.directory) as stamps, new_engine(settings.directory) as engine:
        os.environ[flows.STAMP_FILE] = stamps.name
        with engine.worker():
            latencies = _submit_one_by_one(engine, Path(stamps.name), settings.pick(100, 500))
        return latencies, raw_commit_seconds(settings.directory)


def _across_processes(settings: Settings) -> tuple[list[float], float]:
    with tempfile.NamedTemporaryFile(dir=settings.directory) as stamps, new_engine(settings.directory) as engine:
        worker = WorkerProcess(_state_of(engine), **{flows.STAMP_FILE: stamps.name})
        worker.wait_until_ready()
        try:
            latencies = _submit_one_by_one(engine, Path(stamps.name), settings.pick(100, 500))
        finally:
            worker.stop()
        return latencies, raw_commit_seconds(settings.directory)


def _submit_one_by_one(engine: Engine, stamps: Path, jobs: int) -> list[float]:
    warm_up = 10
    called = []
    for number in range(jobs + warm_up):
        called.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        job_id = engine.submit(flows.stamped, flows.Work(number))
        # Not by engine.wait(): a second listener would be woken by every change, too.
        wait_until(lambda job_id=job_id: engine.store.job(job_id).state == "succeeded", pause=0.001)
        time.sleep(PAUSE)
    lines = stamps.read_text().splitlines()
    began = {int(number): int(at) for number, at in (line.split() for line in lines)}
    return [(began[number] - called[number]) / 1e9 for number in range(warm_up, jobs + warm_up)]


def _state_of(engine: Engine) -> Path:
    return Path(engine.store.url.removeprefix("sqlite:///")).parent
