"""What a pool is made of, recorded beside its devices: after a reboot the kernel knows nothing of it."""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast_images.devices import loops
from holdfast_images.devices.disks import Disk, disk_at, is_same
from holdfast_images.devices.dm_table import BLOCK_SECTORS, SECTOR
from holdfast_images.devices.locking import PAUSE, try_lock
from holdfast_images.errors import DeviceBusy, NoSpace, PoolUnusable
from holdfast_images.syncing import write_all

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


class Superblock(msgspec.Struct, frozen=True, kw_only=True):
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


def read_superblock(node: str) -> Superblock | None:
    """Of the metadata device; None if there is no pool on it."""
    raw = _read(node, 512)
    if len(raw) < 512 or struct.unpack_from("<Q", raw, 32)[0] != MAGIC:
        return None
    (flags,) = struct.unpack_from("<I", raw, 4)
    (transaction_id,) = struct.unpack_from("<Q", raw, 48)
    (block_sectors,) = struct.unpack_from("<I", raw, 336)
    return Superblock(
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
