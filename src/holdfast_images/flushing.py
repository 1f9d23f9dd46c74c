"""Writes to the disk while others still write to memory, so that the sync at the end has little left to wait for."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from holdfast_images.syncing import sync_file_system

FLUSH_EVERY = 0.5
"""Seconds between two rounds: often enough to keep a disk busy, and each round is as long as the disk takes."""


class Flusher:
    """Syncs the file system of a directory again and again, in a thread, as long as the `with` block lasts.

    It promises nothing: what is on the disk is known only when a sync that was begun after the last write has ended.
    """

    def __init__(self, directory: int) -> None:
        # Opened again, not duplicated: a failed write is told once to each open file, and the sync at the end
        # must be told of it as well.
        self._descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=directory)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-flush", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_EVERY):
            try:
                sync_file_system(self._descriptor)
            except OSError:
                return  # told again by the sync at the end, to whoever can make something of it
