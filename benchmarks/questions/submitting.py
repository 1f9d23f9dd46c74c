"""How fast can jobs be submitted: one at a time, each with its own fsync, and many in one transaction?"""

from __future__ import annotations

import time
from collections.abc import Iterator

from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.raw import raw_seconds
from measuring.workers import new_engine

MANY = 1000


def submit(settings: Settings) -> Iterator[Figure]:
    """Nobody works meanwhile."""
    singles = settings.pick(150, 1500)
    batches = settings.pick(4, 20)
    one, one_ratio, many, many_ratio, prepare = [], [], [], [], []
    for _ in range(settings.repeat):
        with new_engine(settings.directory) as engine:
            began = time.perf_counter()
            for number in range(singles):
                engine.submit(flows.five_steps, flows.Work(number))
            seconds = time.perf_counter() - began
            one.append(singles / seconds)
            one_ratio.append(raw_seconds(settings.directory, singles, 1) / seconds)
            began = time.perf_counter()
            spent = 0.0
            for _batch in range(batches):
                before = time.perf_counter()
                jobs = [engine.prepare(flows.five_steps, flows.Work(number)) for number in range(MANY)]
                spent += time.perf_counter() - before
                engine.submit_many(jobs)
            seconds = time.perf_counter() - began
            many.append(batches * MANY / seconds)
            many_ratio.append(raw_seconds(settings.directory, batches * MANY, MANY) / seconds)
            prepare.append(spent / seconds)
    raw = "raw, same groups"
    yield figure("submit", "one at a time", one, "jobs/s", ratios=one_ratio, ratio_to=raw)
    name = f"{MANY} in one transaction"
    yield figure("submit", name, many, "jobs/s", ratios=many_ratio, ratio_to=raw)
    yield figure("submit", "part of that spent in prepare()", prepare, "of 1")
