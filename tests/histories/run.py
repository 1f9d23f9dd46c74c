"""One history from its plan to the verdict: begin, break, heal, drain, probe, stop, and look at what is left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast import Engine
from tests.histories import plan as plans
from tests.histories.checker import check, check_backups
from tests.histories.clock import ShiftedClock, TrueClock
from tests.histories.events import EventLog, monotonic_us, read_events
from tests.histories.evidence import Evidence, Row, Violation, collect, keep, unexplained
from tests.histories.faults import Faults
from tests.histories.fleet import ROOT, Fleet
from tests.histories.places import Place, PostgresPlace, SqlitePlace, placed
from tests.histories.plan import Plan
from tests.histories.shapes import MOVING_LIMIT, MOVING_QUEUE

TICK = 0.02
CLIENTS_PATIENCE = 120.0
STUCK = 100.0
"""Without any change for so long, a history that has not drained never will."""
STARVED = 20.0
"""So long no job may stay runnable beside workers that have nothing to do."""
PULSE = 0.2


@dataclass
class Verdict:
    """What came of a history."""

    plan: Plan
    directory: Path
    violations: list[Violation]
    jobs: int = 0
    faults: dict[str, int] = field(default_factory=dict)

    @property
    def repeat(self) -> str:
        plan = self.plan
        what = f"--store {plan.store} --seed {plan.seed} --seconds {plan.seconds:g}"
        return f"python -m tests.histories {what} --rounds 1"

    def __str__(self) -> str:
        broken = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items())) or "nothing"
        lines = [f"{self.plan.store} seed {self.plan.seed}: {self.jobs} jobs; {broken}"]
        lines += [f"  {violation}" for violation in self.violations]
        if self.violations:
            lines += [
                f"  everything is in {self.directory}; to repeat:",
                f"  {self.repeat}",
            ]
        return "\n".join(lines)


def run_history(plan: Plan, directory: Path) -> Verdict:
    """Run it in this directory, and check it."""
    directory.mkdir(parents=True, exist_ok=True)
    if plan.small_disk and os.geteuid() != 0:
        print("not root: no disk of its own can be mounted, so it will not be full")
        plan.small_disk = False
        plan.faults = [fault for fault in plan.faults if fault.kind != "fill"]
    plans.save(plan, directory)
    # A server that runs as another user has to find the clock, too.
    shared = Path(tempfile.mkdtemp(prefix="holdfast-clock-"))
    shared.chmod(0o755)
    try:
        clock = ShiftedClock(shared) if plan.clock else TrueClock()
        with placed(plan, directory, clock) as place:
            history = History(plan, directory, place, clock)
            try:
                history.run()
            finally:
                history.fleet.close()
            return history.verdict()
    finally:
        shutil.rmtree(shared)


class History:
    """The parts of a history, and its phases."""

    def __init__(self, plan: Plan, directory: Path, place: Place, clock: ShiftedClock | TrueClock) -> None:
        self._plan = plan
        self._directory = directory
        self._place = place
        self._clock = clock
        self._events = EventLog(directory, "runner")
        self._orders = 0
        self.fleet = Fleet(plan, directory, place.url, clock.environment, self._events)
        self.faults: Faults | None = None

    def run(self) -> None:
        pulse = Pulse(self._place, self._clock, self._events, self._plan.lease / 4)
        try:
            self.fleet.begin()
            self.faults = Faults(self._plan.faults, self.fleet, self._place, self._clock, self._events)
            self._until(lambda: self._all_given and self.faults is not None and self.faults.over, CLIENTS_PATIENCE)
            self.faults.heal()
            self._until(lambda: self._all_given, CLIENTS_PATIENCE)
            self._restore_queue()
            self._drain()
            self._stop()
        finally:
            pulse.close()

    def verdict(self) -> Verdict:
        evidence = self._collected()
        violations = [*check(evidence), *self._damage()]
        if self._plan.store == "sqlite":
            violations += check_backups(evidence)
        if violations:
            keep(evidence, self._directory / "database.json")
        counts = self.faults.counts if self.faults is not None else {}
        if isinstance(self._place, PostgresPlace) and self._place.network.cut_commits:
            counts = {**counts, "commits cut": self._place.network.cut_commits}
        return Verdict(self._plan, self._directory, violations, len(evidence.jobs) + len(evidence.pruned), counts)

    # --- phases ---

    @property
    def _all_given(self) -> bool:
        """Have clients and operators done all that they had to do?"""
        return all(member.finished for member in self.fleet.members if not member.works)

    def _until(self, done: Callable[[], bool], patience: float) -> None:
        assert self.faults is not None
        deadline = time.monotonic() + self._plan.seconds + patience
        while not done() and time.monotonic() < deadline:
            self.fleet.look()
            self.faults.step()
            time.sleep(TICK)

    def _restore_queue(self) -> None:
        """As the last operator of all: nothing is paused any more."""
        with Engine.open(self._place.url, actor="operator:runner") as engine:
            for verb, value in (("resume", ""), ("limit", str(MOVING_LIMIT))):
                self._orders += 1
                about = {"number": self._orders, "verb": verb, "value": value}
                self._events.write("order", **about)
                if verb == "resume":
                    engine.store.resume_queue(MOVING_QUEUE)
                else:
                    engine.store.set_queue(MOVING_QUEUE, max_running=MOVING_LIMIT, actor="operator:runner")
                self._events.write("order-done", **about, answer=None)

    def _drain(self) -> None:
        """Until every job has ended or waits for something; if nothing happens any more, the checker will say what."""
        last, changed_at = -1, time.monotonic()
        runnable: dict[str, float] = {}
        while True:
            self.fleet.look()
            jobs, queues = self._unfinished(), self._queues()
            entries = self._place.query("SELECT count(*) AS n FROM journal")[0]["n"]
            if entries != last:
                last, changed_at = entries, time.monotonic()
            states = {job_id: job["state"] for job_id, job in jobs.items()}
            waiting = unexplained(jobs, queues, states.get, self._clock.now_ms())
            if not waiting or time.monotonic() - changed_at > STUCK:
                return
            self._note_starved(jobs, queues, runnable)
            time.sleep(0.2)

    def _unfinished(self) -> dict[str, Row]:
        rows = self._place.query("SELECT * FROM jobs WHERE state IN ('pending', 'running')")
        return {row["job_id"]: row for row in rows}

    def _queues(self) -> dict[str, Row]:
        return {row["name"]: row for row in self._place.query("SELECT * FROM queues")}

    def _note_starved(self, jobs: dict[str, Row], queues: dict[str, Row], runnable: dict[str, float]) -> None:
        """Jobs that could run for long, though there are free slots and workers with room."""
        now = time.monotonic()
        running = Counter(job["queue"] for job in jobs.values() if job["state"] == "running")
        workers = sum(member.usable for member in self.fleet.members if member.works)
        room = sum(running.values()) < workers * self._plan.concurrency
        ready = {
            job_id
            for job_id, job in jobs.items()
            if room and job["state"] == "pending" and job["hold"] == "none" and _has_slot(queues[job["queue"]], running)
        }
        for job_id in set(runnable) - ready:
            del runnable[job_id]
        for job_id in ready:
            since = runnable.setdefault(job_id, now)
            if now - since > STARVED:
                self._events.write("starved", job=job_id, seconds=now - since)
                runnable[job_id] = now

    def _stop(self) -> None:
        self.fleet.look()
        self.fleet.keeping = False
        workers = [member for member in self.fleet.members if member.works and member.usable]
        last = [member for member in workers if member.role == "worker"][:1]
        self.fleet.stop([member for member in workers if member not in last])
        if self._plan.probes and last:
            self._probe()
        self.fleet.stop([member for member in last if member.usable])

    def _probe(self) -> None:
        environment = self.fleet.environment
        command = [sys.executable, "-m", "tests.histories.probes", self._place.url, *self._plan.probes]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode != 0:
            self._events.write(
                "exit",
                role="prober",
                number=0,
                worker="",
                code=done.returncode,
                why="",
                log="",
                said=done.stderr[-600:],
            )

    # --- what is left ---

    def _collected(self) -> Evidence:
        offset = time.time_ns() // 1000 - monotonic_us()
        return collect(
            self._place.query,
            list(read_events(self._directory)),
            store=self._plan.store,
            lease=self._plan.lease,
            now_ms=self._clock.now_ms(),
            offset_us=offset,
        )

    def _damage(self) -> list[Violation]:
        """What the database itself, and the engine's own check, find."""
        found = []
        if isinstance(self._place, SqlitePlace):
            answer = [list(row.values()) for row in self._place.query("PRAGMA integrity_check")]
            if answer != [["ok"]]:
                found.append(Violation("damage", "holdfast.db", str(answer)))
        with Engine.open(self._place.url) as engine:
            findings = [finding for finding in engine.check(deep=True) if finding.severity == "error"]
        return [*found, *(Violation("check", finding.subject, finding.message) for finding in findings)]


def _has_slot(queue: Row, running: Counter[str]) -> bool:
    if queue["paused_at"] is not None:
        return False
    return queue["max_running"] is None or running[queue["name"]] < queue["max_running"]


class Pulse:
    """Notices when the machine itself was too slow for leases: then a lease that ran out has a cause."""

    def __init__(self, place: Place, clock: ShiftedClock | TrueClock, events: EventLog, tolerance: float) -> None:
        self._clock = clock
        self._events = events
        self._tolerance = tolerance
        self._stopping = threading.Event()
        self._descriptor = -1
        if isinstance(place, SqlitePlace):
            self._descriptor = os.open(place.directory / "pulse", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def _beat(self) -> None:
        while not self._stopping.is_set():
            since, began = self._clock.now_ms(), monotonic_us()
            self._stopping.wait(PULSE)
            self._sync()
            if (monotonic_us() - began) / 1e6 > PULSE + self._tolerance:
                self._events.write("disturbance", kind="slow", began=began, since=since, until=self._clock.now_ms())

    def _sync(self) -> None:
        if self._descriptor < 0:
            return
        try:
            os.pwrite(self._descriptor, b".", 0)
            os.fsync(self._descriptor)
        except OSError:
            pass  # the disk is full, on purpose
