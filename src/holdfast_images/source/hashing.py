"""SHA-256 of files, fast and in flat memory, and the fingerprint that tells when it must be taken again."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from holdfast_images.model import Fingerprint

__all__ = ["Fingerprint", "fingerprint_of", "hash_file", "hash_range"]

_BUFFER_BYTES = 1 << 20


def fingerprint_of(file: Path | str | int) -> Fingerprint:
    """The fingerprint of a file, by its path or descriptor."""
    status = os.stat(file)
    return Fingerprint(status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def hash_file(
    file: Path | str | int,
    check: Callable[[], None] | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> str:
    """SHA-256 of a file, from its first byte to its last, by its path or descriptor."""
    if not isinstance(file, int):
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return hash_file(descriptor, check, on_progress)
        finally:
            os.close(descriptor)
    digest = hashlib.sha256()
    hash_range(file, digest, 0, os.fstat(file).st_size, check, on_progress)
    return digest.hexdigest()


def hash_range(
    descriptor: int,
    digest: hashlib._Hash,
    start: int,
    stop: int,
    check: Callable[[], None] | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> None:
    """Add the bytes of a file from `start` up to, not including, `stop`, or to its end if that comes before."""
    os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_SEQUENTIAL)
    # Page-aligned and used again: into fresh or unaligned memory the same reads take twice as long.
    with mmap.mmap(-1, _BUFFER_BYTES) as buffer, memoryview(buffer) as view:
        done = start
        while count := os.preadv(descriptor, [view[: stop - done]], done) if done < stop else 0:
            digest.update(view[:count])
            done += count
            if check is not None:
                check()
            if on_progress is not None:
                on_progress(done, stop)
