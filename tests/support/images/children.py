"""The processes that the tested ones start: finding them, and being somebody else."""

from __future__ import annotations

import ctypes
import fcntl
import os
from pathlib import Path

import msgspec

from holdfast_images.archive.protocol import Job
from tests.support.images.extracting import NOBODY

PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_READ_SEARCH = 2


def children_of(pid: int) -> list[int]:
    """Processes started by any thread of that process, zombies included."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(each) for each in (task / "children").read_text().split()]
    return found


def child_of_mine() -> int:
    """The one child of this process that reads an archive."""
    (found,) = [each for each in children_of(os.getpid()) if b"archive.extract" in command_of(each)]
    return found


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def orphans() -> list[int]:
    """Processes that read archives and have outlived whoever started them; those of other tests have not."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        words = command_of(int(place.name)).split(b"\0")
        jobs = [word for word in words if word.startswith(b'{"parent":')]
        if jobs and not is_alive(msgspec.json.decode(jobs[0], type=Job).parent):
            found.append(int(place.name))
    return found


def is_alive(pid: int) -> bool:
    """Does it still run? A zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def is_free(target: Path) -> bool:
    """Does nobody hold a lock on this directory?"""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def status_of(pid: int) -> dict[str, str]:
    """What /proc/pid/status says."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def become_nobody() -> None:
    """For the moment between fork and exec: no longer root, and no privilege but to read, lest Python lie in /root.

    Whoever confines himself drops that one too.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    one = 1 << CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)(one, one, one, 0, 0, 0)
    assert libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) == 0
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    assert libc.capset(header, sets) == 0
    assert libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0) == 0
