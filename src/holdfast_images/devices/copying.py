"""A faithful copy of a tree: content, owner, mode, times, extended attributes, hard links, holes, special files.

Files are cloned (FICLONE) where the file system can: then the copy shares its blocks until one of both is written to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.locking import DIRECTORY
from holdfast_images.devices.manifest import Tally, digest_records, entries_of, readable, record_of, searchable
from holdfast_images.devices.protocol import Usage
from holdfast_images.errors import DeviceBusy

FICLONE = 0x40049409
SMALL = 1 << 20
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS}
# A security module puts its own label on what is made; where that cannot be chosen, it is not the image's.
_LABELS = {"security.selinux", "security.ima", "security.evm"}


def copy_tree(source_parent: int, source: str, target_parent: int, target: str) -> tuple[str, Usage]:
    """Copy a directory to a name that is free. The digest of its manifest, as it was read, and what it holds.

    Crash: a part of the copy is left under `target`.
    """
    copier = _Copier(target_parent)
    there = os.stat(source, dir_fd=source_parent, follow_symlinks=False)
    digest = copier.copy_directory(source_parent, source, there, target_parent, target, target)
    return digest.hex(), copier.tally.usage()


class _Copier:
    def __init__(self, target_parent: int) -> None:
        self.tally = Tally()
        self._parent = target_parent
        self._first_names: dict[int, str] = {}
        self._can_clone = True
        self._owner = (os.geteuid(), os.getegid())
        self._umask = _umask()

    def copy_directory(
        self, source_parent: int, name: str, there: os.stat_result, parent: int, target: str, path: str
    ) -> bytes:
        """The digest of what was read. `path` leads to the copy from the parent of all."""
        records = []
        os.mkdir(target, 0o700, dir_fd=parent)
        copy = os.open(target, DIRECTORY, dir_fd=parent)
        try:
            with searchable(source_parent, name, there) as source:
                for raw, entry, attributes in entries_of(source):
                    self.tally.add(attributes)
                    content = self._copy_entry(source, entry, attributes, copy, f"{path}/{entry}")
                    records.append(record_of(raw, attributes, content))
                crash_point("snapshot.half-copied")
                self._finish(source, copy, there, 0o700)
        finally:
            os.close(copy)
        records.append(record_of(b"", there, b""))
        return digest_records(records)

    def _copy_entry(self, source: int, name: str, there: os.stat_result, copy: int, path: str) -> bytes:
        mode = there.st_mode
        if stat.S_ISDIR(mode):
            return self.copy_directory(source, name, there, copy, name, path)
        if there.st_nlink > 1:
            first = self._first_names.setdefault(there.st_ino, path)
            if first is not path:
                # Every directory on the way was made by us: there is no symlink to follow.
                os.link(first, name, src_dir_fd=self._parent, dst_dir_fd=copy, follow_symlinks=False)
                return os.fsencode(os.readlink(name, dir_fd=copy)) if stat.S_ISLNK(mode) else b""
        if stat.S_ISREG(mode):
            self._copy_file(source, name, there, copy)
            return b""
        return self._copy_special(source, name, there, copy)

    def _copy_file(self, source: int, name: str, there: os.stat_result, copy: int) -> None:
        made_with = there.st_mode & 0o777 & ~self._umask | 0o600
        target = os.open(name, MAKE, made_with, dir_fd=copy)
        try:
            with readable(source, name, there, READ) as origin:
                if there.st_size and not self._clone(origin, target):
                    _copy_content(origin, target, there, name)
                self._finish(origin, target, there, made_with)
        finally:
            os.close(target)

    def _clone(self, origin: int, target: int) -> bool:
        if self._can_clone:
            try:
                fcntl.ioctl(target, FICLONE, origin)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._can_clone = False
        return self._can_clone

    def _finish(self, origin: int, target: int, there: os.stat_result, mode: int) -> None:
        # Owner before mode and attributes: a change of owner takes setuid bits and capabilities away.
        if (there.st_uid, there.st_gid) != self._owner:
            os.fchown(target, there.st_uid, there.st_gid)
        for attribute in os.listxattr(origin):
            _copy_attribute(origin, target, attribute)
        if stat.S_IMODE(there.st_mode) != mode:
            os.fchmod(target, stat.S_IMODE(there.st_mode))
        os.utime(target, ns=(there.st_atime_ns, there.st_mtime_ns))

    def _copy_special(self, source: int, name: str, there: os.stat_result, copy: int) -> bytes:
        content = b""
        if stat.S_ISLNK(there.st_mode):
            text = os.readlink(name, dir_fd=source)
            os.symlink(text, name, dir_fd=copy)
            content = os.fsencode(text)
        else:
            os.mknod(name, there.st_mode, there.st_rdev, dir_fd=copy)
        if (there.st_uid, there.st_gid) != self._owner:
            os.chown(name, there.st_uid, there.st_gid, dir_fd=copy, follow_symlinks=False)
        origin_path, copy_path = f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{copy}/{name}"
        for attribute in os.listxattr(origin_path, follow_symlinks=False):
            value = os.getxattr(origin_path, attribute, follow_symlinks=False)
            os.setxattr(copy_path, attribute, value, follow_symlinks=False)
        if not stat.S_ISLNK(there.st_mode):
            os.chmod(name, stat.S_IMODE(there.st_mode), dir_fd=copy)
        os.utime(name, ns=(there.st_atime_ns, there.st_mtime_ns), dir_fd=copy, follow_symlinks=False)
        return content


def _copy_content(origin: int, target: int, there: os.stat_result, name: str) -> None:
    if there.st_blocks * 512 < there.st_size:
        _copy_pieces(origin, target, there.st_size)
    elif there.st_size <= SMALL:
        content = os.read(origin, there.st_size)
        if os.write(target, content) != there.st_size:
            raise DeviceBusy(f"{name} changed while it was copied", hint="it will be tried again")
    else:
        _copy_range(origin, target, 0, there.st_size)


def _copy_pieces(origin: int, target: int, size: int) -> None:
    """What lies between the holes."""
    os.ftruncate(target, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(origin, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        position = os.lseek(origin, start, os.SEEK_HOLE)
        _copy_range(origin, target, start, position - start)


def _copy_range(origin: int, target: int, start: int, length: int) -> None:
    in_kernel = True
    while length:
        if in_kernel:
            try:
                copied = os.copy_file_range(origin, target, length, start, start)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                in_kernel = False
                continue
        else:
            copied = os.pwrite(target, os.pread(origin, min(length, SMALL), start), start)
        if not copied:
            raise DeviceBusy("a file became shorter while it was copied", hint="it will be tried again")
        start += copied
        length -= copied


def _copy_attribute(origin: int, target: int, attribute: str) -> None:
    value = os.getxattr(origin, attribute)
    try:
        os.setxattr(target, attribute, value)
    except OSError as error:
        if attribute not in _LABELS or error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP):
            raise


def _umask() -> int:
    """Of this process. Asked of /proc, because os.umask() tells it only by changing it under all threads."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o777
