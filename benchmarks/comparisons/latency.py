"""How long from the call of submit to the first line of the step's code, when the worker has nothing to do?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from measuring.contestants import STAMPS, Contestant, Ground, Program, Values
from measuring.figures import Figure, Settings, figure, percentile

from comparisons import field

AIMS = {"in process": {0.5: 2.0, 0.99: 10.0}, "another process": {0.5: 10.0, 0.99: 50.0}}
"""Milliseconds."""
PEERS = (field.DBOS_WAL, field.HUEY, field.PROCRASTINATE)


def start(settings: Settings, ground: Ground) -> Iterator[Figure]:
    """In the process of the worker, and from another one."""
    for where, aims in AIMS.items():
        values = {share: Values() for share in aims}
        for _ in range(min(3, settings.repeat)):
            for one in ground.taking_part(field.OURS, field.OURS_ON_POSTGRES, *PEERS):
                latencies = _latencies(settings, ground, one, where)
                for share in aims if latencies else ():
                    values[share].add(one, percentile(latencies, share) * 1000)
        for share, aim in aims.items():
            yield from _rows(f"submit to first line, {where}, p{share * 100:.0f}", values[share], aim)


def _latencies(settings: Settings, ground: Ground, one: Contestant, where: str) -> list[float]:
    with ExitStack() as stack:
        place = stack.enter_context(ground.turn_of(one))
        stamps = {STAMPS: str(stack.enter_context(ground.stamps()))}
        if where != "in process":
            worker = stack.enter_context(Program(one, "worker", place, **stamps))
            worker.wait_for("ready")
        measure = "here" if where == "in process" else "client"
        jobs = str(settings.pick(40, 100))
        with Program(one, measure, place, "--jobs", jobs, **stamps) as run:
            answer: list[float] = run.answer()
            return answer
    return []


def _rows(question: str, values: Values, aim: float) -> Iterator[Figure]:
    ours = values[field.OURS.title]
    limit = [aim] * len(ours)
    yield figure(question, "on SQLite", ours, "ms", besides=limit, ratio_to="the aim", at_most=1.0)
    on_postgres = values.get(field.OURS_ON_POSTGRES.title, [])
    if on_postgres:
        yield figure(question, "on PostgreSQL", on_postgres, "ms")
    for one, its in values.beside(field.OURS, PEERS):
        yield figure(question, f"beside {one.title}", ours, "ms", besides=its, ratio_to=one.title)
