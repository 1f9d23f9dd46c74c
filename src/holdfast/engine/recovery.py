"""Takes over what died: expired leases, and at once the jobs of local processes that are gone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from holdfast.core.worker_id import label_of
from holdfast.engine.telemetry import Telemetry
from holdfast.store import processes
from holdfast.store.messages import Recovered
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.recovery")


class Recovery:
    """`run_once` takes over what it finds and watches the processes that still live."""

    def __init__(
        self,
        store: Store,
        *,
        worker_id: str,
        telemetry: Telemetry,
        is_dead: Callable[[str], bool] = processes.is_dead,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._telemetry = telemetry
        self._is_dead = is_dead
        self._peers: dict[str, int] = {}

    @property
    def descriptors(self) -> set[int]:
        """Readable as soon as one of the other workers' processes has ended."""
        return set(self._peers.values())

    def run_once(self) -> list[Recovered]:
        """Recover now. Crash: each batch is one transaction; what was not reached is found again."""
        recovered = self._store.recover(is_dead=self._is_dead, actor=self._worker_id)
        for one in recovered:
            log.warning(
                "took over from %s: %s",
                label_of(one.owner),
                one.outcome,
                extra={"job_id": one.job_id, "flow": one.flow},
            )
            self._telemetry.recovered[one.flow, one.outcome] += 1
        self._watch_peers()
        return recovered

    def close(self) -> None:
        """Stop watching."""
        for descriptor in self._peers.values():
            os.close(descriptor)
        self._peers.clear()

    def _watch_peers(self) -> None:
        announced = {worker.worker_id for worker in self._store.workers()} - {self._worker_id}
        for owner in [owner for owner in announced if self._is_dead(owner)]:
            # Its leases were taken over above, so the row is of no use to anybody.
            self._store.retire(worker_id=owner)
            announced.discard(owner)
        for owner in set(self._peers) - announced:
            os.close(self._peers.pop(owner))
        for owner in announced - set(self._peers):
            descriptor = processes.pidfd_of(owner)
            if descriptor is not None:
                self._peers[owner] = descriptor
