"""Keeps leases alive from a thread of its own, which busy steps cannot starve, and hears what operators want."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from holdfast.engine.run import LiveRun
from holdfast.errors import LeaseLost, StepCancelled, StoreError, may_pass
from holdfast.store.protocol import Store

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
