"""The contestants and their settings. docs/explanation/benchmarks.md says why each is set as it is."""

from __future__ import annotations

from measuring.contestants import Contestant

OURS = Contestant("holdfast", "Holdfast", "sqlite", five=3000, noop=4000)
OURS_ON_POSTGRES = Contestant("holdfast", "Holdfast", "postgres", five=1500, noop=3000)

_FEW_THREADS = (("HOLDFAST_BENCH_THREADS", "8"),)
_WAL = (*_FEW_THREADS, ("HOLDFAST_BENCH_WAL", "1"))
DBOS = Contestant("dbos", "DBOS", "sqlite", "as it comes", five=60, noop=300, variables=_FEW_THREADS)
DBOS_WAL = Contestant("dbos", "DBOS", "sqlite", "WAL", five=120, noop=500, variables=_WAL)
DBOS_ON_POSTGRES = Contestant("dbos", "DBOS", "postgres", five=120, noop=500)
ABSURD = Contestant("absurd", "Absurd", "postgres", five=250)
PROCRASTINATE = Contestant("procrastinate", "procrastinate", "postgres", five=200, noop=800)
HUEY = Contestant("huey", "huey", "sqlite", noop=4000)
PGQUEUER = Contestant("pgqueuer", "pgqueuer", "postgres", noop=10000)
OBAN = Contestant("oban", "oban", "postgres", noop=3000)

ALL = (
    OURS,
    OURS_ON_POSTGRES,
    DBOS,
    DBOS_WAL,
    DBOS_ON_POSTGRES,
    ABSURD,
    PROCRASTINATE,
    HUEY,
    PGQUEUER,
    OBAN,
)
