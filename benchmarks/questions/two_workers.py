"""Do two worker processes on one database drain more than one?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.workers import Drained, WorkerProcess, new_engine, submit, wait_until_settled

from holdfast import Flow

QUEUE = "bench"


def two_workers(settings: Settings) -> Iterator[Figure]:
    """Empty steps, where the database is the limit, and steps that compute, where the cores are."""
    plan = ((flows.five_steps, settings.pick(800, 3000)), (flows.five_busy_steps, settings.pick(100, 800)))
    for flow, jobs in plan:
        one, two, ratios, one_cpu, two_cpu = [], [], [], [], []
        for _ in range(settings.repeat):
            seconds, done = _drain(settings, flow, jobs, 1)
            one.append(jobs / seconds)
            one_cpu.append(sum(each.cpu_seconds for each in done) / jobs * 1e6)
            seconds, done = _drain(settings, flow, jobs, 2)
            two.append(jobs / seconds)
            two_cpu.append(sum(each.cpu_seconds for each in done) / jobs * 1e6)
            ratios.append(two[-1] / one[-1])
        yield figure("two-workers", f"{flow.name}, one process", one, "flows/s", note=_cpu(one_cpu))
        name = f"{flow.name}, two processes"
        yield figure("two-workers", name, two, "flows/s", ratios=ratios, ratio_to="one process", note=_cpu(two_cpu))


def _cpu(values: list[float]) -> str:
    return f"{sorted(values)[len(values) // 2]:,.0f} us CPU each"


def _drain(settings: Settings, flow: Flow[Any, Any], jobs: int, processes: int) -> tuple[float, list[Drained]]:
    with new_engine(settings.directory) as engine:
        submit(engine, flow, jobs)
        # All processes are up and idle before the first claim: they start on one word.
        engine.store.pause_queue(QUEUE, actor="benchmark", reason="until all workers are there")
        state = Path(engine.store.url.removeprefix("sqlite:///")).parent
        workers = [WorkerProcess(state, concurrency=128) for _ in range(processes)]
        for worker in workers:
            worker.wait_until_ready()
        began = perf_counter()
        engine.store.resume_queue(QUEUE)
        wait_until_settled(engine)
        seconds = perf_counter() - began
        return seconds, [worker.stop() for worker in workers]
