"""Which disk a path leads to: names like /dev/sdc are dealt out anew at each boot, a disk keeps its own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from holdfast_images.errors import PoolUnusable

NUMBERS = Path("/sys/dev/block")
NAMES = ("dm/uuid", "md/uuid", "wwid", "device/wwid", "serial", "device/serial")


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded of a disk, to know it again."""

    name: str
    """What it calls itself: UUID, world-wide id or serial number. Empty if it does not: then its size has to do."""
    size: int

    def __str__(self) -> str:
        return f"{self.name or 'a disk without a name'} of {self.size} bytes"


def disk_at(node: str) -> Disk:
    """The disk that a path leads to at the moment. Raises PoolUnusable if it is no block device."""
    descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISBLK(status.st_mode):
            raise PoolUnusable(f"{node} is no block device")
        size = os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)
    return Disk(name=name_in(NUMBERS / f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"), size=size)


def node_of(numbers: str) -> str:
    """The node of the block device major:minor."""
    return f"/dev/{(NUMBERS / numbers).resolve().name}"


def takes_discards(node: str) -> bool:
    """Can the disk be told that a part of it is not needed any more?"""
    number = os.stat(node).st_rdev
    facts = (NUMBERS / f"{os.major(number)}:{os.minor(number)}").resolve()
    queue = facts.parent if _text(facts / "partition") else facts
    return _text(queue / "queue/discard_max_bytes") not in ("", "0")


def name_in(facts: Path) -> str:
    """What a disk calls itself, from its directory in /sys; a partition is called after its disk."""
    facts = facts.resolve()
    number = _text(facts / "partition")
    if number:
        whole = name_in(facts.parent)
        return f"{whole} partition {number}" if whole else ""
    return next((f"{fact} {text}" for fact in NAMES if (text := _text(facts / fact))), "")


def is_same(recorded: Disk, found: Disk) -> bool:
    """A disk with a name may grow; of one without, the size is all that is known. Pure."""
    return recorded.name == found.name if recorded.name else recorded.size == found.size


def _text(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8", errors="backslashreplace").split())
    except OSError:
        return ""
