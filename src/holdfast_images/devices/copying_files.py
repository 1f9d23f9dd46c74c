"""A faithful copy of a file: content, owner, mode, times, extended attributes and holes.

Files are cloned (FICLONE) where the file system can: then the copy shares its blocks until one of both is written to.
Cloned or not, each is read, and its digest told: nothing is copied that nobody has looked at.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from holdfast_images.devices.file_digest import LABELS, FileReader, attributes_of
from holdfast_images.devices.manifest import READ, readable
from holdfast_images.syncing import write_all

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
