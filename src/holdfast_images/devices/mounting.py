"""Mounts of block devices, by system calls; and who else has a device mounted or open."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast_images.devices.mounts import unescaped

log = logging.getLogger("holdfast_images.devices")

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
    log.debug("umount %s: %s after %.4f s", point, os.strerror(code) if code else "done", time.monotonic() - begin)
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
    log.debug("mount -t %s %s %s (%#x %s): %s after %.4f s", kind, source, point, flags, options, said,
              time.monotonic() - begin)  # fmt: skip
    if code:
        raise OSError(code, os.strerror(code), str(point))
