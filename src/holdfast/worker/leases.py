"""How a worker behaves, and its leases: renewed from a thread of its own, which busy steps cannot starve."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

import msgspec

from holdfast.core.values import label_of
from holdfast.errors import LeaseLost, SettingsError, StepCancelled, StoreError, may_pass
from holdfast.store import liveness
from holdfast.store.commands import Recovered
from holdfast.store.protocol import Store
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import Telemetry

MOST_CONCURRENT = 100_000
LONGEST = 365 * 86400.0
LEAST = {"lease": 0.1, "recovery_interval": 0.001, "timeout_grace": 0, "stop_grace": 0, "check_interval": 0}
STALL_CHOICES = ("automatic", "approval")


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker behaves; all times in seconds."""

    concurrency: int = 32
    lease: float = 30.0
    recovery_interval: float = 5.0
    timeout_grace: float = 5.0
    stop_grace: float = 25.0
    check_interval: float = 60.0
    """How often the guard looks for broken invariants and stalls; 0 turns it off."""
    stall: str = "automatic"
    """Stalled jobs are recovered (`automatic`), or only reported, for an operator to decide (`approval`)."""

    def __post_init__(self) -> None:
        whole = isinstance(self.concurrency, int) and not isinstance(self.concurrency, bool)
        if not whole or not 1 <= self.concurrency <= MOST_CONCURRENT:
            raise SettingsError(
                f"concurrency cannot be {self.concurrency!r}", hint=f"a whole number from 1 to {MOST_CONCURRENT:,}"
            )
        if self.stall not in STALL_CHOICES:
            raise SettingsError(f"stall cannot be {self.stall!r}", hint=" or ".join(STALL_CHOICES))
        for name, least in LEAST.items():
            value = getattr(self, name)
            # Written so that "not a number", which compares false with everything, is refused too.
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= LONGEST:
                raise SettingsError(f"{name} cannot be {value!r}", hint=f"seconds, from {least:g} to {LONGEST:,.0f}")


log = logging.getLogger("holdfast.leases")


class LeaseKeeper:
    """Renews every third of the lease; tells runs that were cancelled, or that are no longer ours."""

    def __init__(
        self,
        store: Store,
        *,
        worker_id: str,
        lease_ms: int,
        runs: Callable[[], list[LiveRun]],
        lost: Callable[[LiveRun], None],
        stopping: Callable[[LiveRun], None],
        failed: Callable[[BaseException], None],
        unrecorded: Callable[[], Collection[str]],
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._runs = runs
        self._lost = lost
        self._stopping = stopping
        self._failed = failed
        self._unrecorded = unrecorded
        self._given_up: set[str] = set()
        self._ended = threading.Event()
        self._nudge = threading.Event()
        self.renewed_at = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="holdfast-leases", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def end(self) -> None:
        """Renew no more; leases that are still held run out by themselves."""
        self._ended.set()
        self._nudge.set()

    def stop(self) -> None:
        """End, and wait for it."""
        self.end()
        self._thread.join(5)

    @property
    def is_alive(self) -> bool:
        """Does its thread live?"""
        return self._thread.is_alive()

    def look_now(self) -> None:
        """Look at once, because an operator may want something."""
        self._nudge.set()

    def run_once(self) -> None:
        """Renew, and pass on what was learned. Crash: nothing is lost, a lease is only extended."""
        # Listed before asking: a run that is claimed meanwhile is not in the answer and not lost.
        runs = self._runs()
        if not runs:
            return
        # Just those: a lease that we do not know of, because the answer to its claim was lost, has to run out. So has
        # one under which nobody works, because what was done cannot be recorded from here: others may be able to.
        unrecorded = self._unrecorded()
        known = [run.exec_id for run in runs if run.exec_id not in unrecorded]
        self._tell_given_up(unrecorded)
        answer = self._store.extend_leases(worker_id=self._worker_id, lease_ms=self._lease_ms, only=known)
        held = {one.exec_id: one for one in answer}
        for run in runs:
            one = held.get(run.exec_id)
            if one is None:
                run.stop(LeaseLost(run.exec_id))
                self._lost(run)
            elif one.cancel_reason is not None and run.stop_error is None and run.ending is None:
                run.stop(StepCancelled(one.cancel_reason))
                self._stopping(run)

    def _tell_given_up(self, unrecorded: Collection[str]) -> None:
        for exec_id in set(unrecorded) - self._given_up:
            log.warning("what %s has done cannot be recorded: its lease is not renewed", exec_id)
        self._given_up = set(unrecorded)

    def _loop(self) -> None:
        interval = self._lease_ms / 3000
        while not self._ended.is_set():
            self._nudge.wait(interval)
            self._nudge.clear()
            if self._ended.is_set():
                return
            try:
                self.run_once()
                self.renewed_at = time.monotonic()
            except StoreError as error:
                # Fencing keeps this safe; trying again soon keeps it alive.
                self._try_again(error, interval)
            except BaseException as error:
                if not may_pass(error):
                    # A worker that renews no more has to say so, or it would go on claiming.
                    self._failed(error)
                    return
                self._try_again(error, interval)

    def _try_again(self, error: BaseException, interval: float) -> None:
        log.warning("leases could not be renewed: %s", error)
        time.sleep(min(1.0, interval / 4))
        self._nudge.set()


# --- Takes over what died: expired leases, and at once the jobs of local processes that are gone --------

recovery_log = logging.getLogger("holdfast.recovery")

CLOCK_JUMP_MS = 1000
FORGET_AFTER_MS = 3_600_000
"""Nothing was heard for so long of a worker that nobody here can know to be dead: it is on a machine that is gone."""


class Recovery:
    """`run_once` takes over what it finds and watches the processes that still live."""

    def __init__(
        self,
        store: Store,
        *,
        worker_id: str,
        telemetry: Telemetry,
        is_dead: Callable[[str], bool] | None = None,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._telemetry = telemetry
        self._is_dead = is_dead or partial(liveness.is_dead, one_machine=store.one_machine)
        self._peers: dict[str, int] = {}
        self._looked = (store.now(), time.monotonic())

    @property
    def descriptors(self) -> set[int]:
        """Readable as soon as one of the other workers' processes has ended."""
        return set(self._peers.values())

    def run_once(self) -> list[Recovered]:
        """Recover now. Crash: each batch is one transaction; what was not reached is found again."""
        recovered = self._store.recover(is_dead=self._is_dead, actor=self._worker_id, steady_now=self._steady_now())
        self._looked = (self._store.now(), time.monotonic())
        for one in recovered:
            self._telemetry.took_over(one.flow, one.outcome)
        for owner in dict.fromkeys(one.owner for one in recovered):
            self._log_takeover(owner, [one for one in recovered if one.owner == owner])
        self._watch_peers()
        return recovered

    def _log_takeover(self, owner: str, recovered: Sequence[Recovered]) -> None:
        """One line for a worker that is gone, however many jobs it held."""
        first, counts = recovered[0], Counter(one.outcome for one in recovered)
        told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        extra = {"worker": self._worker_id, "outcome": "taken over"}
        if len(recovered) == 1:
            extra |= {"job_id": first.job_id, "exec_id": first.exec_id, "flow": first.flow}
        recovery_log.warning("took over %d job(s) from %s: %s", len(recovered), label_of(owner), told, extra=extra)
        if len(recovered) > 1:
            for one in recovered:
                bound = {"job_id": one.job_id, "exec_id": one.exec_id, "flow": one.flow}
                recovery_log.debug("took over from %s: %s", label_of(owner), one.outcome, extra={**extra, **bound})

    def _steady_now(self) -> int | None:
        """What the time would be by the monotonic clock, if the store's was set forward since the last look."""
        now, at = self._looked
        steady = now + round((time.monotonic() - at) * 1000)
        return steady if self._store.now() - steady > CLOCK_JUMP_MS else None

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._peers.values():
            os.close(descriptor)
        self._peers.clear()

    def _watch_peers(self) -> None:
        workers = {worker.worker_id: worker for worker in self._store.workers() if worker.worker_id != self._worker_id}
        announced = set(workers)
        oldest = self._store.now() - FORGET_AFTER_MS
        for owner in [one for one in announced if self._is_dead(one) or workers[one].seen_at < oldest]:
            # Its leases were taken over above, so the row is of no use to anybody. One that lives will announce again.
            self._store.retire(worker_id=owner)
            announced.discard(owner)
        for owner in set(self._peers) - announced:
            os.close(self._peers.pop(owner))
        for owner in announced - set(self._peers):
            descriptor = liveness.pidfd_of(owner)
            if descriptor is not None:
                self._peers[owner] = descriptor
