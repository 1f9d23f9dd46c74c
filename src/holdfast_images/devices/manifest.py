"""What a file is, byte for byte: its content with its holes, its extended attributes and its flags."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256

import msgspec

from holdfast_images.devices.lock import DIRECTORY, crash_point
from holdfast_images.devices.protocol import Usage
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


# --- Removal of a tree that anybody may have filled: by descriptors, through no symlink, over no mount ---

DEEPEST = 64


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory and everything in it. Crash: less is left of it; to be repeated.

    However deep it is: what is deeper than so many levels is moved up first, so few descriptors are open at once.
    """
    _allow(parent, name)
    top = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        clear_flags(top)
        device = os.fstat(top).st_dev
        moved = 0
        while True:
            remover = _Remover(top, device, moved)
            remover.empty(top, 0)
            if remover.moved == moved:
                break
            moved = remover.moved
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


class _Remover:
    def __init__(self, top: int, device: int, moved: int) -> None:
        self._top = top
        self._device = device
        self.moved = moved

    def empty(self, directory: int, depth: int) -> None:
        # The names first: a directory that changes while it is read may leave some out.
        with os.scandir(directory) as entries:
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for name, is_directory in names:
            if not is_directory:
                _unlink(directory, name)
            elif depth == DEEPEST:
                self._move_up(directory, name)
            else:
                self._remove(directory, name, depth)

    def _remove(self, parent: int, name: str, depth: int) -> None:
        _allow(parent, name)
        directory = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            if os.fstat(directory).st_dev != self._device:
                raise DeviceBusy(f"something is mounted on {name}", hint="unmount it; what it holds was not touched")
            clear_flags(directory)
            self.empty(directory, depth + 1)
        finally:
            os.close(directory)
        os.rmdir(name, dir_fd=parent)
        crash_point("delete.half-removed")

    def _move_up(self, parent: int, name: str) -> None:
        _allow(parent, name)
        while True:
            self.moved += 1
            try:
                os.rename(name, f".deep-{self.moved}", src_dir_fd=parent, dst_dir_fd=self._top)
            except OSError as error:
                # The name is taken: by a file, or by a directory with something in it.
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
            else:
                return


def _unlink(directory: int, name: str) -> None:
    """Also what somebody has made immutable (chattr +i)."""
    try:
        os.unlink(name, dir_fd=directory)
    except PermissionError:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not clear_flags(file):
                raise
        finally:
            os.close(file)
        os.unlink(name, dir_fd=directory)


def _allow(parent: int, name: str) -> None:
    """Give ourselves the right to empty a directory that forbids it; root needs none."""
    if os.geteuid() == 0:
        return
    there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISDIR(there.st_mode) and there.st_mode & 0o700 != 0o700:
        change_mode(parent, name, 0o700)


def change_mode(parent: int, name: str, mode: int) -> None:
    """chmod of a name that may be unreadable, and is never followed if it is a symlink."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", mode)
    finally:
        os.close(descriptor)


# --- What a tree is: one digest of everything in it -----------------------------------------------------
#
# Names, kinds, modes, owners, sizes, times, link targets, the content of files with their holes, extended attributes,
# access control lists, flags, and which names are those of one file.

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


class ContentManifest:
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
        self.manifest = ContentManifest()
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
