"""Named places where a process may die while it changes a device. Inert, unless a test sets a hook."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable

from holdfast_images.errors import DeviceBusy

POINTS = (
    "create.temporary-made",
    "create.identity-written",
    "create.renamed",
    "seal.synced",
    "seal.identity-aside",
    "seal.identity-replaced",
    "snapshot.temporary-made",
    "snapshot.half-copied",
    "snapshot.copied",
    "snapshot.identity-written",
    "snapshot.renamed",
    "delete.trashed",
    "delete.half-removed",
    "delete.removed",
)

_hook: Callable[[str], None] | None = None


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of each point passed; None makes the points inert again."""
    global _hook
    _hook = hook


def crash_point(name: str) -> None:
    """A process may die here."""
    if _hook is not None:
        _hook(name)


# --- Who has made something: a process, known by its number and when it began, since numbers are used again ---


def this_process() -> str:
    """The mark of this process."""
    return _mark_of(str(os.getpid()))


def is_alive(mark: str) -> bool:
    """Does the process live that has this mark?"""
    return bool(mark) and mark == _mark_of(mark.partition("-")[0])


def _mark_of(process: str) -> str:
    try:
        with open(f"/proc/{int(process)}/stat", "rb") as file:
            # The name, in parentheses, may hold anything; the 20th field after it is the time of its start.
            return f"{process}-{file.read().rpartition(b')')[2].split()[19].decode()}"
    except (OSError, ValueError):
        return ""


# --- Locks on directories that end with the process that holds them -------------------------------------

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
LONGEST_PATH = 4000
"""In bytes; the kernel takes 95 more."""
PAUSE = 0.02


def open_locked(parent: int, name: str, *, exclusive: bool, patience: float) -> int:
    """A descriptor of a directory, locked against others. Raises FileNotFoundError, or DeviceBusy after `patience` s.

    What was renamed or removed while waiting is looked for again under its name.
    """
    deadline = time.monotonic() + patience
    while True:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
        try:
            if try_lock(descriptor, exclusive=exclusive):
                if is_named(descriptor, parent, name):
                    return descriptor
            else:
                _wait_a_little(descriptor, name, deadline)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Lock it, or turn a lock that this descriptor has into another; False if others are in the way."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(parent: int, name: str) -> bool:
    """Does anybody hold a lock on it?"""
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    try:
        return not try_lock(descriptor, exclusive=True)
    finally:
        os.close(descriptor)


def open_below(parent: int, path: bytes) -> int:
    """A descriptor of a directory some levels below another; its path may be longer than the kernel takes at once."""
    here = parent
    while True:
        cut = len(path) if len(path) <= LONGEST_PATH else path.rindex(b"/", 0, LONGEST_PATH)
        piece, path = path[:cut], path[cut + 1 :]
        try:
            below = os.open(piece, DIRECTORY, dir_fd=here)
        finally:
            if here != parent:
                os.close(here)
        if not path:
            return below
        here = below


def is_named(descriptor: int, parent: int, name: str) -> bool:
    """Does the name still lead to what is open?"""
    try:
        there = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


def _wait_a_little(descriptor: int, name: str, deadline: float) -> None:
    if time.monotonic() >= deadline:
        holders = _holders(descriptor)
        raise DeviceBusy(f"{name} is in use{holders}", hint="it will be tried again; end that process if not")
    time.sleep(PAUSE)


def _holders(descriptor: int) -> str:
    """Who holds locks on it, as far as the kernel tells us."""
    inode = os.fstat(descriptor).st_ino
    try:
        with open("/proc/locks", encoding="ascii") as file:
            fields = [line.split() for line in file]
    except OSError:
        return ""
    pids = sorted({int(f[4]) for f in fields if f[1] == "FLOCK" and f[5].rpartition(":")[2] == str(inode)})
    return f" by process {', '.join(map(str, pids))}" if pids else ""
