"""What a tree is: one digest of everything in it.

Names, kinds, modes, owners, sizes, times, link targets, the content of files with their holes, extended attributes,
access control lists, flags, and which names are those of one file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

import msgspec

from holdfast_images.devices.file_digest import FileReader, attributes_of
from holdfast_images.devices.locking import DIRECTORY
from holdfast_images.devices.protocol import Usage
from holdfast_images.devices.removing import change_mode

READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


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


class Manifest:
    """The digest of a tree, entry by entry, in the order of `entries_of`, a directory before what is in it."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._entries: list[bytes] = []
        self._first_names: dict[int, bytes] = {}

    def add(self, path: bytes, there: os.stat_result, content: bytes, attributes: bytes = b"") -> None:
        """The next entry, with the digest of its content."""
        self._entries.append(record_of(path, there, content, attributes))

    def leave_open(self) -> int:
        """The next entry, whose record will be put in later."""
        self._entries.append(b"")
        return len(self._entries) - 1

    def put_in(self, place: int, record: bytes) -> None:
        """The record of an entry that was left open."""
        self._entries[place] = record

    def first_name(self, path: bytes, there: os.stat_result) -> bytes | None:
        """Where a file with several names was met before; None if this is the first of them, or the only one."""
        if there.st_nlink == 1 or stat.S_ISDIR(there.st_mode):
            return None
        first = self._first_names.setdefault(there.st_ino, path)
        return first if first != path else None

    def digest(self) -> str:
        """Of all entries."""
        return sha256(b"".join(self._entries)).hexdigest()


def manifest_of(parent: int, name: str) -> tuple[str, Usage]:
    """The digest of the tree under a name, and what it holds. Reads every byte of it."""
    walk = _Walk()
    there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    walk.directory(parent, name, there, b"")
    return walk.manifest.digest(), walk.manifest.tally.usage()


def usage_of(parent: int, name: str) -> Usage:
    """What the tree under a name holds. Reads no file."""
    tally = Tally()

    def count(parent: int, name: str, there: os.stat_result) -> None:
        with searchable(parent, name, there) as directory:
            for _, entry, attributes in entries_of(directory):
                tally.add(attributes)
                if stat.S_ISDIR(attributes.st_mode):
                    count(directory, entry, attributes)

    count(parent, name, os.stat(name, dir_fd=parent, follow_symlinks=False))
    return tally.usage()


def entries_of(directory: int) -> list[tuple[bytes, str, os.stat_result]]:
    """(name as bytes, name, attributes) of everything in a directory, in the order of a manifest."""
    with os.scandir(directory) as entries:
        return sorted((os.fsencode(entry.name), entry.name, entry.stat(follow_symlinks=False)) for entry in entries)


def below(path: bytes, name: bytes) -> bytes:
    """The path of an entry of a directory; the root's own is empty."""
    return path + b"/" + name if path else name


def record_of(path: bytes, there: os.stat_result, content: bytes, attributes: bytes) -> bytes:
    """One entry as it goes into the digest. No field can hide in its neighbour: all say how long they are."""
    mode = there.st_mode
    # What a directory weighs and how many names it has is the file system's affair.
    size = there.st_size if stat.S_ISREG(mode) else 0
    links = 1 if stat.S_ISDIR(mode) else there.st_nlink
    facts = f"{mode} {there.st_uid} {there.st_gid} {size} {there.st_mtime_ns} {links} {there.st_rdev} "
    fields = (facts.encode(), content, attributes, path)
    return sha256(b"".join(b"%d %s" % (len(field), field) for field in fields)).digest()


def another_name(first: bytes) -> bytes:
    """The content of an entry that is one more name of a file."""
    return b"also " + first


def special_content(directory: int, name: str, there: os.stat_result) -> tuple[bytes, bytes]:
    """(content, attributes) of what is neither directory nor regular file."""
    content = os.fsencode(os.readlink(name, dir_fd=directory)) if stat.S_ISLNK(there.st_mode) else b""
    return content, attributes_of(f"/proc/self/fd/{directory}/{name}")


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


class _Walk:
    def __init__(self) -> None:
        self.manifest = Manifest()
        self._reader = FileReader()

    def directory(self, parent: int, name: str, there: os.stat_result, path: bytes) -> None:
        with searchable(parent, name, there) as directory:
            self.manifest.add(path, there, b"", attributes_of(directory))
            for raw, entry, attributes in entries_of(directory):
                self.manifest.tally.add(attributes)
                if stat.S_ISDIR(attributes.st_mode):
                    self.directory(directory, entry, attributes, below(path, raw))
                else:
                    self._entry(directory, entry, attributes, below(path, raw))

    def _entry(self, directory: int, name: str, there: os.stat_result, path: bytes) -> None:
        if (first := self.manifest.first_name(path, there)) is not None:
            self.manifest.add(path, there, another_name(first))
        elif stat.S_ISREG(there.st_mode):
            with readable(directory, name, there, READ) as file:
                content = self._reader.digest(file, there.st_size)
                self.manifest.add(path, there, content, attributes_of(file))
        else:
            self.manifest.add(path, there, *special_content(directory, name, there))
