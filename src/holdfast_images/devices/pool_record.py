"""What a pool is made of, recorded beside its devices: after a reboot the kernel knows nothing of it."""

from __future__ import annotations

import errno
import os
import secrets
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast_images.devices import block_device as loops
from holdfast_images.devices.block_device import Disk, disk_at, is_same, node_of, refuse_in_use
from holdfast_images.devices.dm_table import (
    BLOCK_SECTORS,
    LEAST_METADATA,
    MOST_METADATA,
    SECTOR,
    Mode,
    ThinPoolStatus,
    ThinPoolTable,
    metadata_bytes,
)
from holdfast_images.devices.lock import PAUSE, try_lock
from holdfast_images.devices.protocol import PoolHealth, PoolStatus
from holdfast_images.durable import write_all
from holdfast_images.errors import DeviceBusy, InvalidName, NoSpace, PoolUnusable

RECORD = "pool.json"
ASIDE = "pool.json.new"
LOCK = "pool.lock"
LOCK_PATIENCE = 60.0
SUPERBLOCK_BYTES = 4096
MAGIC = 27022010
LOOKED_AT = 1 << 20
NEEDS_CHECK = 1


class Backing(msgspec.Struct, frozen=True, kw_only=True):
    """A block device, or a file that is shown as one."""

    path: str
    is_file: bool
    disk: Disk | None = None
    """What the path of a block device led to when the pool was made."""

    def open(self) -> str:
        """The node of the block device, which is made if it is a file's and missing."""
        if self.is_file:
            if not os.path.isfile(self.path):
                raise PoolUnusable(
                    f"the pool's file {self.path} is gone",
                    hint="put it back; if it is lost for good, so is what was in it: "
                    f"rm {Path(self.path).parent / RECORD}, holdfast pool create --force --size SIZE, and process the "
                    "images again",
                )
            node = loops.attach(Path(self.path))
            if disk_at(node).size < os.path.getsize(self.path) // SECTOR * SECTOR:
                loops.refresh(Path(self.path))  # it has grown, or was put back, since the loop device was made
            return node
        return self.path

    def looked_at_again(self) -> Backing:
        """With its disk as it is now: it may have grown."""
        return self if self.is_file else msgspec.structs.replace(self, disk=disk_at(self.path))

    def refuse_other_disk(self) -> None:
        """Raise PoolUnusable if the path leads to another disk now: what is on that one must not be written over."""
        if self.disk is not None and not is_same(self.disk, found := disk_at(self.path)):
            raise PoolUnusable(
                f"{self.path} is not the disk that the pool was made on: it is {found}, and was {self.disk}",
                hint="nothing was changed; put the right path into pool.json, or the new disk if it is a copy",
            )

    def room_below(self, used: int) -> int | None:
        """How much more a file of which so much is used can hold, by the file system it is in; None of a disk."""
        if not self.is_file:
            return None
        try:
            file, system = os.stat(self.path), os.statvfs(self.path)
        except FileNotFoundError:
            return 0
        return system.f_bavail * system.f_frsize + max(0, file.st_blocks * 512 - used)


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is needed to find the pool again, and to know it for the same."""

    version: int = 1
    name: str
    mark: int
    """The pool's transaction id: drawn when it was made, and never changed. It tells this pool from any other."""
    metadata: Backing
    data: Backing
    block_sectors: int = BLOCK_SECTORS
    low_water_bytes: int
    ready: bool = False
    """False while it is being made."""


class PoolSuperblock(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a pool's first metadata block that tells which pool it is."""

    transaction_id: int
    block_sectors: int
    needs_check: bool
    data_blocks: int = 0
    metadata_blocks: int = 0
    """Of 4 KiB."""


def read_record(root: Path) -> PoolRecord | None:
    """The pool of this place; None if there is none. Raises PoolUnusable if the record cannot be read."""
    try:
        raw = (root / RECORD).read_bytes()
    except FileNotFoundError:
        return None
    try:
        record = msgspec.json.decode(raw, type=PoolRecord)
        moved = {part: _moved(root, getattr(record, part)) for part in ("metadata", "data")}
        return msgspec.structs.replace(record, **moved)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PoolUnusable(f"{root / RECORD} cannot be read: {error}", hint="restore it from a backup") from error


def _moved(root: Path, backing: Backing) -> Backing:
    """A file that lies beside the record now, and not where it was: the place was moved as a whole."""
    beside = str(root / Path(backing.path).name)
    if not backing.is_file or os.path.lexists(backing.path) or not os.path.isfile(beside):
        return backing
    return msgspec.structs.replace(backing, path=beside)


def write_record(root: Path, record: PoolRecord) -> None:
    """Replace the record. Crash: the old or the new."""
    descriptor = os.open(root / ASIDE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(descriptor, msgspec.json.format(msgspec.json.encode(record)) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(root / ASIDE, root / RECORD)
    sync_directory(root)


@contextmanager
def alone(root: Path) -> Iterator[None]:
    """Nobody else starts, extends, checks or lists this pool meanwhile. Ends with the process."""
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_PATIENCE
        while not try_lock(descriptor, exclusive=True):
            if time.monotonic() >= deadline:
                raise DeviceBusy(f"another process is busy with the pool at {root}", hint="it will be tried again")
            time.sleep(PAUSE)
        yield
    finally:
        os.close(descriptor)


def make_file(path: Path, length: int, *, allocate: bool) -> None:
    """A file of this length, on disk; with all its blocks if `allocate`. Raises NoSpace. Crash: longer, or not."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(descriptor, length)
        if allocate:
            os.posix_fallocate(descriptor, 0, length)
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise NoSpace(f"there is no room for {length} bytes of {path}", hint="make room on that disk") from error
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Its entries are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_superblock(node: str) -> PoolSuperblock | None:
    """Of the metadata device; None if there is no pool on it."""
    raw = _read(node, 512)
    if len(raw) < 512 or struct.unpack_from("<Q", raw, 32)[0] != MAGIC:
        return None
    (flags,) = struct.unpack_from("<I", raw, 4)
    (transaction_id,) = struct.unpack_from("<Q", raw, 48)
    (block_sectors,) = struct.unpack_from("<I", raw, 336)
    return PoolSuperblock(
        transaction_id=transaction_id,
        block_sectors=block_sectors,
        needs_check=bool(flags & NEEDS_CHECK),
        data_blocks=struct.unpack_from("<Q", raw, 64)[0],
        metadata_blocks=struct.unpack_from("<Q", raw, 344)[0],
    )


def is_blank(node: str) -> bool:
    """Is there nothing at its beginning and end, where file systems, partitions and pools say what they are?"""
    end = disk_at(node).size - LOOKED_AT
    return not any(_read(node, LOOKED_AT)) and not (end > 0 and any(_read(node, LOOKED_AT, end)))


def wipe_superblock(node: str) -> None:
    """Without it the kernel makes new metadata. Crash: there or not."""
    descriptor = os.open(node, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, bytes(SUPERBLOCK_BYTES), 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(node: str, length: int, start: int = 0) -> bytes:
    # What is read once must not be found in the page cache when it has changed below.
    descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)
        return os.pread(descriptor, length, start)
    finally:
        os.close(descriptor)


# --- Can more be put into a pool? Judged from what the kernel says of it. Pure --------------------------

METADATA_BLOCK = 4096
REPAIR = "holdfast pool check --repair"
LOW_METADATA, LEAST_FREE_METADATA = 0.2, 0.1
"""Free parts of all metadata. A pool that runs out of them is damaged, not only full: nothing is made in the last."""


def judge_pool(
    status: ThinPoolStatus, record: PoolRecord, below: int | None = None, wrong: PoolUnusable | None = None
) -> PoolStatus:
    """Can more be put into it? `below`: bytes that the file system below its file can give; `wrong`: with it. Pure."""
    unit = record.block_sectors * SECTOR
    free = (status.total_data_blocks - status.used_data_blocks) * unit
    available = free if below is None else min(free, below)
    used = blocks_of(status) if available == free else f"{available} bytes are left below {record.data.path}"
    used_metadata, metadata = status.used_metadata_blocks, status.total_metadata_blocks
    health, detail = PoolHealth.OK, ""
    if wrong is not None:
        health, detail = PoolHealth.FAILED, f"{wrong}: {wrong.hint}"
    elif status.mode is Mode.FAIL:
        health, detail = PoolHealth.FAILED, f"pool {record.name} has failed: see the kernel's log"
    elif status.needs_check:
        health, detail = PoolHealth.READ_ONLY, f"the metadata of pool {record.name} must be checked: {REPAIR}"
    elif status.mode is Mode.READ_ONLY and not lacks_metadata(status):
        health, detail = PoolHealth.READ_ONLY, f"pool {record.name} is read-only: see the kernel's log, then {REPAIR}"
    elif status.mode is Mode.OUT_OF_DATA_SPACE or available < unit:
        health, detail = PoolHealth.FULL, f"pool {record.name} is full: {used}"
    elif lacks_metadata(status):
        health = PoolHealth.FULL
        detail = (
            f"the metadata of pool {record.name} is full: {used_metadata} of {metadata} blocks: holdfast pool extend"
        )
    elif is_low_on_metadata(status):
        health = PoolHealth.LOW
        detail = f"the metadata of pool {record.name} is nearly full: {used_metadata} of {metadata} blocks"
    elif available < record.low_water_bytes:
        health, detail = PoolHealth.LOW, f"pool {record.name} is nearly full: {used}"
    return PoolStatus(
        capacity_bytes=status.total_data_blocks * unit + metadata * METADATA_BLOCK,
        used_bytes=status.used_data_blocks * unit + used_metadata * METADATA_BLOCK,
        available_bytes=available,
        low_water_bytes=record.low_water_bytes,
        health=health,
        detail=detail,
    )


def is_low_on_metadata(status: ThinPoolStatus) -> bool:
    """Should it have more room for metadata? Pure."""
    return _free_metadata(status) < LOW_METADATA


def lacks_metadata(status: ThinPoolStatus) -> bool:
    """Has it so little room left for metadata that nothing may be made in it? Pure."""
    return _free_metadata(status) < LEAST_FREE_METADATA


def _free_metadata(status: ThinPoolStatus) -> float:
    total = status.total_metadata_blocks
    return (total - status.used_metadata_blocks) / total if total else 1.0


def unusable(name: str, status: ThinPoolStatus) -> PoolUnusable:
    """Why nothing can be made in a pool."""
    what = "must be checked" if status.needs_check else f"is {status.mode}"
    hint = f"take its devices out of use (holdfast snapshots), then: {REPAIR}"
    if lacks_metadata(status) and not status.needs_check:
        hint = "give its metadata more room: holdfast pool extend"
    return PoolUnusable(f"pool {name} {what}: {blocks_of(status)}", hint=hint)


def blocks_of(status: ThinPoolStatus) -> str:
    """How much of both kinds is used, in words."""
    return (
        f"{status.used_data_blocks} of {status.total_data_blocks} blocks of data and {status.used_metadata_blocks} of "
        f"{status.total_metadata_blocks} of metadata are used"
    )


# --- What a pool lies on: grown with it, and refused when it was cut off or replaced --------------------


def grow_files(record: PoolRecord, status: ThinPoolStatus, size: int | None) -> None:
    """Make the files of a pool as large as is asked for, and those of its metadata as large as is needed then.

    Metadata that are nearly full are doubled, with or without more room for data. Block devices grow by themselves.
    """
    data, metadata = record.data, record.metadata
    if not data.is_file:
        if size is not None:
            raise InvalidName(
                f"{data.path} is no file of ours", hint="let the block device grow, then extend without --size"
            )
        return
    present, needs_metadata = os.path.getsize(data.path), is_low_on_metadata(status)
    if size is None and needs_metadata:
        size = present
    if not size or size < present:
        raise InvalidName(f"{data.path} has {present} bytes already", hint="give a larger --size")
    wanted = metadata_bytes(size)
    if needs_metadata:
        wanted = min(max(wanted, 2 * status.total_metadata_blocks * METADATA_BLOCK), MOST_METADATA)
    # More data needs more metadata, and a pool whose metadata is full is damaged: that one first.
    for path, length in ((metadata.path, wanted), (data.path, size)):
        if length > os.path.getsize(path):
            make_file(Path(path), length, allocate=path == metadata.path)
        loops.refresh(Path(path))  # in any case: a crash may have come between the two


def refuse_cut_off(record: PoolRecord, superblock: PoolSuperblock) -> None:
    """Raise PoolUnusable if a file or disk has become shorter than the pool that lies on it."""
    for backing, needed in (
        (record.metadata, superblock.metadata_blocks * METADATA_BLOCK),
        (record.data, superblock.data_blocks * superblock.block_sectors * SECTOR),
    ):
        found = disk_at(backing.open()).size
        if found < needed:
            raise _cut_off(backing, found, needed)


def _cut_off(backing: Backing, found: int, needed: int) -> PoolUnusable:
    longer = f"truncate --size={needed} {backing.path}" if backing.is_file else "let it grow to that"
    return PoolUnusable(
        f"{backing.path} has {found} bytes, and the pool on it has {needed}: it was cut off",
        hint=f"put it back, or: {longer}; then verify-system --deep tells what was lost with the rest",
    )


class WrongFile(msgspec.Struct, frozen=True):
    """A file of a pool in use that is not as the pool needs it."""

    code: str
    path: str
    error: PoolUnusable


def wrong_files(record: PoolRecord, table: ThinPoolTable, status: ThinPoolStatus) -> Iterator[WrongFile]:
    """Files of a pool in use that were removed, replaced or cut off: the kernel goes on, until the next start."""
    for backing, used, needed in (
        (record.metadata, table.metadata, status.total_metadata_blocks * METADATA_BLOCK),
        (record.data, table.data, table.length * SECTOR),
    ):
        if not backing.is_file:
            continue
        if not (os.path.isfile(backing.path) and used in _shown_by(backing.path)):
            yield WrongFile("pool-file-replaced", backing.path, _replaced(record, backing, used))
        elif (found := os.path.getsize(backing.path)) < needed:
            yield WrongFile("pool-file-cut-off", backing.path, _cut_off(backing, found, needed))


def _shown_by(path: str) -> set[str]:
    """The loop devices of a file, as major:minor."""
    numbers = [os.stat(node).st_rdev for node in loops.attached(Path(path))]
    return {f"{os.major(number)}:{os.minor(number)}" for number in numbers}


def _replaced(record: PoolRecord, backing: Backing, used: str) -> PoolUnusable:
    node = node_of(used)
    return PoolUnusable(
        f"{backing.path} is not the file that the pool is using: it was removed or replaced",
        hint=f"what is in use is still in {node}: unmount all snapshots, dmsetup remove each of them, then "
        f"dmsetup remove {record.name}, cp --sparse=always {node} {backing.path}, losetup --detach {node}, "
        "holdfast snapshot activate --all",
    )


# --- The beginning of a pool: what it is going to be made of, and whether that may be taken -------------

METADATA_FILE = "pool-metadata.img"
DATA_FILE = "pool-data.img"
LEAST_DATA = 16 << 20


def new_record(
    root: Path, name: str, size: int, metadata: str | None, data: str | None, low_water_bytes: int | None
) -> PoolRecord:
    """What is going to be a pool. Raises InvalidName, NoSpace. Crash: files that the next one takes."""
    if (metadata is None) != (data is None):
        raise InvalidName("a pool needs two block devices, or none", hint="give both --metadata and --data")
    if metadata is not None and data is not None:
        if os.path.samestat(os.stat(metadata), os.stat(data)) or os.stat(metadata).st_rdev == os.stat(data).st_rdev:
            raise InvalidName(f"{metadata} and {data} are one disk", hint="give a pool two block devices")
        disks = disk_at(metadata), disk_at(data)
        for path, disk, least in ((metadata, disks[0], LEAST_METADATA), (data, disks[1], LEAST_DATA)):
            if disk.size < least:
                raise InvalidName(f"{path} is too small for a pool: {disk.size} bytes", hint=f"at least {least}")
        size = disks[1].size
        backings = (
            Backing(path=metadata, is_file=False, disk=disks[0]),
            Backing(path=data, is_file=False, disk=disks[1]),
        )
    else:
        if size < LEAST_DATA:
            raise InvalidName(f"a pool of {size} bytes is too small", hint=f"--size of at least {LEAST_DATA}")
        # Metadata that cannot be written damage the pool, so their room is taken at once.
        make_file(root / METADATA_FILE, metadata_bytes(size), allocate=True)
        make_file(root / DATA_FILE, size, allocate=False)
        sync_directory(root)
        backings = (
            Backing(path=str(root / METADATA_FILE), is_file=True),
            Backing(path=str(root / DATA_FILE), is_file=True),
        )
    return PoolRecord(
        name=name,
        mark=secrets.randbits(62) | 1,
        metadata=backings[0],
        data=backings[1],
        low_water_bytes=size // 10 if low_water_bytes is None else low_water_bytes,
    )


def is_begun(record: PoolRecord, name: str, size: int, metadata: str | None, data: str | None) -> bool:
    """Is it the beginning of what is asked for, and not of something else that came to nothing?"""
    if metadata is not None or data is not None:
        given = (metadata, data)
    else:
        root = Path(record.data.path).parent
        given = (str(root / METADATA_FILE), str(root / DATA_FILE))
        if not record.data.is_file or not os.path.isfile(given[1]) or os.path.getsize(given[1]) != size:
            return False
    return (record.name, record.metadata.path, record.data.path) == (name, *given)


def refuse_used(record: PoolRecord, *, repeated: bool, force: bool) -> None:
    """Raise PoolUnusable if something is on its disks; of a pool that was cut short its own beginning may be."""
    for backing in (record.metadata, record.data):
        backing.refuse_other_disk()
        refuse_in_use(backing.open())
    superblock = read_superblock(record.metadata.open()) if repeated else None
    begun = superblock is not None and superblock.transaction_id in (0, record.mark)
    for backing in (record.data,) if begun else (record.metadata, record.data):
        if not force and not is_blank(backing.open()):
            raise PoolUnusable(
                f"{backing.path} holds something already, which a new pool would destroy",
                hint="wipefs --all it if it is not needed, or give --force",
            )
