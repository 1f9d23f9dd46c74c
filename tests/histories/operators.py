"""An operator of a history: gives orders by library and by command, and notes what was acknowledged, and when."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast import Engine, JobState
from holdfast.errors import HoldfastError, StoreError
from tests.histories import plan as plans
from tests.histories.clients import patiently_opened
from tests.histories.events import DIRECTORY_VARIABLE, EventLog, Start, monotonic_us
from tests.histories.plan import Order
from tests.histories.shapes import MOVING_QUEUE

COMMAND = str(Path(sys.executable).with_name("holdfast"))
COMMAND_TIMEOUT = 120.0
WANTED = {"retry": "failed", "release": "quarantined"}
"""Most orders are for jobs in a state that allows them; the others are for any job, and may be refused."""


class Operator:
    """Goes through its orders, one after the other."""

    def __init__(self, directory: Path, place: str) -> None:
        self._directory = directory
        self._place = place
        self._events = EventLog(directory, "operator")
        self._engine: Engine = patiently_opened(place, "operator:history")
        self._began = Start(directory).wait("operator-0")
        self._number = 0

    def run(self) -> None:
        for order in plans.load(self._directory).orders:
            time.sleep(max(0.0, self._began / 1e6 + order.at - monotonic_us() / 1e6))
            self._number += 1
            try:
                self._give(order)
            except StoreError:
                continue  # no list of jobs to pick from: the store is away
        self._engine.close()

    def _give(self, order: Order) -> None:
        about: dict[str, Any] = {"number": self._number, "verb": order.verb, "value": order.value}
        if order.verb in ("cancel", "retry", "release", "force"):
            job = self._picked(order)
            if job is None:
                return
            about["job"] = job
        if order.verb == "backup":
            about["file"] = str(self._directory / f"backup-{self._number}.db")
        self._events.write("order", **about)
        try:
            answer = self._by_command(order, about) if order.command else self._by_library(order, about)
        except HoldfastError as error:
            self._events.write("order-refused", **about, error=type(error).__name__)
        else:
            self._events.write("order-done", **about, answer=answer)

    def _picked(self, order: Order) -> str | None:
        wanted = WANTED.get(order.verb)
        jobs = self._engine.store.jobs(states=[JobState(wanted)] if wanted and order.pick < 0.8 else [], limit=400)
        return jobs[int(order.pick * len(jobs))].job_id if jobs else None

    def _by_library(self, order: Order, about: dict[str, Any]) -> Any:
        engine, reason = self._engine, f"order {self._number}"
        match order.verb:
            case "cancel":
                return engine.cancel(about["job"], reason=reason).value
            case "retry":
                return engine.retry(about["job"], reason=reason)
            case "release":
                return engine.release(about["job"], reason=reason)
            case "force":
                return [state.value for state in engine.force(about["job"], JobState(order.value), reason=reason)]
            case "pause":
                return engine.store.pause_queue(MOVING_QUEUE, actor="operator:history", reason=reason)
            case "resume":
                return engine.store.resume_queue(MOVING_QUEUE)
            case "limit":
                limit = None if order.value == "none" else int(order.value)
                return engine.store.set_queue(MOVING_QUEUE, max_running=limit, actor="operator:history")
            case "prune":
                now = engine.store.now()
                return engine.store.prune(before=now - 1000, limit=20, actor="operator:history", dry_run=False)
            case "check":
                return [str(finding) for finding in engine.check() if finding.severity == "error"]
            case "backup":
                return engine.store.backup(Path(about["file"]))
            case "look":
                engine.store.counts()
                return len(engine.store.queues())
        raise AssertionError(order.verb)

    def _by_command(self, order: Order, about: dict[str, Any]) -> Any:
        reason = ["--reason", f"order {self._number}"]
        job = about.get("job", "")
        arguments = {
            "cancel": ["job", "cancel", job, *reason],
            "retry": ["job", "retry", job, *reason],
            "release": ["job", "release", job, *reason],
            "force": ["job", "force", job, order.value, *reason],
            "pause": ["queues", "pause", MOVING_QUEUE, *reason],
            "resume": ["queues", "resume", MOVING_QUEUE],
            "limit": ["queues", "limit", MOVING_QUEUE, order.value],
            "prune": ["prune", "--older-than", "0.00001"],
            "check": ["check"],
            "backup": ["backup", about.get("file", "")],
            "look": ["stats"],
        }[order.verb]
        command = [COMMAND, "--store", self._place, "--json", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT, check=False)
        if order.verb == "check" and done.returncode == 7:
            findings = json.loads(done.stdout)["findings"]
            return [str(finding) for finding in findings if finding["severity"] == "error"]
        if done.returncode != 0:
            raise HoldfastError(done.stderr.strip()[-500:] or f"exit code {done.returncode}")
        return [] if order.verb == "check" else done.stdout.strip()[:2000]


def main() -> None:
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    Operator(directory, sys.argv[1]).run()


if __name__ == "__main__":
    main()
