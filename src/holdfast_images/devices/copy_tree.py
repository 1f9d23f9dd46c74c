"""A faithful copy of a file: content, owner, mode, times, extended attributes and holes.

Files are cloned (FICLONE) where the file system can: then the copy shares its blocks until one of both is written to.
Cloned or not, each is read, and its digest told: nothing is copied that nobody has looked at.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

import msgspec

from holdfast_images.devices.lock import DIRECTORY, crash_point, open_below
from holdfast_images.devices.manifest import (
    LABELS,
    READ,
    ContentManifest,
    FileReader,
    another_name,
    attributes_of,
    below,
    entries_of,
    readable,
    record_of,
    searchable,
    special_content,
)
from holdfast_images.devices.protocol import Usage
from holdfast_images.durable import write_all
from holdfast_images.errors import DeviceBusy
from holdfast_images.spawn import BatchGiver, do_batches, widen

FICLONE = 0x40049409
MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS}


class FileCopier:
    """Copies files between directories; knows what it has learned about them."""

    def __init__(self) -> None:
        self._can_clone = True
        self._reader = FileReader()
        self._umask = _umask()
        self.owner = (os.geteuid(), os.getegid())
        """Whose everything is that is made here."""

    def copy(self, source: int, name: str, there: os.stat_result, copy: int) -> tuple[bytes, bytes]:
        """A regular file from one directory to another; the digest of what is in the copy, and its attributes."""
        made_with = there.st_mode & 0o777 & ~self._umask | 0o600
        target = os.open(name, MAKE, made_with, dir_fd=copy)
        try:
            with readable(source, name, there, READ) as origin:
                content = self._copy_content(origin, target, there.st_size)
                attributes = attributes_of(origin)
                self.finish(origin, target, there, made_with)
        finally:
            os.close(target)
        return content, attributes

    def finish(self, origin: int, target: int, there: os.stat_result, mode: int) -> None:
        """What is told about it; it was made with this mode."""
        # Owner before mode and attributes: a change of owner takes setuid bits and capabilities away.
        if (there.st_uid, there.st_gid) != self.owner:
            os.fchown(target, there.st_uid, there.st_gid)
        for attribute in os.listxattr(origin):
            _copy_attribute(origin, target, attribute)
        if stat.S_IMODE(there.st_mode) != mode:
            os.fchmod(target, stat.S_IMODE(there.st_mode))
        os.utime(target, ns=(there.st_atime_ns, there.st_mtime_ns))

    def _copy_content(self, origin: int, target: int, size: int) -> bytes:
        if size and self._clone(origin, target):
            return self._reader.digest(target, size)  # of what will be found there
        digest = self._reader.digest(origin, size, lambda read, start: write_all(target, read, start))
        if os.fstat(target).st_size < size:
            os.ftruncate(target, size)  # it ends with a hole
        return digest

    def _clone(self, origin: int, target: int) -> bool:
        if self._can_clone:
            try:
                fcntl.ioctl(target, FICLONE, origin)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._can_clone = False
        return self._can_clone


def _copy_attribute(origin: int, target: int, attribute: str) -> None:
    value = os.getxattr(origin, attribute)
    try:
        os.setxattr(target, attribute, value)
    except OSError as error:
        if attribute not in LABELS or error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP):
            raise


def _umask() -> int:
    """Of this process. Asked of /proc, because os.umask() tells it only by changing it under all threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o777


# --- A faithful copy of a tree: everything of each file, directories, links of both kinds, special files ---
#
# Of a large tree a second process copies a part of the files.

UNFINISHED_MODE = 0o700


def copy_tree(source_parent: int, target_parent: int, name: str, *, worth_two: int) -> tuple[str, Usage]:
    """Copy a directory from one directory to another. The digest of its manifest, as it was read, and what it holds.

    With more files than `worth_two`, root has two processes copy them, where there are two processors.

    Crash: a part of the copy is left under `name`. A second process ends within moments; until then it holds the locks
    on both parents, if the descriptors given have any.
    """
    copier = _Copier(source_parent, target_parent, name, worth_two)
    try:
        there = os.stat(name, dir_fd=source_parent, follow_symlinks=False)
        copier.copy_directory(source_parent, name, there, target_parent, name, b"")
        copier.finish()
    finally:
        copier.close()
    return copier.manifest.digest(), copier.manifest.tally.usage()


class _Copier:
    def __init__(self, source_parent: int, target_parent: int, name: str, worth_two: int) -> None:
        self.manifest = ContentManifest()
        self._source_parent = source_parent
        self._parent = target_parent
        self._name = name
        self._files = FileCopier()
        self._second: SecondCopier | None = None
        self._open: list[int] = []
        """Places in the manifest of the files that the second process was given, in their order."""
        self._shared: set[str] = set()
        """Directories of which the second process was given files."""
        self._unfinished: list[tuple[str, os.stat_result]] = []
        # Who is not root may have to change the mode of a directory to get into it, which two cannot do at a time.
        self._may_be_two = os.geteuid() == 0 and len(os.sched_getaffinity(0)) > 1
        self._worth_two = worth_two

    def copy_directory(
        self, source_parent: int, name: str, there: os.stat_result, parent: int, path: str, known_as: bytes
    ) -> None:
        """`path` leads to it from the parent of all; the manifest knows it as a path below the top."""
        os.mkdir(name, UNFINISHED_MODE, dir_fd=parent)
        copy = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            with searchable(source_parent, name, there) as source:
                self.manifest.add(known_as, there, b"", attributes_of(source))
                for raw, entry, attributes in entries_of(source):
                    self.manifest.tally.add(attributes)
                    self._copy_entry(source, entry, attributes, copy, path, below(known_as, raw))
                crash_point("snapshot.half-copied")
                if path in self._shared:
                    self._unfinished.append((path, there))  # there may be files to come
                else:
                    self._files.finish(source, copy, there, UNFINISHED_MODE)
        finally:
            os.close(copy)

    def finish(self) -> None:
        """The second process has copied what it was given; then the directories get their modes and times."""
        if self._second is not None:
            self._second.settle()
            for place, record in zip(self._open, self._second.records, strict=True):
                self.manifest.put_in(place, record)
        for path, there in self._unfinished:
            source, copy = (open_below(parent, os.fsencode(path)) for parent in (self._source_parent, self._parent))
            try:
                self._files.finish(source, copy, there, UNFINISHED_MODE)
            finally:
                os.close(copy)
                os.close(source)

    def close(self) -> None:
        """Nobody copies any more, whether it is all done or not."""
        if self._second is not None:
            self._second.close()

    def _copy_entry(self, source: int, name: str, there: os.stat_result, copy: int, path: str, known_as: bytes) -> None:
        mode = there.st_mode
        if stat.S_ISDIR(mode):
            self.copy_directory(source, name, there, copy, f"{path}/{name}", known_as)
        elif (first := self.manifest.first_name(known_as, there)) is not None:
            self._link(first, copy, name)
            self.manifest.add(known_as, there, another_name(first))
        elif stat.S_ISREG(mode) and there.st_nlink == 1 and self._is_given(path, name, known_as):
            self._open.append(self.manifest.leave_open())
        elif stat.S_ISREG(mode):
            self.manifest.add(known_as, there, *self._files.copy(source, name, there, copy))
        else:
            self.manifest.add(known_as, there, *special_content(source, name, there))
            self._copy_special(source, name, there, copy)

    def _link(self, first: bytes, copy: int, name: str) -> None:
        path, _, first_name = first.rpartition(b"/")
        # Every directory on the way was made by us: there is no symlink to follow.
        parent = open_below(self._parent, below(os.fsencode(self._name), path) if path else os.fsencode(self._name))
        try:
            os.link(os.fsdecode(first_name), name, src_dir_fd=parent, dst_dir_fd=copy, follow_symlinks=False)
        finally:
            os.close(parent)

    def _is_given(self, path: str, name: str, known_as: bytes) -> bool:
        """Does the second process copy this file?"""
        if self._second is None:
            if not self._may_be_two or self.manifest.tally.files < self._worth_two:
                return False
            try:
                self._second = SecondCopier(self._source_parent, self._parent)
            except OSError:
                self._may_be_two = False  # there is no process to be had
                return False
        if not self._second.takes():
            return False
        self._second.add(GivenCopies(os.fsencode(path), os.fsencode(name), known_as))
        self._shared.add(path)
        return True

    def _copy_special(self, source: int, name: str, there: os.stat_result, copy: int) -> None:
        if stat.S_ISLNK(there.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=copy)
        else:
            os.mknod(name, there.st_mode, there.st_rdev, dir_fd=copy)
        if (there.st_uid, there.st_gid) != self._files.owner:
            os.chown(name, there.st_uid, there.st_gid, dir_fd=copy, follow_symlinks=False)
        origin_path, copy_path = f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{copy}/{name}"
        for attribute in os.listxattr(origin_path, follow_symlinks=False):
            value = os.getxattr(origin_path, attribute, follow_symlinks=False)
            os.setxattr(copy_path, attribute, value, follow_symlinks=False)
        if not stat.S_ISLNK(there.st_mode):
            os.chmod(name, stat.S_IMODE(there.st_mode), dir_fd=copy)
        os.utime(name, ns=(there.st_atime_ns, there.st_mtime_ns), dir_fd=copy, follow_symlinks=False)


# --- A second process that copies files of the same tree ------------------------------------------------


class GivenCopies(msgspec.Struct, array_like=True, gc=False):
    """A file to be copied, in directories that are there, under the same path in both trees."""

    path: bytes
    name: bytes
    known_as: bytes
    """Its path in the manifest."""


class Copied(msgspec.Struct, frozen=True, tag="copied"):
    """One more batch is copied; the records of its files, for the manifest."""

    records: list[bytes] = []


class CopyFailed(msgspec.Struct, frozen=True, tag="failed"):
    """It cannot go on: by an error of the system, or, with none, because of what it found."""

    errno: int
    message: str


class SecondCopier(BatchGiver[Copied | CopyFailed]):
    """The first process's end of it.

    Crash: it ends when nobody can give it anything any more, and holds both directories, with their locks, until then.
    """

    def __init__(self, source: int, target: int) -> None:
        # The second process itself has no use for it.
        from holdfast_images.spawn import start_python  # noqa: PLC0415

        self._process = start_python(__name__, f"{source} {target}", descriptors=(source, target), listens=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        widen(self._process.stdin.fileno())
        self.records: list[bytes] = []
        """Of everything that it has copied so far, in the order in which it was given."""
        super().__init__(self._process.stdin.fileno(), self._process.stdout.fileno(), Copied | CopyFailed)

    def close(self) -> None:
        """End it, and wait for that; what it was given and has not done is not done."""
        self._process.kill()
        self._process.communicate()

    def _meant(self, answer: Copied | CopyFailed) -> Exception | None:
        if isinstance(answer, Copied):
            self.records += answer.records
            return None
        if answer.errno:
            return OSError(answer.errno, answer.message)
        return DeviceBusy(answer.message, hint="it will be tried again")

    def _gone(self) -> Exception:
        return DeviceBusy("the second process that copies has ended", hint="it will be tried again")


def main(argument: str) -> None:
    """The second process: its words are the descriptors of both directories."""
    source, target = map(int, argument.split())
    do_batches(0, 1, GivenCopies, _GivenCopier(source, target).copy)


class _GivenCopier:
    def __init__(self, source: int, target: int) -> None:
        self._parents = (source, target)
        self._files = FileCopier()
        self._path = b""
        self._here = self._parents

    def copy(self, files: list[GivenCopies]) -> tuple[Copied | CopyFailed, bool]:
        """Copy a batch."""
        records = []
        try:
            for file in files:
                if file.path != self._path:
                    self._go_to(file.path)
                source, target = self._here
                name = os.fsdecode(file.name)
                there = os.stat(name, dir_fd=source, follow_symlinks=False)
                records.append(record_of(file.known_as, there, *self._files.copy(source, name, there, target)))
        except DeviceBusy as error:
            return CopyFailed(0, str(error)), False
        except OSError as error:
            return CopyFailed(error.errno or 0, error.strerror or str(error)), False
        return Copied(records), True

    def _go_to(self, path: bytes) -> None:
        if self._here is not self._parents:
            for descriptor in self._here:
                os.close(descriptor)
        source, target = (open_below(parent, path) for parent in self._parents)
        self._path, self._here = path, (source, target)
