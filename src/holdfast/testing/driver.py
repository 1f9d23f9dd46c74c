"""A worker without threads: the same executor and store, one thing at a time, in an order that repeats."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, assert_never

from holdfast.client import Client
from holdfast.core.flow import Flow
from holdfast.core.outcomes import TryFailed
from holdfast.crash_points import SimulatedCrash
from holdfast.engine.executor import Executor
from holdfast.engine.following import Gone, Next, Perform, Send, Sleep
from holdfast.engine.run import LiveRun
from holdfast.engine.telemetry import Telemetry
from holdfast.store.messages import Claim, ReportProgress
from holdfast.store.processes import is_dead, new_worker_id
from holdfast.store.protocol import Store
from holdfast.testing.clock import VirtualClock


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
