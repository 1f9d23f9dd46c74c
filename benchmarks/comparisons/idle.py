"""What does a worker process of each cost when there is nothing to do?"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from measuring.contestants import STAMPS, Contestant, Ground, Program, Values
from measuring.figures import Figure, Settings, figure
from questions.idle import cpu_seconds

from comparisons import field

OURS = (field.OURS, field.OURS_ON_POSTGRES)
PEERS = (
    field.DBOS_WAL,
    field.DBOS_ON_POSTGRES,
    field.HUEY,
    field.ABSURD,
    field.PROCRASTINATE,
    field.PGQUEUER,
    field.OBAN,
)
QUESTION = "CPU of an idle worker"
AIM = 0.2


def idle(settings: Settings, ground: Ground) -> Iterator[Figure]:
    """All at the same time, each with its defaults; the server's own processes are not counted."""
    seconds = float(settings.pick(4, 10))
    shares = Values()
    for _ in range(min(3, settings.repeat)):
        ones = ground.taking_part(*OURS, *PEERS)
        with ThreadPoolExecutor(len(ones)) as pool:
            measured = list(pool.map(lambda one: _share(ground, one, seconds), ones))
        for one, share in zip(ones, measured, strict=True):
            if share is not None:
                shares.add(one, share)
    unit = "% of a core"
    for one in OURS:
        ours = shares[one.title]
        limit = [AIM] * len(ours)
        yield figure(QUESTION, one.title, ours, unit, besides=limit, ratio_to="the aim", at_most=1.0)
    ours = shares[field.OURS.title]
    for one, its in shares.beside(field.OURS, PEERS):
        yield figure(QUESTION, f"beside {one.title}", ours, unit, besides=its, ratio_to=one.title)


def _share(ground: Ground, one: Contestant, seconds: float) -> float | None:
    with (
        ground.turn_of(one) as place,
        ground.stamps() as stamps,
        Program(one, "worker", place, **{STAMPS: str(stamps)}) as worker,
    ):
        worker.wait_for("ready")
        time.sleep(3.0)
        before = cpu_seconds(worker.pid)
        time.sleep(seconds)
        return (cpu_seconds(worker.pid) - before) / seconds * 100
    return None
