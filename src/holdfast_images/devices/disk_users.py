"""Who uses a block device: a disk in use is made no pool of."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

from holdfast_images.devices import loops
from holdfast_images.devices.disks import NUMBERS
from holdfast_images.devices.locking import PAUSE
from holdfast_images.errors import PoolUnusable

PATIENCE = 5.0
"""udev and blkid look into what is new."""
Numbers = tuple[int, int]


def refuse_in_use(path: str, *, patience: float = PATIENCE) -> None:
    """Raise PoolUnusable if the kernel, another pool, a file system or a process has a block device, or shows it.

    Also by another name: as the file or disk that some loop device shows.
    """
    if (used := _use_of(path)) is not None:
        raise used
    number = os.stat(path).st_rdev
    deadline = time.monotonic() + patience
    while opened := _open_in(number):
        if time.monotonic() >= deadline:
            raise PoolUnusable(f"{path} is in use: {opened} has it open", hint="end that process; nothing was changed")
        time.sleep(PAUSE)


def _use_of(path: str) -> PoolUnusable | None:
    if _is_taken(path):
        return PoolUnusable(
            f"{path} is in use: mounted, or a part of another pool or volume",
            hint="see by what: lsblk, dmsetup ls --tree; nothing was changed",
        )
    loop_devices = loops.shown_by_all()
    own = next((node for node in loop_devices if os.path.realpath(node) == os.path.realpath(path)), None)
    if own is not None:
        below = loop_devices.pop(own)
        others = [node for node, shown in loop_devices.items() if shown.file == below.file]
        if others:
            return PoolUnusable(
                f"{path} shows the same file as {' and '.join(others)}", hint=f"losetup --detach {others[0]}, if unused"
            )
        if below.disk is not None and _is_taken(disk := _node(below.disk)):
            return PoolUnusable(f"{path} shows {disk}, which is in use", hint=f"see by what: lsblk {disk}")
    number = os.stat(path).st_rdev
    whole = _whole((os.major(number), os.minor(number)))
    above = [node for node, shown in loop_devices.items() if shown.disk is not None and _whole(shown.disk) == whole]
    if above:
        return PoolUnusable(
            f"{path} is in use: {' and '.join(above)} shows it", hint=f"losetup --detach {above[0]}, if unused"
        )
    return None


def _is_taken(path: str) -> bool:
    try:
        # With O_EXCL, and without O_CREAT, a block device is opened only if nobody has it for himself.
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return True
    return False


def _node(numbers: Numbers) -> str:
    return f"/dev/{_facts(numbers).name}"


def _whole(numbers: Numbers) -> str:
    """The disk that it is, or is a partition of."""
    facts = _facts(numbers)
    return (facts.parent if (facts / "partition").exists() else facts).name


def _facts(numbers: Numbers) -> Path:
    return (NUMBERS / f"{numbers[0]}:{numbers[1]}").resolve()


def _open_in(number: int) -> str:
    """A process that has the block device open, in words; not this one."""
    for process in (name for name in os.listdir("/proc") if name.isdecimal() and int(name) != os.getpid()):
        try:
            for descriptor in os.listdir(f"/proc/{process}/fd"):
                there = os.stat(f"/proc/{process}/fd/{descriptor}")
                if stat.S_ISBLK(there.st_mode) and there.st_rdev == number:
                    return f"process {process} ({Path(f'/proc/{process}/comm').read_text(errors='replace').strip()})"
        except OSError:
            continue  # it has ended, or is not ours to look at
    return ""
