"""procrastinate: jobs in PostgreSQL, woken by LISTEN/NOTIFY. Five steps are a chain: each job defers the next."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import protocol
from procrastinate import App, Blueprint, PsycopgConnector

CONCURRENCY = 8
tasks = Blueprint()
countdown = protocol.Countdown(0)


@tasks.task
async def noop(number: int) -> None:
    countdown.one_done()


@tasks.task
async def five(number: int, step: int = 0) -> None:
    if step < 4:
        await five.defer_async(number=number, step=step + 1)
    else:
        countdown.one_done()


@tasks.task
async def stamped(number: int) -> None:
    protocol.stamp(number)


FLOWS = {"five": five, "noop": noop}


@asynccontextmanager
async def app_on(place: str) -> AsyncIterator[App]:
    connector = PsycopgConnector(conninfo=place, min_size=4, max_size=CONCURRENCY + 2)
    app = App(connector=connector)
    app.add_tasks_from(tasks, namespace="bench")
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        yield app


async def run_worker(app: App, concurrency: int) -> None:
    await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False, delete_jobs="never")


async def drain(options: argparse.Namespace) -> dict[str, Any]:
    global countdown
    countdown = protocol.Countdown(options.jobs)
    async with app_on(options.place) as app:
        await FLOWS[options.flow].batch_defer_async(*[{"number": number} for number in range(options.jobs)])
        began = time.perf_counter()
        running = asyncio.create_task(run_worker(app, CONCURRENCY))
        await countdown.wait_async()
        unfinished = "SELECT count(*) AS count FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        while (await app.connector.execute_query_one_async(unfinished))["count"]:
            await asyncio.sleep(0.005)
        seconds = time.perf_counter() - began
        running.cancel()
        await asyncio.wait([running])
    return {"seconds": seconds}


async def worker(options: argparse.Namespace) -> None:
    async with app_on(options.place) as app:
        running = asyncio.create_task(run_worker(app, 1))
        await asyncio.sleep(1.0)
        await asyncio.to_thread(protocol.say, "ready")
        await running


async def client(options: argparse.Namespace) -> list[float]:
    async with app_on(options.place):
        return await protocol.submit_one_by_one_async(lambda number: stamped.defer_async(number=number), options.jobs)


async def here(options: argparse.Namespace) -> list[float]:
    async with app_on(options.place) as app:
        running = asyncio.create_task(run_worker(app, 1))
        await asyncio.sleep(1.0)
        answer = await protocol.submit_one_by_one_async(lambda number: stamped.defer_async(number=number), options.jobs)
        running.cancel()
        await asyncio.wait([running])
    return answer


if __name__ == "__main__":
    protocol.main(
        drain=lambda options: asyncio.run(drain(options)),
        worker=lambda options: asyncio.run(worker(options)),
        client=lambda options: asyncio.run(client(options)),
        here=lambda options: asyncio.run(here(options)),
    )
