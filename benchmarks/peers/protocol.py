"""What every program of a peer does: it measures one thing, and writes the answer as one line of JSON.

    python program.py drain PLACE --flow {five,noop} --jobs N     drain jobs that were submitted before
    python program.py worker PLACE                                work until SIGTERM; says `ready` first
    python program.py client PLACE --jobs N                       submit one by one, to a worker in another process
    python program.py here PLACE --jobs N                         the same, to a worker in this process
    python program.py recover PLACE --jobs N                      work until so many flows have ended; says `done` then

PLACE is an empty directory, or the URL of an empty database. Only the standard library is needed here: this file is
imported in the environment of each peer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

STAMPS = "HOLDFAST_BENCH_STAMPS"
HOLD = "HOLDFAST_BENCH_HOLD"
PATIENCE = 300.0
WARM_UP = 5
PAUSE = 0.02
"""At least so long between the first line of a step and the next submit: the worker has finished, and sleeps again."""
PERIOD = 0.1
"""And up to so much more, by chance: a worker that polls is not met at the same point of its period each time."""
ENOUGH = 10.0
"""Seconds after which no more latencies are taken, if there are some already: a peer that polls takes its time."""
FEWEST = 15

Measure = Callable[[argparse.Namespace], Any]


def main(**measures: Measure) -> None:
    """Carry out the measure that is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=sorted(measures))
    parser.add_argument("place")
    parser.add_argument("--flow", choices=["five", "noop"])
    parser.add_argument("--jobs", type=int, default=0)
    options = parser.parse_args()
    answer = measures[options.measure](options)
    if answer is not None:
        say(json.dumps(answer))


def say(line: str) -> None:
    """One line for the program that has started this one."""
    print(line, flush=True)


def stamp(number: int) -> None:
    """Note when the first line of the step ran, on the clock that all processes share."""
    append(f"{number} {time.clock_gettime_ns(time.CLOCK_MONOTONIC)}\n")


def append(line: str) -> None:
    """Add a line to the file that outlives a killed process."""
    descriptor = os.open(os.environ[STAMPS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


def stamps() -> int:
    """How many lines were added."""
    with open(os.environ[STAMPS]) as file:
        return sum(1 for _ in file)


def submit_one_by_one(submit: Callable[[int], Any], jobs: int, period: float = PERIOD) -> list[float]:
    """Seconds from the call of submit to the first line of the step, each on an idle worker."""
    return asyncio.run(submit_one_by_one_async(lambda number: _called(submit, number), jobs, period))


async def submit_one_by_one_async(
    submit: Callable[[int], Awaitable[Any]], jobs: int, period: float = PERIOD
) -> list[float]:
    """The same, for a submit that is awaited."""
    called: list[int] = []
    began = time.monotonic()
    while len(called) < jobs + WARM_UP and (time.monotonic() - began < ENOUGH or len(called) < FEWEST + WARM_UP):
        before = _size_of_stamps()
        called.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        await submit(len(called) - 1)
        await _wait_until(lambda before=before: _size_of_stamps() > before)
        await asyncio.sleep(PAUSE + random.uniform(0, period))
    at = _stamped()
    return [(at[number] - called[number]) / 1e9 for number in range(WARM_UP, len(called))]


async def _called(submit: Callable[[int], Any], number: int) -> None:
    submit(number)


async def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: nothing came of it in {PATIENCE:.0f} s")
        await asyncio.sleep(0.001)


def _size_of_stamps() -> int:
    """The cheapest look there is: it is taken every millisecond, in the process of the worker, too."""
    try:
        return os.stat(os.environ[STAMPS]).st_size
    except FileNotFoundError:
        return 0


def _stamped() -> dict[int, int]:
    with open(os.environ[STAMPS]) as file:
        return {int(number): int(at) for number, at in (line.split() for line in file)}


def wait_until(condition: Callable[[], bool], pause: float = 0.002) -> None:
    """Look often enough to be exact, seldom enough not to be in the way."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"error: nothing came of it in {PATIENCE:.0f} s")
        time.sleep(pause)


def wait_for_sigterm() -> None:
    """Say `ready`, then sleep until this process is told to stop."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    say("ready")
    stopped.wait()


class Countdown:
    """Counts the jobs whose code has run, so that the database is asked only when that may be all of them."""

    def __init__(self, jobs: int) -> None:
        self._left = jobs
        self._lock = threading.Lock()
        self._none_left = threading.Event()

    def one_done(self) -> None:
        """Called at the end of a job's code."""
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self._none_left.set()

    def wait(self) -> None:
        """Until the code of every job has run."""
        if not self._none_left.wait(PATIENCE):
            raise SystemExit(f"error: {self._left} jobs are left after {PATIENCE:.0f} s")

    async def wait_async(self) -> None:
        """The same, without a thread in the way of the event loop."""
        await _wait_until(self._none_left.is_set)
