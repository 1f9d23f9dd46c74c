"""A thousand flows are under way when their worker is killed: how long until all are done, is any lost or doubled?"""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from measuring import flows
from measuring.figures import Figure, Settings, figure
from measuring.raw import raw_seconds
from measuring.workers import WorkerProcess, drain, new_engine, submit, wait_until, wait_until_settled

from holdfast import Engine

FLOWS = 1000


def recovery(settings: Settings) -> Iterator[Figure]:
    """Killed with a quarter of the flows in each of the first four steps."""
    totals, ratios, ready, fresh_ratios, faults = [], [], [], [], 0
    for _ in range(settings.repeat):
        with tempfile.TemporaryDirectory(dir=settings.directory) as folder:
            run = kill_and_recover(settings, Path(folder))
        totals.append(run.seconds)
        ready.append(run.until_ready)
        ratios.append(run.seconds / run.limit)
        faults += run.faults
        fresh_ratios.append((run.seconds - run.until_ready) / _fresh(settings))
    name = f"{FLOWS:,} flows, restart to all done"
    yield figure("recovery", name, totals, "s", ratios=ratios, ratio_to="raw, same groups")
    yield figure("recovery", "of it, restart to first claim", ready, "s")
    name = "the rest, beside as many fresh flows"
    yield figure(
        "recovery",
        name,
        [t - r for t, r in zip(totals, ready, strict=True)],
        "s",
        ratios=fresh_ratios,
        ratio_to="fresh flows",
    )
    yield figure(
        "recovery", "lost, doubled or repeated", [faults], "flows", ratios=[faults], ratio_to="none", at_most=0
    )


class Recovered(msgspec.Struct, frozen=True):
    """Seconds from the restart to the last success and the first claim, seconds of the raw limit, flows with faults."""

    seconds: float
    until_ready: float
    limit: float
    faults: int


def kill_and_recover(settings: Settings, folder: Path) -> Recovered:
    """Hold the flows in their steps, kill their process, start another."""
    stamps = folder / "stamps"
    with Engine.open(folder, flows=flows.ALL) as engine, closing(sqlite3.connect(folder / "holdfast.db")) as reader:
        make_effects(reader)
        submit(engine, flows.five_async_steps, FLOWS)
        worker = WorkerProcess(folder, concurrency=FLOWS, **{flows.STAMP_FILE: str(stamps), flows.HOLD: "1"})
        # One flow in four finishes 0, 1, 2 and 3 steps before the one it stays in.
        finished = FLOWS // 4 * (0 + 1 + 2 + 3)
        wait_until(lambda: reader.execute("SELECT count(*) FROM steps").fetchone()[0] == finished, pause=0.02)
        wait_until(lambda: len(stamps.read_text().splitlines()) == finished + FLOWS, pause=0.02)
        worker.kill()
        began = time.perf_counter()
        worker = WorkerProcess(folder, concurrency=128, **{flows.STAMP_FILE: str(stamps)})
        until_ready = worker.wait_until_ready()
        wait_until_settled(engine)
        total = time.perf_counter() - began
        done = worker.stop()
        limit = raw_seconds(settings.directory, done.writes, done.group)
        return Recovered(total, until_ready, limit, _faults(reader, stamps, engine))


def _faults(reader: sqlite3.Connection, stamps: Path, engine: Engine) -> int:
    effects = Counter(number for (number,) in reader.execute("SELECT number FROM bench_effects"))
    wrong = {number for number in range(FLOWS) if effects[number] != 1}
    entered = Counter(stamps.read_text().splitlines())
    for number in range(FLOWS):
        # Only the step that was killed runs a second time.
        expected = {step: 2 if step == "abcd"[number % 4] else 1 for step in "abcd"}
        if any(entered[f"{number} {step}"] != times for step, times in expected.items()):
            wrong.add(number)
    succeeded = engine.store.counts().get((flows.five_async_steps.name, "succeeded"), 0)
    return max(len(wrong), FLOWS - succeeded)


def _fresh(settings: Settings) -> float:
    with tempfile.NamedTemporaryFile(dir=settings.directory) as stamps, new_engine(settings.directory) as engine:
        os.environ[flows.STAMP_FILE] = stamps.name
        path = engine.store.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path)) as connection:
            make_effects(connection)
        return drain(engine, flows.five_async_steps, FLOWS, 128).seconds


def make_effects(connection: sqlite3.Connection) -> None:
    """The table that the commit step writes to; without a key, so that a double shows."""
    with connection:
        connection.execute("CREATE TABLE bench_effects (number INTEGER NOT NULL)")
