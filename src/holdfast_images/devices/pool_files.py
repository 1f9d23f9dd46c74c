"""What a pool lies on: grown with it, and refused when it was cut off or replaced."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast_images.devices import loops
from holdfast_images.devices.disks import disk_at, node_of
from holdfast_images.devices.dm_table import MOST_METADATA, SECTOR, ThinPoolStatus, ThinPoolTable, metadata_bytes
from holdfast_images.devices.pool_health import METADATA_BLOCK, is_low_on_metadata
from holdfast_images.devices.pool_record import Backing, PoolRecord, Superblock, make_file
from holdfast_images.errors import InvalidName, PoolUnusable


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


def refuse_cut_off(record: PoolRecord, superblock: Superblock) -> None:
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
