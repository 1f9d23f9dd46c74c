"""DBOS Transact: workflows and steps as functions, checkpoints in SQLite or PostgreSQL."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import protocol
import sqlalchemy
from dbos import DBOS, DBOSClient, DBOSConfig

WAL = "HOLDFAST_BENCH_WAL"
"""Set: the write-ahead log is switched on (and synchronous=FULL), which DBOS does not do by itself."""
THREADS = "HOLDFAST_BENCH_THREADS"
"""Workflows that run at the same time: too many of them only keep each other from the one lock of SQLite."""
QUEUE = "bench"
POLL = 0.1
countdown = protocol.Countdown(0)


@DBOS.step()
def step() -> None:
    pass


@DBOS.workflow()
def five(number: int) -> None:
    for _ in range(5):
        step()
    countdown.one_done()


@DBOS.workflow()
def noop(number: int) -> None:
    countdown.one_done()


@DBOS.workflow()
def stamped(number: int) -> None:
    protocol.stamp(number)


@DBOS.step()
async def hold_here(number: int, name: str) -> None:
    """In the process that is to be killed, one workflow in four stays in each of the first four steps."""
    protocol.append(f"{number} {name}\n")
    if os.environ.get(protocol.HOLD) and name == "abcde"[number % 4]:
        await asyncio.sleep(3600)


@DBOS.workflow()
async def held(number: int) -> None:
    for name in "abcde":
        await hold_here(number, name)


FLOWS: dict[str, Callable[[int], None]] = {"five": five, "noop": noop}


def url_of(place: str) -> str:
    return place if "://" in place else f"sqlite:///{place}/dbos.db"


def launch(place: str, *, listen: bool = True) -> sqlalchemy.Engine:
    """DBOS in this process; an engine to look into its database with."""
    url = url_of(place).replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    if os.environ.get(WAL):
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("PRAGMA journal_mode = WAL"))
    # A fixed version: recovery finds the workflows of the killed process.
    config: DBOSConfig = {
        "name": "bench",
        "system_database_url": url_of(place),
        "log_level": "ERROR",
        "application_version": "1",
    }
    if threads := os.environ.get(THREADS):
        config["max_executor_threads"] = int(threads)
    DBOS(config=config)
    if not listen:
        DBOS.listen_queues([])
    DBOS.launch()
    return engine


def count(engine: sqlalchemy.Engine, status: str = "SUCCESS") -> int:
    table = "workflow_status" if engine.dialect.name == "sqlite" else "dbos.workflow_status"
    with engine.connect() as connection:
        query = sqlalchemy.text(f"SELECT count(*) FROM {table} WHERE status = :status")
        return int(connection.execute(query, {"status": status}).scalar_one())


def drain(options: argparse.Namespace) -> dict[str, Any]:
    """The jobs wait in a queue; the clock runs from the end of launch() to the last success in the database."""
    global countdown
    countdown = protocol.Countdown(options.jobs)
    launch(options.place, listen=False)
    DBOS.register_queue(QUEUE, polling_interval_sec=POLL)
    for number in range(options.jobs):
        DBOS.enqueue_workflow(QUEUE, FLOWS[options.flow], number)
    DBOS.destroy()
    engine = launch(options.place)
    began = time.perf_counter()
    countdown.wait()
    protocol.wait_until(lambda: count(engine) == options.jobs)
    return {"seconds": time.perf_counter() - began}


def worker(options: argparse.Namespace) -> None:
    launch(options.place)
    DBOS.register_queue(QUEUE)
    protocol.wait_for_sigterm()
    DBOS.destroy()


def client(options: argparse.Namespace) -> list[float]:
    there = DBOSClient(system_database_url=url_of(options.place))
    enqueue: Any = {"queue_name": QUEUE, "workflow_name": stamped.__qualname__}
    return protocol.submit_one_by_one(lambda number: there.enqueue(enqueue, number), options.jobs, period=1.0)


def here(options: argparse.Namespace) -> list[float]:
    """Started directly, without a queue: the fastest way that DBOS has."""
    launch(options.place)
    return protocol.submit_one_by_one(lambda number: DBOS.start_workflow(stamped, number), options.jobs)


def hold(options: argparse.Namespace) -> None:
    """Start so many workflows, which stay in one of their steps until this process is killed."""
    launch(options.place)

    async def start_all() -> None:
        for number in range(options.jobs):
            await DBOS.start_workflow_async(held, number)
        # One in four stays in its first step, one in its second, ...
        while protocol.stamps() < options.jobs // 4 * (1 + 2 + 3 + 4):
            await asyncio.sleep(0.05)
        protocol.say("ready")
        await asyncio.sleep(3600)

    asyncio.run(start_all())


def recover(options: argparse.Namespace) -> None:
    engine = launch(options.place)
    protocol.wait_until(lambda: count(engine) == options.jobs, pause=0.05)
    protocol.say("done")
    protocol.wait_for_sigterm()
    DBOS.destroy()


if __name__ == "__main__":
    protocol.main(drain=drain, worker=worker, client=client, here=here, hold=hold, recover=recover)
