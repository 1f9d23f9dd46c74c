"""Absurd: tasks and steps, all of their logic in functions of PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import protocol
import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

WORKERS = 4
"""A worker of Absurd has one connection, on which its tasks take turns: several of them in the process do more."""
CONCURRENCY = 8
QUEUE = "bench"
countdown = protocol.Countdown(0)


async def nothing() -> None:
    pass


async def five(params: Any, context: Any) -> None:
    for name in "abcde":
        await context.step(name, nothing)
    countdown.one_done()


async def noop(params: Any, context: Any) -> None:
    countdown.one_done()


async def install(place: str) -> None:
    """As `absurdctl init` and `absurdctl create-queue` do."""
    async with await psycopg.AsyncConnection.connect(place) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
    app = app_on(place)
    await app.create_queue()
    await app.close()


def app_on(place: str) -> AsyncAbsurd:
    app = AsyncAbsurd(place, queue_name=QUEUE)
    app.register_task("five")(five)
    app.register_task("noop")(noop)
    return app


async def drain(options: argparse.Namespace) -> dict[str, Any]:
    global countdown
    countdown = protocol.Countdown(options.jobs)
    await install(options.place)
    app = app_on(options.place)
    for number in range(options.jobs):
        await app.spawn(options.flow, {"number": number})
    began = time.perf_counter()
    apps = [app_on(options.place) for _ in range(WORKERS)]
    running = [
        asyncio.create_task(one.start_worker(worker_id=str(number), concurrency=CONCURRENCY))
        for number, one in enumerate(apps)
    ]
    await countdown.wait_async()
    unfinished = f"SELECT count(*) FROM absurd.t_{QUEUE} WHERE state <> 'completed'"
    async with await psycopg.AsyncConnection.connect(options.place, autocommit=True) as looking:
        while (await (await looking.execute(unfinished.encode())).fetchone()) != (0,):
            await asyncio.sleep(0.005)
    seconds = time.perf_counter() - began
    for one in apps:
        one.stop_worker()
    await asyncio.gather(*running)
    for one in apps:
        await one.close()
    return {"seconds": seconds}


async def worker(options: argparse.Namespace) -> None:
    await install(options.place)
    app = app_on(options.place)
    protocol.say("ready")
    await app.start_worker()


if __name__ == "__main__":
    protocol.main(
        drain=lambda options: asyncio.run(drain(options)), worker=lambda options: asyncio.run(worker(options))
    )
