"""oban for Python: jobs in PostgreSQL, run on an event loop."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import protocol
import uvloop
from oban import Oban
from oban import worker as oban_worker
from oban.schema import install

LIMIT = 256
countdown = protocol.Countdown(0)


@oban_worker(queue="default")
class Noop:
    async def process(self, job: Any) -> None:
        countdown.one_done()


async def drain(options: argparse.Namespace) -> dict[str, Any]:
    global countdown
    countdown = protocol.Countdown(options.jobs)
    pool = await Oban.create_pool(options.place, min_size=4, max_size=20)
    await install(pool)
    filling = Oban(pool=pool, leadership=False)
    for first in range(0, options.jobs, 1000):
        await filling.enqueue_many([Noop.new({"n": n}) for n in range(first, min(options.jobs, first + 1000))])
    began = time.perf_counter()
    async with Oban(pool=pool, queues={"default": LIMIT}):
        await countdown.wait_async()
        async with pool.connection() as looking:
            unfinished = "SELECT count(*) FROM oban_jobs WHERE state <> 'completed'"
            while (await (await looking.execute(unfinished)).fetchone())[0]:
                await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
    await pool.close()
    return {"seconds": seconds}


async def worker(options: argparse.Namespace) -> None:
    pool = await Oban.create_pool(options.place)
    await install(pool)
    async with Oban(pool=pool, queues={"default": 10}):
        protocol.say("ready")
        await asyncio.sleep(3600)


if __name__ == "__main__":
    protocol.main(drain=lambda options: uvloop.run(drain(options)), worker=lambda options: uvloop.run(worker(options)))
