"""Loop devices: files that the kernel shows as disks. For development; they are gone after each reboot."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import msgspec

from holdfast_images.devices.commands import CommandFailed, log, run
from holdfast_images.errors import PoolUnusable

BLOCKS = Path("/sys/block")
STATUS = 0x4C05
"""LOOP_GET_STATUS64"""
_INFO = struct.Struct("=QQQ208x")


def attached(file: Path) -> list[str]:
    """The loop devices that show a file, by their nodes."""
    wanted = os.path.realpath(file)
    found = []
    for backing in sorted(BLOCKS.glob("loop*/loop/backing_file")):
        try:
            text = backing.read_text(encoding="utf-8", errors="surrogateescape").rstrip("\n")
        except OSError:
            continue  # detached meanwhile
        if text == wanted:
            found.append(f"/dev/{backing.parts[3]}")
    return found


def attach(file: Path) -> str:
    """The loop device of a file, made unless it is there. Raises PoolUnusable if there are several: they corrupt it."""
    found = attached(file)
    if len(found) > 1:
        raise PoolUnusable(
            f"{file} is shown by {' and '.join(found)} at once",
            hint=f"see which one is not used (dmsetup deps), and detach it: losetup --detach {found[-1]}",
        )
    if found:
        return found[0]
    # In one step, so that a crash leaves a loop device with its file or none.
    command = ("losetup", "--find", "--show", "--nooverlap")
    try:
        # Or else everything would be in memory twice.
        return run(*command, "--direct-io=on", "--", str(file)).output.strip()
    except CommandFailed as error:
        if attached(file):
            raise
        log.info("%s: without direct I/O, which its file system does not have: %s", file, error)
        return run(*command, "--", str(file)).output.strip()


class Shown(msgspec.Struct, frozen=True):
    """What a loop device shows: a file, by whatever name, or a block device."""

    file: tuple[int, int]
    """Device and inode, as the kernel has them."""
    disk: tuple[int, int] | None
    """Major and minor, if it is a block device."""


def shown_by_all() -> dict[str, Shown]:
    """What each loop device shows, by its node."""
    found = {}
    for backing in sorted(BLOCKS.glob("loop*/loop/backing_file")):
        node = f"/dev/{backing.parts[3]}"
        try:
            descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            device, inode, disk = _INFO.unpack(fcntl.ioctl(descriptor, STATUS, bytes(_INFO.size)))
        except OSError:
            continue  # detached meanwhile
        finally:
            os.close(descriptor)
        found[node] = Shown((device, inode), _numbers(disk) if disk else None)
    return found


def _numbers(device: int) -> tuple[int, int]:
    """Major and minor, from the kernel's huge_encode_dev."""
    return (device >> 8) & 0xFFF, (device & 0xFF) | ((device >> 12) & 0xFFF00)


def detach(file: Path) -> None:
    """Take away every loop device of a file. Nothing happens if there is none."""
    for node in attached(file):
        run("losetup", "--detach", node)


def refresh(file: Path) -> None:
    """Make its loop device as long as the file has become."""
    for node in attached(file):
        run("losetup", "--set-capacity", node)
