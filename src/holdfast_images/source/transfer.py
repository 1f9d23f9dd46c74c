"""Ranges of one object, fetched by several threads into a ring of buffers, and handed out in order."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar

import msgspec

from holdfast_images.errors import AccessDenied, NoThreads, SourceChanged, SourceUnavailable
from holdfast_images.source.location import SourceSettings
from holdfast_images.source.partial import Partial
from holdfast_images.source.responses import Busy, RangeRequest, RangeResponse, RangesGone

Result = TypeVar("Result")

_SPARE_BUFFERS = 4
_ENOUGH_BYTES = 64 << 10
"""A try that brought as much is no failure in a row."""
_BUSY_SECONDS = 0.01
"""So long a first byte may take because a processor is busy, here or there, and more connections would not help."""
_PATIENCE_SECONDS = 2.0
"""How long threads are waited for that were told to stop; one that hangs in the resolver is left behind."""


_libc = ctypes.CDLL(None)
_SYNC_FILE_RANGE_WRITE = 2


class Reader(Protocol):
    """One thread's way to the object."""

    at: int | None

    def ask(self, question: RangeRequest) -> RangeResponse:
        """Begin to read the bytes that are asked for."""
        ...

    def read_into(self, view: memoryview) -> int:
        """Read on; 0 at the end."""
        ...

    def watch(self, now: float) -> None:
        """See whether it still moves."""
        ...

    def interrupt(self, reason: str) -> None:
        """Stop waiting."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


class Piece(msgspec.Struct, frozen=True):
    """Bytes of the object that are in the file and in a buffer."""

    start: int
    buffer: mmap.mmap
    count: int


class Transfer:
    """Fetches and writes; whoever iterates hashes. Readers and the file's descriptor belong to the threads.

    `begun` asks for the rest of an object whose first bytes are there; SourceChanged if it is not that one any more.
    With a strong ETag: ranges, in parallel, each asked for again from where it broke. Without: one answer, one thread,
    and no second try, for nothing would prove that both parts are of one object.
    """

    def __init__(
        self,
        where: str,
        new_reader: Callable[[], Reader],
        file: Partial,
        settings: SourceSettings,
        connections: int,
        begun: RangeRequest | None = None,
    ) -> None:
        self._where = where
        self._new_reader = new_reader
        self._file = file
        self._settings = settings
        self._connections = connections
        self._most = settings.most_connections
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._readers: list[Reader] = []
        self._free: list[mmap.mmap] = []
        self._ready: dict[int, Piece] = {}
        self._parts: dict[int, int] = {}
        self._failure: BaseException | None = None
        self._head: RangeResponse | None = None
        self._end: int | None = None
        self._begun = begun
        self._start = self._next = begun.start if begun is not None else 0
        self._wait_per_move = 0.0

    def __enter__(self) -> Self:
        self._add_buffers(1 + _SPARE_BUFFERS)
        self._add_thread(opens=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            readers, threads = list(self._readers), list(self._threads)
        for reader in readers:
            reader.interrupt("stopped")
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    @property
    def is_over(self) -> bool:
        """Will no thread write to the file any more?"""
        return not any(thread.is_alive() for thread in self._threads)

    def written_from(self, position: int) -> int:
        """How many bytes from here on are in the file without a gap, though nobody has got them. When it is over."""
        end = position
        while (piece := self._ready.get(end)) is not None:
            end += piece.count
        return end + self._parts.get(end, 0) - position

    @property
    def answered(self) -> RangeResponse | None:
        """What the first answer says of the object, if one has come, whatever failed after it."""
        return self._head

    def head(self, tick: Callable[[], None]) -> RangeResponse:
        """What the first answer says of the object. `tick` is called while waiting, and may raise."""
        self._wait_for(lambda: self._head is not None, tick)
        assert self._head is not None
        self._grow()
        return self._head

    def pieces(self, tick: Callable[[], None]) -> Iterator[memoryview]:
        """The object's bytes in order; each view is good until the next is asked for."""
        position = self._start
        while True:
            self._wait_for(partial(self._is_decided, position), tick)
            if position == self._end:
                return
            piece = self._ready.pop(position)
            with memoryview(piece.buffer) as view, view[: piece.count] as filled:
                yield filled
            position += piece.count
            with self._changed:
                self._free.append(piece.buffer)
                self._changed.notify_all()
            self._grow()

    def _is_decided(self, position: int) -> bool:
        return position in self._ready or position == self._end

    # --- the caller's thread ------------------------------------------------------------------------------------------

    def _wait_for(self, condition: Callable[[], bool], tick: Callable[[], None]) -> None:
        pause = min(0.25, self._settings.stall_seconds / 4)
        watched = time.monotonic()
        while True:
            tick()
            with self._changed:
                if self._failure is None:
                    self._changed.wait_for(lambda: condition() or self._failure is not None, pause)
                if self._failure is not None:
                    raise self._failure
                if condition():
                    return
                readers = list(self._readers)
            if (now := time.monotonic()) - watched >= pause:
                watched = now
                for reader in readers:
                    reader.watch(now)

    def _grow(self) -> None:
        """As many connections as keep the network busy while others wait for their first byte."""
        if self._head is None or not self._head.ranged or self._end is None:
            return
        useful = math.ceil(self._connections * (1 + self._wait_per_move))
        left = math.ceil((self._end - self._next) / self._settings.range_bytes)
        while len(self._threads) < min(useful, self._most) and left > 0:
            try:
                self._add_thread()
            except NoThreads:
                self._most = len(self._threads)  # those that are there do the work
                return
            self._add_buffers(1)
            left -= 1

    def _add_buffers(self, count: int) -> None:
        with self._changed:
            self._free += [mmap.mmap(-1, self._settings.range_bytes) for _ in range(count)]
            self._changed.notify_all()

    def _add_thread(self, *, opens: bool = False) -> None:
        reader = self._new_reader()
        # A descriptor of its own: a thread that is left behind can then write nowhere but into the removed file.
        descriptor = os.dup(self._file.descriptor)
        thread = threading.Thread(
            target=self._work, args=(reader, descriptor, opens), name="holdfast-fetch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            os.close(descriptor)
            reader.close()
            raise NoThreads(
                f"{self._where}: {error}: a limit of processes is reached (ulimit -u, TasksMax of systemd, pids.max)",
                hint="raise the limit, or let less run at once",
            ) from None
        with self._changed:
            self._readers.append(reader)
            self._threads.append(thread)

    # --- the fetching threads -----------------------------------------------------------------------------------------

    def _work(self, reader: Reader, descriptor: int, opens: bool) -> None:  # noqa: FBT001
        try:
            if opens:
                self._open(reader)
            while (taken := self._take()) is not None:
                start, buffer = taken
                with memoryview(buffer) as view:
                    count = self._fill(reader, descriptor, view, start)
                    self._write(descriptor, view[:count], start)
                self._deliver(Piece(start, buffer, count))
        except BaseException as error:
            with self._changed:
                self._failure = self._failure or error
                self._changed.notify_all()
        finally:
            os.close(descriptor)
            reader.close()

    def _open(self, reader: Reader) -> None:
        answer = self._persist(lambda: self._first_answer(reader))
        with self._changed:
            self._head, self._end = answer, answer.size
            self._changed.notify_all()

    def _first_answer(self, reader: Reader) -> RangeResponse:
        if self._begun is not None:
            try:
                return reader.ask(self._begun)
            except RangesGone as error:
                raise SourceChanged(str(error)) from error
        try:
            answer = reader.ask(RangeRequest(0, self._settings.range_bytes))
        except SourceChanged:
            # 416: no first byte, so the object is empty, or the server cannot count.
            return reader.ask(RangeRequest())
        if answer.ranged or answer.length == answer.size:
            return answer
        reader.close()
        return reader.ask(RangeRequest())

    def _take(self) -> tuple[int, mmap.mmap] | None:
        """The next range and a buffer for it, or None when there is no more to do."""
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._is_over())
            if self._is_over():
                return None
            start = self._next
            self._next += self._settings.range_bytes
            return start, self._free.pop()

    def _is_over(self) -> bool:
        past_end = self._end is not None and self._next >= self._end
        return past_end or self._failure is not None or self._stopping.is_set()

    def _fill(self, reader: Reader, descriptor: int, view: memoryview, start: int) -> int:
        """Bring the bytes from `start` on, to the end of the view or the object, over as many answers as it takes.

        If that cannot be done, what has come is written nevertheless: on a slow line it may be all there is.
        """
        head = self._head
        assert head is not None
        wanted = len(view) if self._end is None else min(len(view), self._end - start)
        filled = 0

        def go_on() -> int:
            nonlocal filled
            asked = time.monotonic()
            if head.ranged and reader.at != start + filled:
                reader.ask(RangeRequest(start + filled, start + wanted, head.etag, head.size))
            answered = time.monotonic()
            while filled < wanted and (count := reader.read_into(view[filled:wanted])):
                filled += count
            if filled < wanted and self._end is not None:
                raise SourceUnavailable(f"{self._where}: the server sent {wanted - filled} bytes less than it said")
            self._learn(answered - asked, time.monotonic() - answered)
            return filled

        if not head.ranged:
            return go_on()
        try:
            return self._persist(go_on, lambda: filled)
        except BaseException:
            self._write(descriptor, view[:filled], start)
            self._parts[start] = filled
            raise

    def _persist(self, call: Callable[[], Result], progress: Callable[[], int] = lambda: 0) -> Result:
        """Call until it works, with growing pauses, as long as it brings something or has tries left."""
        failures = 0
        while True:
            before = progress()
            try:
                return call()
            except SourceUnavailable as error:
                failures = 1 if progress() - before >= _ENOUGH_BYTES else failures + 1
                if failures >= self._settings.tries and isinstance(error.__cause__, AccessDenied):
                    raise error.__cause__ from None  # no address that was asked for afresh is good any more
                if failures >= self._settings.tries or self._stopping.wait(self._pause(failures, error)):
                    raise

    def _pause(self, failures: int, error: SourceUnavailable) -> float:
        asked = min(error.wait, self._settings.wait_most_seconds) if isinstance(error, Busy) else 0.0
        # A connection that the other side has closed while it was idle is nothing to wait for.
        own = self._settings.backoff_seconds * 2 ** (failures - 2) * random.uniform(0.5, 1.0) if failures > 1 else 0.0
        return max(asked, min(own, self._settings.backoff_most_seconds))

    def _write(self, descriptor: int, view: memoryview, start: int) -> None:
        try:
            # One at a time: writers of one file would spin for the lock of its inode, which took twice the time.
            with self._writing:
                _write_all(descriptor, view, start)
            _start_writeback(descriptor, start, len(view))
        except OSError as error:
            self._file.tell_full(error, self._head.size if self._head else None)

    def _deliver(self, piece: Piece) -> None:
        with self._changed:
            if self._end is None and piece.count < self._settings.range_bytes:
                self._end = piece.start + piece.count
            if piece.count:
                self._ready[piece.start] = piece
            self._changed.notify_all()

    def _learn(self, waited: float, moved: float) -> None:
        with self._changed:
            latency = max(0.0, waited - _BUSY_SECONDS)
            self._wait_per_move += 0.2 * (min(latency / max(moved, 0.001), 16.0) - self._wait_per_move)


def _write_all(descriptor: int, view: memoryview, start: int) -> None:
    while view:
        count = os.pwrite(descriptor, view, start)
        view, start = view[count:], start + count


def _start_writeback(descriptor: int, start: int, count: int) -> None:
    """The disk is busy from the first bytes on, so that the sync at the end waits only for the last.

    Nothing is promised, so nothing is asked: whether it was written, that sync will tell.
    """
    _libc.sync_file_range(descriptor, ctypes.c_int64(start), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)
