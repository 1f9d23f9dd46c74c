"""How soon an idle worker notices work: jobs submitted one after the other, each when the one before has ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from holdfast import Engine
from tests.histories.app import Task, flows
from tests.histories.check_jobs import WAKE_BOUND_US
from tests.histories.events import DIRECTORY_VARIABLE, EventLog, monotonic_us
from tests.histories.shapes import MOVING_QUEUE

QUIET = 0.5
"""Long enough for a worker to have gone to sleep after the last job."""
PATIENCE = 60.0
MEASURED = 2
FLOW = "parent"
"""Its steps have no timeouts, for which a worker would wake by itself."""
MORE = 2
"""If all were late, so many more."""


class Prober:
    """Each probe is noted with the time from which on a worker could know of it."""

    def __init__(self, directory: Path, place: str) -> None:
        self._events = EventLog(directory, "probes")
        self._engine = Engine.open(place, flows=flows, actor="prober")

    def run(self, kinds: list[str]) -> None:
        probes = {"submit": self._submitted, "resume": self._resumed, "due": self._due}
        for kind in kinds or list(probes):
            probe = probes[kind]
            # The first one finds the worker at an unknown point of its sleep.
            late = [probe() for _ in range(1 + MEASURED)][1:]
            if all(late):
                for _ in range(MORE):
                    probe()
        self._engine.close()

    def _submitted(self) -> bool:
        job = self._engine.submit(FLOW, Task(n=0))
        return self._watch("submit", job, monotonic_us())

    def _resumed(self) -> bool:
        self._engine.store.pause_queue(MOVING_QUEUE, actor="prober", reason="probe")
        job = self._engine.submit(FLOW, Task(n=0), queue=MOVING_QUEUE)
        time.sleep(QUIET)
        self._engine.store.resume_queue(MOVING_QUEUE)
        return self._watch("resume", job, monotonic_us())

    def _due(self) -> bool:
        job = self._engine.submit(FLOW, Task(n=0), delay=QUIET)
        return self._watch("due", job, monotonic_us() + round(QUIET * 1e6))

    def _watch(self, kind: str, job: str, due: int) -> bool:
        """Wait for the end of the job; was it late?"""
        self._events.write("probe", kind=kind, job=job, due=due)
        deadline = time.monotonic() + PATIENCE
        while self._engine.store.job(job).state in ("pending", "running") and time.monotonic() < deadline:
            time.sleep(0.02)
        ended = monotonic_us()
        time.sleep(QUIET)
        return ended - due > WAKE_BOUND_US


if __name__ == "__main__":
    Prober(Path(os.environ[DIRECTORY_VARIABLE]), sys.argv[1]).run(sys.argv[2:])
