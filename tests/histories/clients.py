"""A client of a history: submits what the plan says, and notes what it was told, and when."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Engine
from holdfast.errors import HoldfastError, StoreError
from holdfast.store.commands import NewJob
from tests.histories import plan as plans
from tests.histories.app import Task, flows
from tests.histories.events import DIRECTORY_VARIABLE, EventLog, Start, monotonic_us, read_events
from tests.histories.plan import Ask

OPENING = 90.0
"""How long to try to open the store, before it counts as gone for good."""


def patiently_opened(place: str, actor: str) -> Engine:
    """The engine, however long the store is away."""
    deadline = time.monotonic() + OPENING
    while True:
        try:
            return Engine.open(place, flows=flows, actor=actor)
        except StoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Client:
    """Goes through its asks from the first that it has not tried."""

    def __init__(self, directory: Path, place: str, number: int) -> None:
        self._asks = plans.load(directory).clients[number]
        self._events = EventLog(directory, f"client{number}")
        self._acknowledged: dict[int, str] = {}
        self._next = 0
        for event in read_events(directory, f"client{number}-"):
            if event["e"] == "ask":
                self._next = max(self._next, event["n"] + 1)
            if event["e"] == "ack":
                self._acknowledged[event["n"]] = event["jobs"][-1]
        self._number = number
        self._engine = patiently_opened(place, f"client:{number}")
        self._began = Start(directory).wait(f"client-{number}")

    def run(self) -> None:
        for n in range(self._next, len(self._asks)):
            ask = self._asks[n]
            time.sleep(max(0.0, self._began / 1e6 + ask.at - monotonic_us() / 1e6))
            self._submit(n, ask)
        self._engine.close()

    def _submit(self, n: int, ask: Ask) -> None:
        after = self._acknowledged.get(ask.after) if ask.after is not None else None
        about = {"client": self._number, "n": n}
        self._events.write("ask", **about, flow=ask.flow, key=ask.key, after=after, script=ask.script)
        try:
            jobs = self._submitted(ask, after)
        except HoldfastError as error:
            self._events.write("refused", **about, error=type(error).__name__)
            return
        self._acknowledged[n] = jobs[-1]
        self._events.write("ack", **about, jobs=jobs, flow=ask.flow, key=ask.key, after=after, script=ask.script)
        if ask.wait:
            self._wait(jobs[-1], ask.wait)

    def _submitted(self, ask: Ask, after: str | None) -> list[str]:
        request = Task(**ask.script)
        options: dict[str, Any] = {"key": ask.key, "priority": ask.priority}
        if ask.together == 1:
            return [self._engine.submit(ask.flow, request, **options, delay=ask.delay, run_after=after)]
        batch: list[NewJob] = []
        for _ in range(ask.together):
            before = batch[-1].job_id if batch else after
            batch.append(self._engine.prepare(ask.flow, request, **options, run_after=before))
        return self._engine.submit_many(batch)

    def _wait(self, job: str, seconds: float) -> None:
        try:
            state = self._engine.wait(job, timeout=seconds).state.value
        except HoldfastError:
            return  # pruned, or not yet
        self._events.write("saw", job=job, state=state)


def main() -> None:
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    Client(directory, sys.argv[1], int(sys.argv[2])).run()


if __name__ == "__main__":
    main()
