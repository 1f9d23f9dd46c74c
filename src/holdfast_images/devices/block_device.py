"""Which disk a path leads to: names like /dev/sdc are dealt out anew at each boot, a disk keeps its own."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import struct
import time
from pathlib import Path
from uuid import UUID

import msgspec

from holdfast_images.devices.dm_table import CommandFailed, log, run
from holdfast_images.devices.lock import PAUSE
from holdfast_images.errors import ImageError, NoSpace, PoolUnusable

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


# --- Loop devices: files that the kernel shows as disks. For development; they are gone after each reboot ---

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


class LoopBacking(msgspec.Struct, frozen=True):
    """What a loop device shows: a file, by whatever name, or a block device."""

    file: tuple[int, int]
    """Device and inode, as the kernel has them."""
    disk: tuple[int, int] | None
    """Major and minor, if it is a block device."""


def shown_by_all() -> dict[str, LoopBacking]:
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
        found[node] = LoopBacking((device, inode), _numbers(disk) if disk else None)
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


# --- The file system on a device: made so that its image determines what is in it, and known again by its
# superblock.

SUPERBLOCK_AT = 1024
SUPERBLOCK_BYTES = 1024
MAGIC = 0xEF53
NEEDS_RECOVERY = 0x4
VALID = 1
PASSING = (
    (0x0C, 0x14),  # free blocks and inodes
    (0x2C, 0x38),  # last mount, last write, number of mounts
    (0x40, 0x44),  # last check
    (0x88, 0xC8),  # where it was mounted last
    (0x158, 0x15C),  # free blocks, upper half
    (0x178, 0x180),  # bytes ever written
    (0x274, 0x280),  # upper halves of times
    (0x3FC, 0x400),  # checksum
)
"""Fields that change whenever the file system is mounted to be written to, or checked."""
JOURNAL_MEGABYTES = 16
"""A journal is real space in the pool, once for the image and once for each snapshot that is written to."""
LEAST_BYTES = 64 << 20
BYTES_PER_INODE = 16384
SPARE_INODES = 1000
MAKE_TIMEOUT = 300.0


class Ext4Superblock(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one file system from another."""

    uuid: str
    digest: str
    """Of what a mount and a check leave as it is: layout, features, states, errors."""
    clean: bool = True
    """Nothing is left for the next mount to replay or to remove."""


def parse_superblock(raw: bytes) -> Ext4Superblock | None:
    """From the second KiB of a device; None if there is no ext4. Pure."""
    if len(raw) != SUPERBLOCK_BYTES or struct.unpack_from("<H", raw, 0x38)[0] != MAGIC:
        return None
    (incompatible,) = struct.unpack_from("<I", raw, 0x60)
    (state,) = struct.unpack_from("<H", raw, 0x3A)
    (orphan,) = struct.unpack_from("<I", raw, 0xE8)
    kept = bytearray(raw)
    for start, end in PASSING:
        kept[start:end] = bytes(end - start)
    return Ext4Superblock(
        uuid=str(UUID(bytes=raw[0x68:0x78])),
        digest=hashlib.sha256(kept).hexdigest(),
        clean=not incompatible & NEEDS_RECOVERY and state == VALID and not orphan,
    )


def read_superblock(node: str) -> Ext4Superblock | None:
    """Of a device that is shown."""
    descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_superblock(os.pread(descriptor, SUPERBLOCK_BYTES, SUPERBLOCK_AT))
    finally:
        os.close(descriptor)


def valid_uuid(text: str) -> str:
    """A UUID in its usual form; ImageError if it is none."""
    try:
        return str(UUID(text))
    except ValueError as error:
        raise ImageError(f"{text!r} is no UUID, so no file system can have it") from error


def inodes_for(size: int, files: int) -> int:
    """One for each 16 KiB as mkfs has it, and at least as many as are going to be needed."""
    return max(size // BYTES_PER_INODE, files + files // 10 + SPARE_INODES)


def make_ext4(node: str, uuid: str, *, size: int, files: int = 0) -> None:
    """A new ext4 on a device that reads as zeros everywhere, on disk when this returns.

    Crash: anything may be on the device.
    """
    if size < LEAST_BYTES:
        raise NoSpace(
            f"a device of {size} bytes is too small", hint=f"at least {LEAST_BYTES}: device_size in the settings"
        )
    # Without the first option the kernel would write all inode tables after the mount: 165 MB on 10 GiB.
    zeroed = "assume_storage_prezeroed=1,nodiscard"
    try:
        _make(node, uuid, size, files, zeroed)
    except CommandFailed as error:
        if "option" not in str(error):
            raise
        _make(node, uuid, size, files, "lazy_itable_init=0,lazy_journal_init=0,nodiscard")  # before e2fsprogs 1.47


def _make(node: str, uuid: str, size: int, files: int, extended: str) -> None:
    run(
        "mkfs.ext4",
        "-q", "-F",
        "-b", "4096",
        "-I", "256",  # times have nanoseconds only in large inodes, which a small file system does not get by itself
        "-m", "0",
        "-J", f"size={JOURNAL_MEGABYTES}",
        "-N", str(inodes_for(size, files)),
        "-O", "^resize_inode",
        "-U", valid_uuid(uuid),
        "-E", extended,
        node,
        timeout=MAKE_TIMEOUT,
    )  # fmt: skip


# --- Who uses a block device: a disk in use is made no pool of ------------------------------------------

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
    loop_devices = shown_by_all()
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
