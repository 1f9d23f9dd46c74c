"""What was written is on disk, or OSError says why not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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
