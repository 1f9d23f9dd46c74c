"""What a tree looks like from outside: one digest of names, kinds, modes, owners, sizes, times and link targets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import msgspec

from holdfast_images.devices.locking import DIRECTORY
from holdfast_images.devices.protocol import Usage
from holdfast_images.devices.removing import change_mode


class Tally(msgspec.Struct):
    """Counted on the way through a tree; files with several names are counted once."""

    files: int = 0
    apparent_bytes: int = 0
    used_bytes: int = 0
    linked: set[int] = msgspec.field(default_factory=set)

    def add(self, there: os.stat_result) -> None:
        """Count one entry."""
        self.files += 1
        if there.st_nlink > 1 and not stat.S_ISDIR(there.st_mode):
            if there.st_ino in self.linked:
                return
            self.linked.add(there.st_ino)
        if stat.S_ISREG(there.st_mode):
            self.apparent_bytes += there.st_size
        self.used_bytes += there.st_blocks * 512

    def usage(self) -> Usage:
        """As it is told."""
        return Usage(files=self.files, apparent_bytes=self.apparent_bytes, used_bytes=self.used_bytes)


def manifest_of(parent: int, name: str) -> tuple[str, Usage]:
    """The digest of the tree under a name, and what it holds."""
    tally = Tally()
    there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    return _digest_of(parent, name, there, tally).hex(), tally.usage()


def entries_of(directory: int) -> list[tuple[bytes, str, os.stat_result]]:
    """(name as bytes, name, attributes) of everything in a directory, in the order of a manifest."""
    with os.scandir(directory) as entries:
        return sorted((os.fsencode(entry.name), entry.name, entry.stat(follow_symlinks=False)) for entry in entries)


def record_of(name: bytes, there: os.stat_result, content: bytes) -> bytes:
    """One entry as it goes into the digest of its directory. No field can hide in its neighbour: the name is last."""
    mode = there.st_mode
    # What a directory weighs and how many names it has is the file system's affair.
    size = there.st_size if stat.S_ISREG(mode) else 0
    links = 1 if stat.S_ISDIR(mode) else there.st_nlink
    facts = f"{mode} {there.st_uid} {there.st_gid} {size} {there.st_mtime_ns} {links} {there.st_rdev} "
    return b"%s%d %s %d %s" % (facts.encode(), len(content), content, len(name), name)


def digest_records(records: list[bytes]) -> bytes:
    """Of the entries of a directory."""
    return sha256(b"".join(records)).digest()


@contextmanager
def readable(parent: int, name: str, there: os.stat_result, flags: int) -> Iterator[int]:
    """Open what its owner has made unreadable for himself; it gets its mode back. Root needs none of this.

    Crash: it keeps the wider mode, and a deep verification says so.
    """
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        wider = stat.S_IMODE(there.st_mode) | (0o500 if stat.S_ISDIR(there.st_mode) else 0o400)
        change_mode(parent, name, wider)
        try:
            descriptor = os.open(name, flags, dir_fd=parent)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
        finally:
            change_mode(parent, name, stat.S_IMODE(there.st_mode))
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def searchable(parent: int, name: str, there: os.stat_result) -> Iterator[int]:
    """A directory to be walked: readable is not enough, its entries must be reachable too."""
    if os.geteuid() != 0 and there.st_mode & 0o500 == 0o400:
        change_mode(parent, name, stat.S_IMODE(there.st_mode) | 0o500)
        try:
            with readable(parent, name, there, DIRECTORY) as descriptor:
                yield descriptor
        finally:
            change_mode(parent, name, stat.S_IMODE(there.st_mode))
        return
    with readable(parent, name, there, DIRECTORY) as descriptor:
        yield descriptor


def _digest_of(parent: int, name: str, there: os.stat_result, tally: Tally) -> bytes:
    records = []
    with searchable(parent, name, there) as directory:
        for raw, entry, attributes in entries_of(directory):
            tally.add(attributes)
            content = b""
            if stat.S_ISDIR(attributes.st_mode):
                content = _digest_of(directory, entry, attributes, tally)
            elif stat.S_ISLNK(attributes.st_mode):
                content = os.fsencode(os.readlink(entry, dir_fd=directory))
            records.append(record_of(raw, attributes, content))
    records.append(record_of(b"", there, b""))
    return digest_records(records)
