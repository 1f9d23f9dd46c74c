"""What a file is, byte for byte: its content with its holes, its extended attributes and its flags."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Iterator
from hashlib import sha256

from holdfast_images.errors import DeviceBusy

SMALL = 1 << 20
GET_FLAGS = 0x80086601
SET_FLAGS = 0x40086602
IMMUTABLE, APPEND_ONLY = 0x10, 0x20
FLAGS = 0x8 | IMMUTABLE | APPEND_ONLY | 0x40 | 0x80 | 0x10000 | 0x100000 | 0x40000000
"""Synchronous, immutable, append-only, no dump, no atime, synchronous directory, verity, case-folding. The others are
the file system's own affair: how it lays a file out, or that a directory has grown an index."""
LABELS = frozenset({"security.selinux", "security.ima", "security.evm"})
"""Put on files by the host's security modules, by their own rules: they are not the image's."""
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS}
_PIECE = struct.Struct("=QQ")


def pieces(file: int, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of what lies between the holes of a file."""
    position = 0
    while position < size:
        try:
            start = os.lseek(file, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            if error.errno not in _CANNOT:
                raise
            yield position, size
            return
        if start >= size:
            return
        position = min(os.lseek(file, start, os.SEEK_HOLE), size)
        yield start, position


class FileReader:
    """Reads files through, one at a time; what it has read may be taken on the way."""

    def __init__(self) -> None:
        self._buffer: memoryview | None = None

    def digest(self, file: int, size: int, take: Callable[[bytes | memoryview, int], None] | None = None) -> bytes:
        """Of the content, holes and all. `take` gets what was read and where, before the next is read.

        Raises DeviceBusy if the file becomes shorter meanwhile.
        """
        if not size:
            return b""
        hashed = sha256()
        for start, end in pieces(file, size):
            hashed.update(_PIECE.pack(start, end))
            at = start
            while at < end:
                read = self._read(file, at, end)
                if not read:
                    raise DeviceBusy("a file became shorter while it was read", hint="it will be tried again")
                hashed.update(read)
                if take is not None:
                    take(read, at)
                at += len(read)
        return hashed.digest()

    def _read(self, file: int, start: int, end: int) -> bytes | memoryview:
        if end - start <= SMALL:
            return os.pread(file, end - start, start)
        if self._buffer is None:
            # Page-aligned and used again: into fresh memory the same reads take twice as long.
            self._buffer = memoryview(mmap.mmap(-1, SMALL))
        return self._buffer[: os.preadv(file, [self._buffer[: min(SMALL, end - start)]], start)]


def attributes_of(file: int | str) -> bytes:
    """Extended attributes, access control lists among them, and flags; by descriptor, or a path that is not followed.

    What has no descriptor, a symlink or a special file, has no flags.
    """
    follow = isinstance(file, int)
    found = bytearray()
    for name in sorted(os.listxattr(file, follow_symlinks=follow)):
        if name not in LABELS:
            raw, value = os.fsencode(name), os.getxattr(file, name, follow_symlinks=follow)
            found += b"%d %s%d %s" % (len(raw), raw, len(value), value)
    if isinstance(file, int) and (flags := flags_of(file) & FLAGS):
        found += b"flags %d" % flags
    return bytes(found)


def flags_of(file: int) -> int:
    """As lsattr shows them; none where the file system has none."""
    try:
        return int.from_bytes(fcntl.ioctl(file, GET_FLAGS, bytes(8))[:4], "little")
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return 0


def clear_flags(file: int) -> bool:
    """Let it be changed and removed again; False if nothing kept it from that, or it cannot be."""
    flags = flags_of(file)
    if not flags & (IMMUTABLE | APPEND_ONLY):
        return False
    try:
        fcntl.ioctl(file, SET_FLAGS, (flags & ~(IMMUTABLE | APPEND_ONLY)).to_bytes(8, "little"))
    except OSError:
        return False
    return True
