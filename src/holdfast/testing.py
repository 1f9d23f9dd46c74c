"""Tools for testing flows, the engine's and yours: a clock you move, a worker without threads, a crash explorer."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import os
import random
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, assert_never

import msgspec

from holdfast.client import Client
from holdfast.core.facts import Severity
from holdfast.core.flow import Flow
from holdfast.core.states import COMMITTED_STATUSES, UNFINISHED_STATES
from holdfast.core.step import TryFailed
from holdfast.crash_points import SimulatedCrash, set_hook
from holdfast.engine import Engine
from holdfast.guard import check
from holdfast.store.commands import Claim, ReportProgress
from holdfast.store.liveness import is_dead, new_worker_id
from holdfast.store.protocol import Store
from holdfast.worker.endings import Gone, Next, Perform, Send, Sleep
from holdfast.worker.executor import Executor
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import Telemetry

__all__ = ["CrashExplorer", "InlineWorker", "Report", "Scenario", "Violation", "VirtualClock", "run_until_idle"]

NOON = 1_750_000_000_000


class VirtualClock:
    """Pass it as `Engine.open(..., clock=clock)`; it goes only where you send it, never back."""

    def __init__(self, start: int = NOON) -> None:
        self._now = start

    def __call__(self) -> int:
        """The time, in milliseconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.advance_to(self._now + round(seconds * 1000))

    def advance_to(self, milliseconds: int) -> None:
        """Let time pass until then; a time that has passed changes nothing."""
        self._now = max(self._now, milliseconds)


# --- A worker without threads: the same executor and store, one thing at a time, in an order that repeats ---


class InlineWorker:
    """Runs jobs in the calling thread. With a virtual clock, waiting costs no time."""

    def __init__(
        self,
        store: Store,
        flows: Mapping[str, Flow[Any, Any]],
        clock: VirtualClock,
        *,
        concurrency: int = 8,
        lease: float = 30.0,
    ) -> None:
        self.worker_id = new_worker_id()
        self.telemetry = Telemetry()
        self._store = store
        self._flows = flows
        self._clock = clock
        self._concurrency = concurrency
        self._lease_ms = round(lease * 1000)
        self._executor = Executor(store, flows, self.telemetry)
        self._ready: deque[tuple[LiveRun, Next]] = deque()
        self._sleeping: list[tuple[int, int, LiveRun]] = []
        self._order = itertools.count()

    def run_until_idle(self, *, most: int = 100_000) -> int:
        """Run until nothing is left that could run, now or later; returns the number of steps and writes done."""
        for done in range(most):
            self._store.recover(is_dead=partial(is_dead, one_machine=self._store.one_machine), actor=self.worker_id)
            self._claim()
            if self._ready:
                self._follow(*self._ready.popleft())
            elif not self._wait():
                return done
        raise AssertionError(f"still not idle after {most} steps: is there a loop?")

    def _claim(self) -> None:
        room = self._concurrency - len(self._ready) - len(self._sleeping)
        flows = {name: flow.fingerprint for name, flow in self._flows.items()}
        claims = self._store.claim(worker_id=self.worker_id, flows=flows, limit=room, lease_ms=self._lease_ms)
        for claim in claims:
            self._admit(claim)

    def _admit(self, claim: Claim) -> None:
        run, following = self._executor.admit(claim, self._report)
        if run is not None:
            self._ready.append((run, following))
        elif isinstance(following, Send):
            self._store.write([following.write], worker_id=self.worker_id, lease_ms=self._lease_ms)

    def _follow(self, run: LiveRun, following: Next) -> None:
        match following:
            case Perform():
                self._ready.append((run, self._perform(run)))
            case Send(write=write):
                answer = self._store.write([write], worker_id=self.worker_id, lease_ms=self._lease_ms)[0]
                self._ready.append((run, self._executor.after_write(run, write, answer)))
            case Sleep(until=until):
                heapq.heappush(self._sleeping, (until, next(self._order), run))
            case Gone():
                pass
            case _:
                assert_never(following)

    def _perform(self, run: LiveRun) -> Next:
        if not run.is_async:
            return self._executor.perform(run)
        try:
            return asyncio.run(self._executor.perform_async(run))
        except SimulatedCrash:
            raise
        except BaseException as error:
            # An exit in a task that the step has started, which ends the loop of asyncio.run.
            return self._executor.conclude(run, TryFailed(error))

    def _wait(self) -> bool:
        """Go to the next moment at which something can happen; False if there is none."""
        now = self._store.now()
        while self._sleeping and self._sleeping[0][0] <= now:
            _, _, run = heapq.heappop(self._sleeping)
            self._ready.append((run, Perform()))
        if self._ready:
            return True
        moments = [until for until, _, _ in self._sleeping]
        moments += [e.lease_expires_at for e in self._store.under_way() if e.lease_owner != self.worker_id]
        due = self._store.next_due()
        if due is not None:
            moments.append(due)
        if not moments:
            return False
        self._advance(max(min(moments), now + 1))
        return True

    def _advance(self, moment: int) -> None:
        if not self._sleeping:
            self._clock.advance_to(moment)
        # In strides shorter than a lease, renewing on the way as a real worker would.
        while self._store.now() < moment:
            self._clock.advance_to(min(moment, self._store.now() + self._lease_ms // 2))
            self._store.extend_leases(worker_id=self.worker_id, lease_ms=self._lease_ms)

    def _report(self, _run: LiveRun, write: ReportProgress) -> None:
        self._store.write([write], worker_id=self.worker_id, lease_ms=self._lease_ms)


def run_until_idle(client: Client, clock: VirtualClock, *, concurrency: int = 8) -> int:
    """Run every job of a client (or engine) that can run, moving the clock whenever all of them wait."""
    return InlineWorker(client.store, client.flows, clock, concurrency=concurrency).run_until_idle()


# --- The crash explorer: kill a flow at every durable boundary and on both sides of every effect, resume, compare ---
#
# A *life* is one process, or one stand-in for it, that works until nothing is left or until it dies at a crash point. A
# *history* is a series of lives on one state directory, all but the last ending in a crash.


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """What to explore. Everything is made anew for each history, in a directory of its own.

    `flows(directory)` builds the flows, `submit(engine)` submits the jobs, `observe(engine, directory)` returns what
    the outside world looks like at the end: it must be the same whatever crashed.
    """

    flows: Callable[[Path], Sequence[Flow[Any, Any]]]
    submit: Callable[[Engine], object]
    observe: Callable[[Engine, Path], object]
    place: Callable[[Path], str | Path] = lambda directory: directory / "state"
    """Where the store is: the same for the same directory, and empty at first. A URL with a schema of its own, say."""


class Violation(msgspec.Struct, frozen=True):
    """A history that did not end as it must."""

    crashes: tuple[int, ...]
    point: str
    problem: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was explored and what was found."""

    mode: str
    points: tuple[str, ...]
    histories: int
    crashes: int
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        head = (
            f"{self.mode}: {len(self.points)} crash points, {self.histories} histories, {self.crashes} crashes, "
            f"{len(self.violations)} violations"
        )
        return "\n".join([head, *(f"  crash at {v.crashes} ({v.point}): {v.problem}" for v in self.violations)])


class CrashExplorer:
    """Explores one scenario below `workspace`."""

    def __init__(self, scenario: Scenario, workspace: Path) -> None:
        self._scenario = scenario
        self._workspace = workspace
        self._histories = 0

    def crash_points(self) -> tuple[str, ...]:
        """The crash points of an undisturbed life, in the order they are passed."""
        names: list[str] = []
        self._live(self._fresh(), names.append, VirtualClock())
        return tuple(names)

    def explore(self, *, kill: bool = False, singles: int | None = None, pairs: int = 0, seed: int = 0) -> Report:
        """Every single crash (or a sample of `singles`), and a sample of `pairs` of crashes.

        With `kill` each life is a child process that kills itself with SIGKILL; else the crash is simulated.
        """
        chance = random.Random(seed)
        points = self.crash_points()
        reference = self._reference()
        chosen = range(len(points)) if singles is None else sorted(chance.sample(range(len(points)), singles))
        plans: list[tuple[int, ...]] = [(at,) for at in chosen]
        plans += [(chance.randrange(len(points)), chance.randrange(len(points))) for _ in range(pairs)]
        violations = [v for plan in plans for v in self._history(plan, points, reference, kill=kill)]
        return Report(
            mode="SIGKILL" if kill else "in process",
            points=points,
            histories=len(plans),
            crashes=sum(map(len, plans)),
            violations=tuple(violations),
        )

    def _reference(self) -> object:
        directory = self._fresh()
        self._live(directory, lambda _name: None, VirtualClock())
        return self._observe(directory, VirtualClock())

    def _history(
        self, plan: tuple[int, ...], points: Sequence[str], reference: object, *, kill: bool
    ) -> Iterator[Violation]:
        directory = self._fresh()
        clock = VirtualClock()
        live = self._live_in_child if kill else self._live_in_process
        for at in plan:
            live(directory, at, clock)
            clock.advance(3600)
        problems = []
        try:
            self._live(directory, lambda _name: None, clock)
            problems = list(self._problems(directory, clock, reference))
        except Exception:  # whatever it is, it is what was looked for
            problems = [f"could not resume: {traceback.format_exc()}"]
        for problem in problems:
            yield Violation(plan, points[plan[0]], problem)

    def _live(self, directory: Path, hook: Callable[[str], None], clock: VirtualClock) -> None:
        """One life: submit what is not there yet, work until idle."""
        with self._open(directory, clock) as engine:
            set_hook(hook)
            try:
                if not engine.store.jobs(limit=1):
                    self._scenario.submit(engine)
                run_until_idle(engine, clock)
            finally:
                set_hook(None)

    def _live_in_process(self, directory: Path, at: int, clock: VirtualClock) -> None:
        try:
            self._live(directory, _dies_at(at, _raise), clock)
        except SimulatedCrash:
            pass

    def _live_in_child(self, directory: Path, at: int, clock: VirtualClock) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # The child works alone and leaves by a signal or _exit; it never touches the parent's threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            try:
                self._live(directory, _dies_at(at, _kill_self), clock)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
            raise AssertionError(f"the life that should die at point {at} failed; see its traceback")

    def _problems(self, directory: Path, clock: VirtualClock, reference: object) -> Iterator[str]:
        with self._open(directory, clock) as engine:
            yield from _engine_problems(engine)
            observed = self._scenario.observe(engine, directory)
        if observed != reference:
            yield f"ended as {observed!r}, not as {reference!r}"

    def _observe(self, directory: Path, clock: VirtualClock) -> object:
        with self._open(directory, clock) as engine:
            return self._scenario.observe(engine, directory)

    def _open(self, directory: Path, clock: VirtualClock) -> Engine:
        return Engine.open(self._scenario.place(directory), flows=self._scenario.flows(directory), clock=clock)

    def _fresh(self) -> Path:
        self._histories += 1
        directory = self._workspace / f"history-{self._histories:05d}"
        directory.mkdir(parents=True)
        return directory


def _engine_problems(engine: Engine) -> Iterable[str]:
    """What must hold of every database, whatever crashed: invariants, an end for every job, one commit for each."""
    for finding in check(engine.store, deep=True):
        if finding.severity is Severity.ERROR:
            yield f"{finding.subject}: {finding.message}"
    for job in engine.store.jobs(limit=10_000):
        if job.state in UNFINISHED_STATES:
            yield f"job {job.job_id} is still {job.state}"
        committed = [e for e in engine.store.executions(job.job_id) if e.status in COMMITTED_STATUSES]
        if len(committed) > 1:
            yield f"job {job.job_id} has {len(committed)} commits"


def _dies_at(at: int, die: Callable[[str], None]) -> Callable[[str], None]:
    passed = -1

    def hook(name: str) -> None:
        nonlocal passed
        passed += 1
        if passed == at:
            die(name)

    return hook


def _raise(name: str) -> None:
    raise SimulatedCrash(name)


def _kill_self(_name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
