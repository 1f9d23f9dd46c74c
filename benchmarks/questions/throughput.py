"""How many jobs, flows and steps per second does one worker drain, and what part of the raw limit is that?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.raw import raw_seconds
from measuring.workers import Drained, drain, new_engine

from holdfast import Flow

RAW = "raw, same groups"


def noop(settings: Settings) -> Iterator[Figure]:
    """Jobs that do nothing: one plain step, and a commit step alone."""
    jobs = settings.pick(600, 4000)
    for flow in (flows.one_step, flows.commit_only):
        for concurrency in (32, 128):
            name = f"{flow.name} jobs, {concurrency} at once"
            yield from _rates("noop", name, flow, jobs, concurrency, settings, at_least=0.25)


def five(settings: Settings) -> Iterator[Figure]:
    """Flows of five steps, at several concurrencies."""
    for concurrency in settings_of_concurrency(settings):
        jobs = {1: settings.pick(50, 400), 8: settings.pick(300, 1500)}.get(concurrency, settings.pick(1000, 4000))
        aim = 0.25 if concurrency > 8 else None
        yield from _rates(
            "five",
            f"five-step flows, {concurrency} at once",
            flows.five_steps,
            jobs,
            concurrency,
            settings,
            at_least=aim,
        )


def settings_of_concurrency(settings: Settings) -> tuple[int, ...]:
    """The concurrencies to measure."""
    return (1, 32, 128) if settings.quick else (1, 8, 32, 128, 512)


def _rates(
    question: str,
    name: str,
    flow: Flow[Any, Any],
    jobs: int,
    concurrency: int,
    settings: Settings,
    *,
    at_least: float | None,
) -> Iterator[Figure]:
    runs: list[Drained] = []
    ratios: list[float] = []
    for _ in range(settings.repeat):
        with new_engine(settings.directory) as engine:
            run = drain(engine, flow, jobs, concurrency)
        # Right after the run, with the groups of the run: a disk's mood changes from minute to minute.
        limit = raw_seconds(settings.directory, run.writes, run.group)
        runs.append(run)
        ratios.append(limit / run.seconds)
    group = sum(run.writes for run in runs) / sum(run.group_commits for run in runs)
    rates = [run.jobs / run.seconds for run in runs]
    unit = "flows/s" if len(flow.steps) > 1 else "jobs/s"
    note = f"{runs[0].writes / jobs:.1f} writes each, {group:.1f} per commit"
    yield figure(question, name, rates, unit, ratios=ratios, ratio_to=RAW, at_least=at_least, note=note)
    if len(flow.steps) > 1:
        steps = [rate * len(flow.steps) for rate in rates]
        yield figure(question, f"steps, {concurrency} at once", steps, "steps/s")
    cpu = [run.cpu_seconds / run.jobs * 1e6 for run in runs]
    yield figure(question, f"CPU each, {concurrency} at once", cpu, "us")
