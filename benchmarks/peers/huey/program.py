"""huey on SQLite: a queue of function calls; its consumer polls, with threads as workers."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import protocol
from huey import SqliteHuey
from huey.consumer import Consumer

WORKERS = 4


def open_on(place: str) -> SqliteHuey:
    """WAL is huey's default; fsync=True is synchronous=FULL."""
    return SqliteHuey("bench", filename=f"{place}/huey.db", fsync=True)


def started(huey: SqliteHuey, workers: int) -> Consumer:
    """Not by run(), which would take the signals of this process."""
    consumer = Consumer(huey, workers=workers, periodic=False)
    consumer.start()
    return consumer


def drain(options: argparse.Namespace) -> dict[str, Any]:
    """A task is taken off the queue by a durable transaction before it runs, and leaves nothing when it has ended."""
    huey = open_on(options.place)
    countdown = protocol.Countdown(options.jobs)
    noop = huey.task()(lambda number: countdown.one_done())
    for number in range(options.jobs):
        noop(number)
    began = time.perf_counter()
    consumer = started(huey, WORKERS)
    countdown.wait()
    seconds = time.perf_counter() - began
    consumer.stop(graceful=True)
    return {"seconds": seconds}


def worker(options: argparse.Namespace) -> None:
    huey = open_on(options.place)
    huey.task(name="stamped")(protocol.stamp)
    consumer = started(huey, 1)
    protocol.wait_for_sigterm()
    consumer.stop()


def client(options: argparse.Namespace) -> list[float]:
    stamped = open_on(options.place).task(name="stamped")(protocol.stamp)
    return protocol.submit_one_by_one(stamped, options.jobs)


def here(options: argparse.Namespace) -> list[float]:
    huey = open_on(options.place)
    stamped = huey.task(name="stamped")(protocol.stamp)
    consumer = started(huey, 1)
    answer = protocol.submit_one_by_one(stamped, options.jobs)
    consumer.stop()
    return answer


if __name__ == "__main__":
    protocol.main(drain=drain, worker=worker, client=client, here=here)
