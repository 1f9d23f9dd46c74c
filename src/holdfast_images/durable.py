"""Writes to the disk while others still write to memory, so that the sync at the end has little left to wait for."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path


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


# --- What was written is on disk, or OSError says why not -----------------------------------------------

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def sync_file_system(place: int | Path) -> None:
    """Everything in the file system of this directory, which may be a descriptor.

    A write that has failed in the background is told here, once to each open file.
    """
    import ctypes  # noqa: PLC0415 - slow to import, and for writers only

    descriptor = place if isinstance(place, int) else os.open(place, _DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        if descriptor is not place:
            os.close(descriptor)


def sync_directory(path: Path) -> None:
    """The names in a directory."""
    descriptor = os.open(path, _DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_block_device(node: str) -> None:
    """Everything on a block device; of a thin one, the pool's own bookkeeping of it, too."""
    descriptor = os.open(node, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_all(file: int, content: bytes | memoryview, start: int = 0) -> None:
    """All of it: a disk that is nearly full takes a part, and only then says that it is full."""
    written = os.pwrite(file, content, start)
    while written < len(content):
        content, start = content[written:], start + written
        written = os.pwrite(file, content, start)
