"""Group commit: one thread writes what all runs have to record, as many at a time as have gathered."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

import msgspec

from holdfast.errors import StoreBusy, StoreCorrupt, may_pass
from holdfast.store.commands import Commit, ReportProgress, StoreTransaction, Write
from holdfast.store.protocol import Store
from holdfast.worker.run import LiveRun
from holdfast.worker.telemetry import Telemetry

log = logging.getLogger("holdfast.writer")

BATCH_LIMIT = 512
BATCH_BYTES = 64 << 20
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

Written: TypeAlias = tuple[LiveRun | None, Write, Exception | None]
"""Without a run: about an execution that was claimed but not begun."""


class QueuedCommand:
    """One write on its way. `doubtful`: it may be durable, though nobody has said so."""

    __slots__ = ("doubtful", "run", "since", "write")

    def __init__(self, run: LiveRun | None, write: Write) -> None:
        self.run = run
        self.write = write
        self.since = time.monotonic()
        self.doubtful = False


class GroupWriter:
    """Records every write, however long that takes; one that has to wait keeps no other back.

    Crash: what was not acknowledged may or may not be durable, and evidence() tells which.
    """

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
        self._renewed = self._recorded = time.monotonic()
        self._items: SimpleQueue[QueuedCommand | None] = SimpleQueue()
        self._unanswered: dict[int, QueuedCommand] = {}
        self._late: list[QueuedCommand] = []
        self._is_away = False
        self._pause = FIRST_PAUSE
        self._retry_at = 0.0
        self._in_effect = False
        self._ending = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._loop, name="holdfast-writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def runs_on(self, thread: threading.Thread) -> bool:
        """Is it the thread that writes, and that commit steps run on?"""
        return thread is self._thread

    @property
    def is_alive(self) -> bool:
        """Does its thread live?"""
        return self._thread.is_alive()

    def put(self, run: LiveRun | None, write: Write) -> None:
        """Have this written with the next group; later writes of the same execution stay behind it."""
        if isinstance(write, Commit) and write.effect is not None:
            write = msgspec.structs.replace(write, effect=self._observed(write.effect))
        entry = QueuedCommand(run, write)
        self._unanswered[id(entry)] = entry
        self._items.put(entry)

    def stop(self, timeout: float) -> None:
        """Write what has gathered, then end."""
        self._items.put(None)
        self._thread.join(timeout)
        self._abandoned = True

    def unrecorded(self) -> set[str]:
        """Executions that wait to be recorded for longer than a lease: nobody works under those leases any more."""
        if self._in_effect:
            return set()  # a commit step takes its time, which has limits of its own; the others wait for it
        waiting_since = time.monotonic() - self._lease_ms / 1000
        return {
            entry.write.exec_id
            for entry in list(self._unanswered.values())
            if entry.since < waiting_since and not isinstance(entry.write, ReportProgress)
        }

    def is_stuck(self) -> bool:
        """Has nothing at all been recorded for longer than a lease, though something waits to be?"""
        return time.monotonic() - self._recorded > self._lease_ms / 1000 and bool(self.unrecorded())

    # --- the writer's thread ---

    def _loop(self) -> None:
        try:
            while (batch := self._gather()) is not None:
                self._record(batch)
        except BaseException as error:
            self._failed(error)

    def _gather(self) -> list[QueuedCommand] | None:
        """What has gathered, nothing when it is time to try again what is late, None at the end."""
        batch: list[QueuedCommand] = []
        size = 0
        try:
            entry = self._items.get(timeout=self._patience())
            while entry is not None:
                batch.append(entry)
                size += _size_of(entry)
                if len(batch) >= BATCH_LIMIT or size >= BATCH_BYTES:
                    return batch
                entry = self._items.get_nowait()
            self._ending = True
        except Empty:
            pass
        over = self._ending and not batch and not self._late
        return None if over or self._abandoned else batch

    def _patience(self) -> float | None:
        if self._late:
            return max(0.0, self._retry_at - time.monotonic())
        return 0.0 if self._ending else None

    def _record(self, batch: Sequence[QueuedCommand]) -> None:
        if self._is_away:
            self._late += batch
        else:
            self._attempt(self._in_order(batch))
        if self._late and time.monotonic() >= self._retry_at:
            self._try_again()

    def _in_order(self, batch: Sequence[QueuedCommand]) -> list[QueuedCommand]:
        """Without those that have to stay behind a late write of their execution."""
        if not self._late:
            return list(batch)
        behind = {entry.write.exec_id for entry in self._late}
        self._late += [entry for entry in batch if entry.write.exec_id in behind]
        return [entry for entry in batch if entry.write.exec_id not in behind]

    def _attempt(self, batch: Sequence[QueuedCommand]) -> None:
        """Write these; what cannot be written now is late, what the database refuses fails alone."""
        if not batch:
            return
        try:
            results = self._store.write(
                [entry.write for entry in batch],
                worker_id=self._worker_id,
                lease_ms=self._lease_ms,
                renew=self._due_for_renewal,
            )
        except Exception as error:
            self._after_error(batch, error)
            return
        self._is_away = False
        self._telemetry.group(len(batch))
        self._answer(batch, results)

    def _after_error(self, batch: Sequence[QueuedCommand], error: Exception) -> None:
        # A damaged page, like a value that is refused, concerns those jobs only that need it.
        if len(batch) > 1 and (not may_pass(error) or isinstance(error, StoreCorrupt)):
            for entry in batch:
                self._attempt(self._in_order([entry]))
        elif may_pass(error):
            self._is_away = len(batch) > 1 or not isinstance(error, StoreBusy | StoreCorrupt)
            self._be_late(batch, error)
        else:
            log.error("the database refused a write: %s", error)
            self._answer(batch, [error])

    def _answer(self, batch: Sequence[QueuedCommand], results: Sequence[Exception | None]) -> None:
        answered: list[Written] = []
        for entry, result in zip(batch, results, strict=True):
            if result is not None and may_pass(result):
                self._be_late([entry], result)
                continue
            self._unanswered.pop(id(entry), None)
            answered.append((entry.run, entry.write, result))
        if answered:
            self._recorded = time.monotonic()
            self._written(answered)

    def _be_late(self, entries: Sequence[QueuedCommand], error: Exception) -> None:
        if not self._late:
            self._retry_at = time.monotonic() + self._pause
        for entry in entries:
            # Who was only kept waiting has changed nothing for sure.
            entry.doubtful |= not isinstance(error, StoreBusy)
        self._late += entries
        log.warning("%d write(s) cannot be recorded at the moment: %s", len(entries), error)

    def _try_again(self) -> None:
        """Write what is late, in its order, after a look at what is there already."""
        late, self._late = self._late, []
        self._pause = min(LONGEST_PAUSE, self._pause * 2)
        try:
            left = self._without_durable(late)
        except Exception as error:
            if not may_pass(error):
                raise
            log.warning("cannot look for what may have been recorded: %s", error)
            self._late = late
        else:
            self._is_away = False
            while left and not self._is_away:
                part, left = left[:BATCH_LIMIT], left[BATCH_LIMIT:]
                self._attempt(self._in_order(part))
            self._late += left
        if not self._late:
            self._pause = FIRST_PAUSE
        self._retry_at = time.monotonic() + self._pause

    def _without_durable(self, late: Sequence[QueuedCommand]) -> list[QueuedCommand]:
        """After a lost answer: what is durable counts as written; what cannot be told yet stays late."""
        doubtful = [entry for entry in late if entry.doubtful]
        evidence = self._store.evidence([entry.write for entry in doubtful]) if doubtful else []
        told = dict(zip(map(id, doubtful), evidence, strict=True))
        durable = [entry for entry in doubtful if told[id(entry)]]
        self._late += [entry for entry in doubtful if told[id(entry)] is None]
        self._answer(durable, [None] * len(durable))
        return [entry for entry in late if told.get(id(entry), False) is False]

    def _observed(self, effect: Callable[[StoreTransaction], str]) -> Callable[[StoreTransaction], str]:
        def observed(transaction: StoreTransaction) -> str:
            self._in_effect = True
            try:
                return effect(transaction)
            finally:
                self._in_effect = False

        return observed

    def _due_for_renewal(self) -> Sequence[str]:
        # A slow commit step keeps the lease thread waiting for the very transaction it runs in.
        if time.monotonic() - self._renewed < self._lease_ms / 3000:
            return ()
        self._renewed = time.monotonic()
        unrecorded = self.unrecorded()
        return [exec_id for exec_id in self._holding() if exec_id not in unrecorded]


def _size_of(entry: QueuedCommand) -> int:
    return len(getattr(entry.write, "response", None) or "")
