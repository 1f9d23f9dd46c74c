"""pgqueuer: jobs in PostgreSQL, fetched in batches, woken by LISTEN/NOTIFY."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import asyncpg
import protocol
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

BATCH = 300


async def drain(options: argparse.Namespace) -> dict[str, Any]:
    connection = await asyncpg.connect(options.place)
    queuer = PgQueuer(AsyncpgDriver(connection))
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    for first in range(0, options.jobs, 1000):
        size = min(1000, options.jobs - first)
        await queries.enqueue(["noop"] * size, [None] * size, [0] * size)
    began = time.perf_counter()
    # It ends when the queue is empty and the last job is recorded as successful.
    await queuer.qm.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    seconds = time.perf_counter() - began
    looking = await asyncpg.connect(options.place)
    left = await looking.fetchval("SELECT count(*) FROM pgqueuer")
    if left:
        raise SystemExit(f"error: {left} jobs are left")
    return {"seconds": seconds}


async def worker(options: argparse.Namespace) -> None:
    connection = await asyncpg.connect(options.place)
    queuer = PgQueuer(AsyncpgDriver(connection))
    await Queries(AsyncpgDriver(connection)).install()

    @queuer.entrypoint("noop")
    async def noop(job: Job) -> None:
        pass

    protocol.say("ready")
    await queuer.run()


if __name__ == "__main__":
    protocol.main(drain=lambda options: uvloop.run(drain(options)), worker=lambda options: uvloop.run(worker(options)))
