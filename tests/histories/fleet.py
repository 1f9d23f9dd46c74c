"""The processes of a history: started, watched, and started again when they were killed or stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.histories.app import STORE_VARIABLE
from tests.histories.events import DIRECTORY_VARIABLE, EventLog, Start
from tests.histories.plan import Plan
from tests.histories.planted import PLANTED_VARIABLE

ROOT = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("holdfast"))
STOP_GRACE = 20.0
STOP_PATIENCE = 60.0
"""Far more than a stop may take: its grace, and a little for its writes."""
START_PATIENCE = 120.0
START_PAUSE = 0.3
MOST_REFUSALS = 3
"""So often a worker may end before it was ready; then none ever will be."""


class Member:
    """One process and its place in the fleet."""

    def __init__(self, role: str, number: int) -> None:
        self.role = role
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.worker_id = ""
        self.output = Path()
        self.ending = ""
        """Why it is going to end: kill, stop or two-signals."""
        self.frozen = False
        self.start_at = 0.0
        self.finished = False
        """A client or an operator that has done all that it had to do."""

    @property
    def works(self) -> bool:
        return self.role in ("worker", "embedded")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def usable(self) -> bool:
        """May a fault be aimed at it?"""
        return self.alive and not self.ending and not self.frozen and (bool(self.worker_id) or not self.works)


class Fleet:
    """Workers, embedded workers, clients and an operator, all on one place."""

    def __init__(self, plan: Plan, directory: Path, url: str, extra: Mapping[str, str], events: EventLog) -> None:
        self._plan = plan
        self._directory = directory
        self._url = url
        self._events = events
        self._starts = 0
        self._refused = 0
        self.environment = {
            **os.environ,
            **extra,
            DIRECTORY_VARIABLE: str(directory),
            STORE_VARIABLE: plan.store,
            PLANTED_VARIABLE: plan.planted,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            # A history's own settings only.
            "HOLDFAST_CONFIG": "/dev/null",
        }
        self.keeping = True
        """Is a worker that has ended started again?"""
        self.members = [
            *(Member("worker", number) for number in range(plan.workers)),
            *(Member("embedded", number) for number in range(plan.embedded)),
            *(Member("client", number) for number in range(len(plan.clients))),
            Member("operator", 0),
        ]

    def begin(self) -> None:
        """Start the workers, and when they are ready those who give them work; returns when all of them are there."""
        for member in self.members:
            member.start_at = 0.0 if member.works else float("inf")
        self._until(lambda: all(member.worker_id for member in self.members if member.works))
        for member in self.members:
            if not member.works:
                member.start_at = 0.0
        start = Start(self._directory)
        givers = [f"{member.role}-{member.number}" for member in self.members if not member.works]
        self._until(lambda: all(start.is_there(who) for who in givers))
        start.give()

    def _until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_PATIENCE
        while not done():
            self.look()
            if self._refused > MOST_REFUSALS or time.monotonic() > deadline:
                raise RuntimeError(f"the processes of the history did not start: see {self._directory}")
            time.sleep(0.02)

    def look(self) -> None:
        """Notice who is ready and who has ended; start again who has to be there."""
        for member in self.members:
            if member.works and not member.worker_id and member.process is not None:
                self._look_whether_ready(member)
            if member.process is not None and member.process.poll() is not None:
                self._ended(member)
            if member.process is None and not member.finished and self.keeping and time.monotonic() >= member.start_at:
                self._start(member)

    def some(self, *roles: str) -> list[Member]:
        """Those of these roles that a fault may be aimed at."""
        return [member for member in self.members if member.role in roles and member.usable]

    def end(self, member: Member, why: str) -> None:
        """SIGKILL it, or ask it to stop."""
        assert member.process is not None
        member.ending = why
        self._events.write("ending", why=why, worker=member.worker_id, role=member.role, number=member.number)
        member.process.send_signal(signal.SIGKILL if why == "kill" else signal.SIGTERM)

    def freeze(self, member: Member) -> None:
        assert member.process is not None
        member.frozen = True
        member.process.send_signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        assert member.process is not None
        member.frozen = False
        if member.process.poll() is None:
            member.process.send_signal(signal.SIGCONT)

    def stop(self, members: list[Member]) -> None:
        """Stop these cleanly, and wait for it; one that does not stop in time is noted, and killed."""
        for member in members:
            self.end(member, "stop")
        deadline = time.monotonic() + STOP_PATIENCE
        while any(member.alive for member in members) and time.monotonic() < deadline:
            time.sleep(0.02)
        for member in members:
            if member.alive:
                self._events.write("did-not-stop", role=member.role, number=member.number, worker=member.worker_id)
                self.end(member, "kill")
                assert member.process is not None
                member.process.wait()
        self.look()

    def close(self) -> None:
        """Whatever has happened, leave no process behind."""
        for member in self.members:
            if member.process is not None and member.process.poll() is None:
                member.process.kill()
                member.process.wait()

    # --- inside ---

    def _start(self, member: Member) -> None:
        self._starts += 1
        name = f"{member.role}-{member.number}-{self._starts}"
        member.output = self._directory / f"{name}.out"
        with member.output.open("wb") as out, (self._directory / f"{name}.log").open("wb") as log:
            member.process = subprocess.Popen(
                self._command(member),
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )
        member.worker_id, member.ending, member.frozen = "", "", False

    def _command(self, member: Member) -> list[str]:
        plan = self._plan
        python = [sys.executable, "-m"]
        match member.role:
            case "worker":
                return [
                    *(COMMAND, "worker", "--app", "tests.histories.app:flows", "--store", self._url, "--json"),
                    *("--concurrency", str(plan.concurrency), "--lease", str(plan.lease)),
                    *("--stop-grace", str(STOP_GRACE), "--check-interval", "2" if member.number else "60"),
                ]
            case "embedded":
                return [*python, "tests.histories.embedded", self._url]
            case "client":
                return [*python, "tests.histories.clients", self._url, str(member.number)]
        return [*python, "tests.histories.operators", self._url]

    def _look_whether_ready(self, member: Member) -> None:
        line = member.output.read_bytes().partition(b"\n")
        if line[1]:
            member.worker_id = json.loads(line[0])["worker_id"]
            assert member.process is not None
            self._events.write("ready", worker=member.worker_id, role=member.role, number=member.number)

    def _ended(self, member: Member) -> None:
        assert member.process is not None
        code = member.process.returncode
        if member.works and not member.worker_id:
            self._look_whether_ready(member)
            self._refused += not member.worker_id
        log = member.output.with_suffix(".log")
        self._events.write(
            "exit",
            role=member.role,
            number=member.number,
            worker=member.worker_id,
            code=code,
            why=member.ending,
            log=log.name,
            said=log.read_text(errors="replace")[-600:] if code else "",
        )
        member.finished = member.role in ("client", "operator") and not member.ending
        member.process = None
        member.start_at = time.monotonic() + START_PAUSE
