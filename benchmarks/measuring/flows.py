"""The flows that are run: as little work as possible, so that what is measured is the engine."""

from __future__ import annotations

import asyncio
import os
import time

import msgspec

from holdfast import Flow, Run, Transaction

STAMP_FILE = "HOLDFAST_BENCH_STAMPS"
HOLD = "HOLDFAST_BENCH_HOLD"


class Work(msgspec.Struct):
    """A number to tell the jobs apart."""

    number: int = 0


class Answer(msgspec.Struct):
    """How many steps have run."""

    count: int = 0


def count(run: Run[Work, Answer]) -> None:
    run.response.count += 1


def count_and_commit(run: Run[Work, Answer], _tx: Transaction) -> None:
    run.response.count += 1


def burn(run: Run[Work, Answer]) -> None:
    """A millisecond of this thread's own computing."""
    until = time.thread_time() + 0.001
    while time.thread_time() < until:
        pass
    run.response.count += 1


def stamp(run: Run[Work, Answer]) -> None:
    """Note when the first line of the step ran, on the clock that all processes share."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    append(STAMP_FILE, f"{run.request.number} {now}\n")


async def hold_here(run: Run[Work, Answer]) -> None:
    """Note that the step was entered; in the process that is to be killed, one flow in four stays in each step."""
    append(STAMP_FILE, f"{run.request.number} {run.step}\n")
    if os.environ.get(HOLD) and run.step == "abcd"[run.request.number % 4]:
        await asyncio.sleep(3600)
    run.response.count += 1


def count_effect(run: Run[Work, Answer], tx: Transaction) -> None:
    """An effect that shows if it was lost or done twice: no rule of the table would refuse a second row."""
    tx.execute("INSERT INTO bench_effects (number) VALUES (?)", (run.request.number,))


def append(variable: str, line: str) -> None:
    """Add a line to a file that outlives a killed process."""
    descriptor = os.open(os.environ[variable], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


one_step = Flow("one-step", request=Work, response=Answer).start("a", count)
commit_only = Flow("commit-only", request=Work, response=Answer).commit("a", count_and_commit)
five_steps = (
    Flow("five-steps", request=Work, response=Answer, queue="bench")
    .start("a", count)
    .to("b", count)
    .to("c", count)
    .to("d", count)
    .commit("e", count_and_commit)
)
five_async_steps = (
    Flow("five-async-steps", request=Work, response=Answer)
    .start("a", hold_here)
    .to("b", hold_here)
    .to("c", hold_here)
    .to("d", hold_here)
    .commit("e", count_effect)
)
five_busy_steps = (
    Flow("five-busy-steps", request=Work, response=Answer, queue="bench")
    .start("a", burn)
    .to("b", burn)
    .to("c", burn)
    .to("d", burn)
    .commit("e", count_and_commit)
)
stamped = Flow("stamped", request=Work, response=Answer).start("a", stamp)

ALL = (one_step, commit_only, five_steps, five_async_steps, five_busy_steps, stamped)
