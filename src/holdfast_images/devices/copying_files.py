"""A faithful copy of a file: content, owner, mode, times, extended attributes and holes.

Files are cloned (FICLONE) where the file system can: then the copy shares its blocks until one of both is written to.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from holdfast_images.devices.manifest import readable
from holdfast_images.errors import DeviceBusy

FICLONE = 0x40049409
SMALL = 1 << 20
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CANNOT = {errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS}
# A security module puts its own label on what is made; where that cannot be chosen, it is not the image's.
_LABELS = {"security.selinux", "security.ima", "security.evm"}


class FileCopier:
    """Copies files between directories; knows what it has learned about them."""

    def __init__(self) -> None:
        self._can_clone = True
        self._umask = _umask()
        self.owner = (os.geteuid(), os.getegid())
        """Whose everything is that is made here."""

    def copy(self, source: int, name: str, there: os.stat_result, copy: int) -> None:
        """A regular file from one directory to another."""
        made_with = there.st_mode & 0o777 & ~self._umask | 0o600
        target = os.open(name, MAKE, made_with, dir_fd=copy)
        try:
            with readable(source, name, there, READ) as origin:
                if there.st_size and not self._clone(origin, target):
                    _copy_content(origin, target, there, name)
                self.finish(origin, target, there, made_with)
        finally:
            os.close(target)

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

    def _clone(self, origin: int, target: int) -> bool:
        if self._can_clone:
            try:
                fcntl.ioctl(target, FICLONE, origin)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                self._can_clone = False
        return self._can_clone


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
