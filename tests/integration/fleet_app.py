"""The flows that fleets of worker processes run in the tests of faults."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from holdfast import Flow, Run, Transaction, fixed


class Work(msgspec.Struct):
    number: int
    seconds: float = 0.0
    log: str = ""
    together: int = 0
    """Step a goes on only when so many are at work: what would be luck on a busy machine is made certain."""


class Done(msgspec.Struct):
    steps: list[str] = []


def log_line(path: str, text: str) -> None:
    """One line, whole, however many processes write at the same time; the clock is the one all of them share."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, f"{text} {time.monotonic_ns()} {os.getpid()}\n".encode())
    os.close(descriptor)


def at_work(log: str) -> int:
    words = Path(log).read_text().split() if log else []
    return words.count("start") - words.count("end")


def work(run: Run[Work, Done]) -> None:
    request = run.request
    if request.log:
        log_line(request.log, f"start {request.number}")
    time.sleep(request.seconds)
    while run.step == "a" and at_work(request.log) < request.together:
        run.check()
        time.sleep(0.01)
    if request.log:
        log_line(request.log, f"end {request.number}")
    run.response.steps.append(run.step)


def record(run: Run[Work, Done], tx: Transaction) -> None:
    tx.execute("INSERT INTO effects (number, exec_id) VALUES (%s, %s)", (run.request.number, run.exec_id))


fleet_flow = (
    Flow("fleet", request=Work, response=Done, queue="fleet", crash_limit=1000)
    .start("a", work, retry=fixed(2))
    .to("b", work)
    .commit("record", record)
)
