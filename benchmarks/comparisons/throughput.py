"""How many five-step flows, and how many jobs that do nothing, does one worker process of each drain per second?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from measuring.contestants import Contestant, Ground, Program, Values
from measuring.figures import Figure, Settings, figure

from comparisons import field


def five(settings: Settings, ground: Ground) -> Iterator[Figure]:
    """Five durable steps that do nothing."""
    on_postgres = (field.DBOS_ON_POSTGRES, field.ABSURD, field.PROCRASTINATE)
    ones = (field.OURS, field.OURS_ON_POSTGRES, field.DBOS, field.DBOS_WAL, *on_postgres)
    rates = _rates(settings, ground, "five", ones)
    beside_sqlite = dict.fromkeys((field.DBOS, field.DBOS_WAL, field.ABSURD, field.PROCRASTINATE), 20.0)
    yield from _rows("five-step flows, SQLite", rates, field.OURS, beside_sqlite, "flows/s")
    beside_postgres = dict.fromkeys(on_postgres, 10.0)
    yield from _rows("five-step flows, PostgreSQL", rates, field.OURS_ON_POSTGRES, beside_postgres, "flows/s")


def noop(settings: Settings, ground: Ground) -> Iterator[Figure]:
    """One step, or a job without steps where there is such a thing."""
    beside_sqlite = {field.DBOS: 10.0, field.DBOS_WAL: 10.0, field.HUEY: 2.0}
    beside_postgres = {field.PROCRASTINATE: 10.0, field.PGQUEUER: 1.0, field.OBAN: None}
    ones = (field.OURS, field.OURS_ON_POSTGRES, *beside_sqlite, *beside_postgres)
    rates = _rates(settings, ground, "noop", ones)
    yield from _rows("no-op jobs, SQLite", rates, field.OURS, beside_sqlite, "jobs/s")
    yield from _rows("no-op jobs, PostgreSQL", rates, field.OURS_ON_POSTGRES, beside_postgres, "jobs/s")


def _rates(settings: Settings, ground: Ground, flow: str, ones: tuple[Contestant, ...]) -> Values:
    rates = Values()
    for _ in range(settings.repeat):
        # In turn, round by round: what disturbs the machine disturbs all of them.
        for one in ground.taking_part(*ones):
            jobs = one.five if flow == "five" else one.noop
            jobs = settings.pick(jobs // 3, jobs)
            with ground.turn_of(one) as place, Program(one, "drain", place, "--flow", flow, "--jobs", str(jobs)) as run:
                rates.add(one, jobs / run.answer()["seconds"])
    return rates


def _rows(
    question: str, rates: Values, ours: Contestant, aims: Mapping[Contestant, float | None], unit: str
) -> Iterator[Figure]:
    for one, values in rates.beside(ours, list(aims)):
        name = f"beside {one.title}"
        yield figure(question, name, rates[ours.title], unit, besides=values, ratio_to=one.title, at_least=aims[one])
