"""The digest of a part of a file, taken of the very bytes that others make use of, as they are read."""

from __future__ import annotations

import hashlib
import mmap
import os

from holdfast_images.errors import ChecksumMismatch

PIECE = 256 << 10


class FileHash:
    """Hashes what is read of a window, front to back, and by itself what the readers leave out."""

    def __init__(self, fd: int, start: int, length: int, algorithm: str = "sha256") -> None:
        self._fd = fd
        self._at = start
        self._end = start + length
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm)

    @classmethod
    def of_file(cls, fd: int) -> FileHash:
        """Of all of it."""
        return cls(fd, 0, os.fstat(fd).st_size)

    def saw(self, offset: int, read: bytes | memoryview) -> None:
        """These bytes were read there. Nobody goes back: what came before has been hashed."""
        self._hash_up_to(offset)
        assert offset == self._at, "a part of the archive was read twice"
        self._hash.update(read)
        self._at += len(read)

    def refuse_other(self, expected: str, what: str) -> None:
        """Raise ChecksumMismatch unless the window has this digest, whose algorithm is in front of it."""
        self._hash_up_to(self._end)
        found = f"{self._algorithm}:{self._hash.hexdigest()}"
        if found != expected:
            raise ChecksumMismatch(
                f"{what} changed while it was unpacked: it has {found}, and {expected} was verified",
                hint="process the image again: it will be downloaded",
            )

    def _hash_up_to(self, offset: int) -> None:
        if self._at >= min(offset, self._end):
            return
        with mmap.mmap(-1, PIECE) as memory, memoryview(memory) as buffer:
            while self._at < min(offset, self._end):
                got = os.preadv(self._fd, [buffer[: min(PIECE, min(offset, self._end) - self._at)]], self._at)
                if not got:
                    return  # it has become shorter: another digest
                self._hash.update(buffer[:got])
                self._at += got
