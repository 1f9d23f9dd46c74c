"""Takes over what died: expired leases, and at once the jobs of local processes that are gone."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.core.worker_id import label_of
from holdfast.engine.telemetry import Telemetry
from holdfast.store import processes
from holdfast.store.messages import Recovered
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.recovery")

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
        self._is_dead = is_dead or partial(processes.is_dead, one_machine=store.one_machine)
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
        log.warning("took over %d job(s) from %s: %s", len(recovered), label_of(owner), told, extra=extra)
        if len(recovered) > 1:
            for one in recovered:
                bound = {"job_id": one.job_id, "exec_id": one.exec_id, "flow": one.flow}
                log.debug("took over from %s: %s", label_of(owner), one.outcome, extra={**extra, **bound})

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
            descriptor = processes.pidfd_of(owner)
            if descriptor is not None:
                self._peers[owner] = descriptor
