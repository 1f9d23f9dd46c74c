"""Where thin devices are mounted: below their records, a point for each process, known by it when it is dead."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast_images.devices.dm_table import log
from holdfast_images.devices.lock import is_alive, this_process
from holdfast_images.devices.record import Registry, checked
from holdfast_images.devices.users import unescaped
from holdfast_images.errors import DeviceBusy

MOUNTS = "mounts"


class MountedRegistry(Registry):
    """Records with mount points in them."""

    def point_of(self, name: str) -> Path:
        """Where this process mounts a device."""
        return self.home / checked(name) / MOUNTS / this_process()

    def mounts_of(self, name: str) -> list[Mount]:
        """Our mounts of a device, every process's, the newest last."""
        return [mount for mount in self.all_mounts() if mount.point.startswith(f"{self.home}/{name}/")]

    def all_mounts(self) -> list[Mount]:
        """Our mounts of all devices, the newest last."""
        return [mount for mount in mounts() if re.match(rf"{re.escape(str(self.home))}/[^/]+/{MOUNTS}/", mount.point)]

    def unmount(self, name: str, *, dead_only: bool = False) -> None:
        """Undo our mounts of a device, or those of dead processes; those that a process works in stay."""
        _unmount(self.mounts_of(name), dead_only=dead_only)

    def unmount_dead(self) -> None:
        """Undo what dead processes have mounted."""
        _unmount(self.all_mounts(), dead_only=True)

    def refuse_mounted(self, name: str) -> None:
        """Raise DeviceBusy if it is mounted by one of us."""
        if left := self.mounts_of(name):
            raise DeviceBusy(f"{name} is mounted on {left[-1].point}", hint="unmount it; it will be tried again")


def is_live(point: str) -> bool:
    """Does the process live that has mounted something here?"""
    return is_alive(os.path.basename(point))


def _unmount(ours: Sequence[Mount], *, dead_only: bool) -> None:
    """The newest first. What stays is found by the next look."""
    for mount in reversed(ours):
        if dead_only and is_live(mount.point):
            continue
        try:
            unmount_point(mount.point)
            os.rmdir(mount.point)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY):
                raise
            log.info("%s stays mounted: %s", mount.point, error.strerror)


# --- Mounts of block devices, by system calls; and who else has a device mounted or open ----------------

mount_log = logging.getLogger("holdfast_images.devices")

_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC, _NO_ATIME, _BIND, _PRIVATE = 1, 2, 4, 8, 1024, 4096, 1 << 18
_NO_FOLLOW = 8
_libc = ctypes.CDLL(None, use_errno=True)


class Mount(msgspec.Struct, frozen=True):
    """One line of mountinfo."""

    number: int
    device: str
    point: str


def mount_device(node: str, point: Path, *, read_only: bool = False, options: str = "") -> None:
    """Mount an ext4 where nothing in it is run, no device in it opened and nobody given rights by it."""
    flags = _NO_SUID | _NO_DEV | _NO_EXEC | _NO_ATIME | (_READ_ONLY if read_only else 0)
    _mount(node, point, "ext4", flags, options)


def make_private(directory: Path) -> None:
    """What is mounted below it is not passed on to other namespaces, whose copies would keep it busy."""
    with _alone_above(directory):
        if not any(mount.point == str(directory) for mount in mounts()):
            _mount(str(directory), directory, "none", _BIND, "")
        _mount("none", directory, "none", _PRIVATE, "")


def undo_private(directory: Path) -> None:
    """Undo `make_private`, unless something is mounted there or somebody is in it."""
    with _alone_above(directory):
        if any(mount.point == str(directory) for mount in mounts()):
            try:
                unmount_point(str(directory))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise


@contextmanager
def _alone_above(directory: Path) -> Iterator[None]:
    """One at a time: a second bind over the first one would hide what is mounted below that."""
    descriptor = os.open(directory.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def unmount_point(point: str) -> None:
    """Undo the topmost mount on a point. Raises OSError: EBUSY while something in it is in use."""
    begin = time.monotonic()
    result = _libc.umount2(os.fsencode(point), _NO_FOLLOW)
    code = ctypes.get_errno() if result != 0 else 0
    mount_log.debug(
        "umount %s: %s after %.4f s", point, os.strerror(code) if code else "done", time.monotonic() - begin
    )
    # EINVAL: it is no mount point any more.
    if code not in (0, errno.EINVAL):
        raise OSError(code, os.strerror(code), point)


def mounts(process: str = "self") -> list[Mount]:
    """Everything that is mounted, as a process sees it, the newest last."""
    with open(f"/proc/{process}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return parse_mountinfo(file.read())


def parse_mountinfo(text: str) -> list[Mount]:
    """The lines of mountinfo. Pure."""
    found = []
    for line in text.splitlines():
        fields = line.split()
        found.append(Mount(int(fields[0]), fields[2], unescaped(fields[4])))
    return found


def holders_of(numbers: str) -> str:
    """Who has the device major:minor mounted, in whatever namespace; for an error message."""
    found = []
    for process in _processes():
        try:
            points = [mount.point for mount in mounts(process) if mount.device == numbers]
            name = Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
        except OSError:
            continue  # it has ended, or is not ours to look at
        if points:
            found.append(f"mounted on {points[-1]} as process {process} ({name}) sees it")
        if len(found) == 3:
            break
    return "; ".join(found) or "opened by some process: fuser -v"


def _processes() -> Iterator[str]:
    seen = set()
    for name in sorted((name for name in os.listdir("/proc") if name.isdecimal()), key=int):
        try:
            namespace = os.readlink(f"/proc/{name}/ns/mnt")
        except OSError:
            continue
        if namespace not in seen:
            seen.add(namespace)
            yield name


def _mount(source: str, point: Path, kind: str, flags: int, options: str) -> None:
    begin = time.monotonic()
    arguments = (os.fsencode(source), os.fsencode(point), kind.encode(), ctypes.c_ulong(flags), options.encode())
    code = ctypes.get_errno() if _libc.mount(*arguments) != 0 else 0
    said = os.strerror(code) if code else "done"
    mount_log.debug("mount -t %s %s %s (%#x %s): %s after %.4f s", kind, source, point, flags, options, said,
              time.monotonic() - begin)  # fmt: skip
    if code:
        raise OSError(code, os.strerror(code), str(point))
