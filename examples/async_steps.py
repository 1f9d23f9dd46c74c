"""Steps that are `async def`: many jobs wait at the same time on one event loop, each with its own timeout.

python examples/async_steps.py [DIRECTORY]

With a directory, what it does stays there, and a second run finds the pages stored.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, nullcontext
from pathlib import Path

import msgspec

from holdfast import Engine, Flow, Run, Transaction, fixed, seconds

JOBS = 50
LATENCY = 0.2


class Page(msgspec.Struct):
    """What to fetch; `slow` answers too late the first time."""

    number: int
    slow: bool = False


class Sizes(msgspec.Struct):
    """The sizes of the parts of a page."""

    parts: list[int] = []


async def fetch_part(page: int, part: int) -> int:
    """Stands for a request over the network."""
    await asyncio.sleep(LATENCY)
    return page * 10 + part


async def fetch(run: Run[Page, Sizes]) -> Sizes:
    """An await is where a timeout, a cancellation or the end of the worker reaches the step: no need to ask."""
    if run.request.slow and run.tries == 1:
        await asyncio.sleep(60)
    parts = await asyncio.gather(*(fetch_part(run.request.number, part) for part in range(3)))
    return Sizes(parts=list(parts))


def store(run: Run[Page, Sizes], tx: Transaction) -> None:
    """A commit step is a plain function: it runs while the database is locked for it, and must be quick."""
    tx.execute("CREATE TABLE IF NOT EXISTS pages (number INTEGER PRIMARY KEY, size INTEGER)")
    tx.execute("INSERT INTO pages VALUES (?, ?)", (run.request.number, sum(run.response.parts)))


flow = (
    # A page is stored once. Its number is a primary key: a second job for it could only fail.
    Flow("fetch-page", request=Page, response=Sizes, unique="forever")
    .start("fetch", fetch, retry=fixed(2, delay=0.05), timeout=seconds(1))
    .commit("store", store)
)


def main() -> None:
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    lasting = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory(prefix="holdfast-async-")
    with lasting as name:
        state = Path(name) / "state"
        with Engine.open(state, flows=[flow]) as engine, engine.worker(concurrency=JOBS):
            began = time.monotonic()
            pages = [engine.prepare(flow, Page(number), key=f"page-{number}") for number in range(JOBS)]
            jobs = engine.submit_many(pages)
            for job_id in jobs:
                engine.result(flow, job_id, timeout=30)
            took = time.monotonic() - began
            print(f"{JOBS} jobs of 3 waits of {LATENCY} s took less than {JOBS * 3 * LATENCY / 10:.0f} s: ", end="")
            print(took < JOBS * 3 * LATENCY / 10)

            late = engine.submit(flow, Page(99, slow=True), key="page-99")
            engine.result(flow, late, timeout=30)
            print(f"a step that was too late succeeded at try {engine.store.steps(late)[0].tries}")
        with closing(sqlite3.connect(state / "holdfast.db")) as database:
            [(rows,)] = database.execute("SELECT count(*) FROM pages")
            print(f"rows: {rows}")


if __name__ == "__main__":
    main()
