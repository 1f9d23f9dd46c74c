"""The next buffers are filled by a thread while the last one is being used."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from queue import SimpleQueue

BUFFERS = 3
"""One is in use, one is full, one is being filled: more would only leave the processor's cache."""


class ReadAhead:
    """Hands out buffers in the order in which `fill` has filled them; `fill` says how far, and 0 at the end.

    What `fill` raises is raised by next(), when all that came before it was handed out.
    """

    def __init__(self, fill: Callable[[memoryview], int], size: int) -> None:
        self._fill = fill
        self._free: SimpleQueue[memoryview | None] = SimpleQueue()
        self._filled: SimpleQueue[tuple[memoryview, int] | BaseException] = SimpleQueue()
        self._used: memoryview | None = None
        self._last: tuple[memoryview, int] | BaseException | None = None
        for _ in range(BUFFERS):
            self._free.put(memoryview(mmap.mmap(-1, size)))
        self._thread = threading.Thread(target=self._run, name="holdfast-read-ahead", daemon=True)
        self._thread.start()

    def next(self) -> tuple[memoryview, int]:
        """The next buffer and how much is in it; the one handed out before is filled anew."""
        if self._used is not None:
            self._free.put(self._used)
            self._used = None
        got = self._filled.get() if self._last is None else self._last
        if isinstance(got, BaseException):
            self._last = got
            raise got
        if got[1]:
            self._used = got[0]
        else:
            self._last = got
        return got

    def close(self) -> None:
        """End the thread, whatever it has read."""
        self._free.put(None)
        self._thread.join()

    def _run(self) -> None:
        filled = 1
        while filled and (buffer := self._free.get()) is not None:
            try:
                filled = self._fill(buffer)
            except BaseException as error:
                self._filled.put(error)
                return
            self._filled.put((buffer, filled))
