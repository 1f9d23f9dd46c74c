"""Does a job cost more when the database holds a million finished ones?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.filling import fill
from measuring.workers import Drained, drain

from holdfast import Engine
from holdfast.core.facts import Finding
from holdfast.core.invariants import check_job

FEW = 1000


def history(settings: Settings) -> Iterator[Figure]:
    """The same flows in turn on a database with few finished jobs and on one with many."""
    many = settings.pick(100_000, 1_000_000)
    flows_each = settings.pick(500, 2000)
    with ExitStack() as stack:
        few_engine = stack.enter_context(_filled(stack, settings, FEW))
        _refuse_findings(few_engine)
        began = time.perf_counter()
        many_engine = stack.enter_context(_filled(stack, settings, many))
        filled_in = time.perf_counter() - began
        size = Path(many_engine.store.url.removeprefix("sqlite:///")).stat().st_size / 1e9
        runs: list[tuple[Drained, Drained]] = []
        for _ in range(settings.repeat + 1):
            pair = [drain(engine, flows.five_steps, flows_each, 128) for engine in (few_engine, many_engine)]
            runs.append((pair[0], pair[1]))
        del runs[0]  # the first warms the caches
        for label, cost in (("time", _time_each), ("CPU", _cpu_each)):
            few = [cost(run) for run, _ in runs]
            yield figure("history", f"{label} per flow at {FEW:,} finished jobs", few, "us")
            values = [cost(run) for _, run in runs]
            ratios = [value / other for value, other in zip(values, few, strict=True)]
            name = f"{label} per flow at {many:,}"
            note = f"{size:.1f} GB, filled in {filled_in:.0f} s" if label == "time" else ""
            yield figure("history", name, values, "us", ratios=ratios, ratio_to=f"at {FEW:,}", at_most=1.2, note=note)
        yield _single_submits(few_engine, many_engine, many, settings)


def _single_submits(few: Engine, many: Engine, finished: int, settings: Settings) -> Figure:
    values, ratios = [], []
    for _ in range(settings.repeat):
        costs = []
        for engine in (few, many):
            began = time.perf_counter()
            for number in range(200):
                engine.submit(flows.commit_only, flows.Work(number))
            costs.append((time.perf_counter() - began) / 200 * 1e6)
        values.append(costs[1])
        ratios.append(costs[1] / costs[0])
    name = f"one submit at {finished:,}"
    return figure("history", name, values, "us", ratios=ratios, ratio_to=f"at {FEW:,}", at_most=1.2)


def _time_each(run: Drained) -> float:
    return run.seconds / run.jobs * 1e6


def _cpu_each(run: Drained) -> float:
    return run.cpu_seconds / run.jobs * 1e6


def _filled(stack: ExitStack, settings: Settings, jobs: int) -> Engine:
    folder = stack.enter_context(tempfile.TemporaryDirectory(dir=settings.directory))
    Engine.open(folder, flows=flows.ALL).close()
    fill(Path(folder) / "holdfast.db", jobs)
    return Engine.open(folder, flows=flows.ALL)


def _refuse_findings(engine: Engine) -> None:
    """Rows that the engine would not have left prove nothing about it."""
    found: list[Finding] = list(engine.store.integrity(deep=True))
    for one in engine.store.facts():
        found += [one] if isinstance(one, Finding) else check_job(one, engine.store.now())
    if found:
        raise SystemExit(f"error: the filled database is not what the engine leaves: {found[:3]}")
