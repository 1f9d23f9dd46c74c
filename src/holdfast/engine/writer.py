"""Group commit: one thread writes what all runs have to record, as many at a time as have gathered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

from holdfast.engine.run import LiveRun
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import StoreReadOnly, StoreUnavailable
from holdfast.store.messages import Write
from holdfast.store.protocol import Store

log = logging.getLogger("holdfast.writer")

BATCH_LIMIT = 512
BATCH_BYTES = 64 << 20
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

Written: TypeAlias = tuple[LiveRun, Write, Exception | None]
Item: TypeAlias = tuple[LiveRun, Write]


class GroupWriter:
    """Crash: what was not acknowledged may or may not be durable, and evidence() tells which."""

    def __init__(
        self,
        store: Store,
        *,
        worker_id: str,
        lease_ms: int,
        telemetry: Telemetry,
        written: Callable[[Sequence[Written]], None],
        failed: Callable[[BaseException], None],
        holding: Callable[[], Sequence[str]] = list,
    ) -> None:
        self._store = store
        self._worker_id = worker_id
        self._lease_ms = lease_ms
        self._telemetry = telemetry
        self._written = written
        self._failed = failed
        self._holding = holding
        self._renewed = time.monotonic()
        self._items: SimpleQueue[Item | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="holdfast-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, run: LiveRun, write: Write) -> None:
        """Have this written with the next group."""
        self._items.put((run, write))

    def stop(self, timeout: float) -> None:
        """Write what has gathered, then end."""
        self._items.put(None)
        self._thread.join(timeout)

    def _loop(self) -> None:
        try:
            while (first := self._items.get()) is not None:
                self._written(self.write(self._gather(first)))
        except BaseException as error:
            self._failed(error)

    def _gather(self, first: Item) -> list[Item]:
        batch = [first]
        size = _size_of(first)
        try:
            while len(batch) < BATCH_LIMIT and size < BATCH_BYTES:
                item = self._items.get_nowait()
                if item is None:
                    self._items.put(None)
                    break
                batch.append(item)
                size += _size_of(item)
        except Empty:
            pass
        return batch

    def write(self, batch: Sequence[Item]) -> list[Written]:
        """Write the batch, however long the database is away; a write the database refuses fails alone."""
        answers: list[Written] = []
        todo = list(batch)
        pause = FIRST_PAUSE
        while todo:
            try:
                results = self._store.write(
                    [write for _, write in todo],
                    worker_id=self._worker_id,
                    lease_ms=self._lease_ms,
                    renew=self._due_for_renewal,
                )
                answers += [(run, write, result) for (run, write), result in zip(todo, results, strict=True)]
                self._telemetry.group(len(todo))
                return answers
            except (StoreUnavailable, StoreReadOnly) as error:
                # One that nobody may write is like one that is away: it is no fault of the job, and it passes.
                log.warning("database unavailable, next try in %.2f s: %s", pause, error)
                time.sleep(pause)
                pause = min(LONGEST_PAUSE, pause * 2)
                todo = self._without_durable(todo, answers)
            except Exception as error:
                if len(todo) == 1:
                    log.error("the database refused a write: %s", error)
                    return [*answers, (*todo[0], error)]
                for item in todo:
                    answers += self.write([item])
                return answers
        return answers

    def _due_for_renewal(self) -> Sequence[str]:
        # A slow commit step keeps the lease thread waiting for the very transaction it runs in.
        if time.monotonic() - self._renewed < self._lease_ms / 3000:
            return ()
        self._renewed = time.monotonic()
        return self._holding()

    def _without_durable(self, todo: list[Item], answers: list[Written]) -> list[Item]:
        """After a lost answer: what is durable counts as written, the rest is tried again."""
        try:
            durable = self._store.evidence([write for _, write in todo])
        except StoreUnavailable:
            return todo
        answers += [(run, write, None) for (run, write), there in zip(todo, durable, strict=True) if there]
        return [item for item, there in zip(todo, durable, strict=True) if not there]


def _size_of(item: Item) -> int:
    return len(getattr(item[1], "response", None) or "")
