"""What a pool lies on: grown with it, and refused when it was cut off or replaced."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast_images.devices import loops
from holdfast_images.devices.disks import disk_at
from holdfast_images.devices.dm_table import MOST_METADATA, SECTOR, ThinPoolStatus, ThinPoolTable, metadata_bytes
from holdfast_images.devices.pool_health import METADATA_BLOCK, is_low_on_metadata
from holdfast_images.devices.pool_record import PoolRecord, Superblock, make_file
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
            longer = f"truncate --size={needed} {backing.path}" if backing.is_file else "let it grow to that"
            raise PoolUnusable(
                f"{backing.path} has {found} bytes, and the pool on it has {needed}: it was cut off",
                hint=f"put it back, or: {longer}; then verify-system --deep tells what was lost with the rest",
            )


def refuse_replaced(record: PoolRecord, table: ThinPoolTable) -> None:
    """Raise PoolUnusable if the pool in use lies on other files than those that are found at its paths."""
    for path in replaced_files(record, table):
        raise PoolUnusable(
            f"{path} is not the file that the pool is using: it was removed or replaced",
            hint="the file in use can still be copied from its loop device (losetup --list): put it back",
        )


def replaced_files(record: PoolRecord, table: ThinPoolTable) -> list[str]:
    """Those of a pool that are not the ones it is using."""
    pairs = ((record.metadata, table.metadata), (record.data, table.data))
    return [backing.path for backing, used in pairs if backing.is_file and replaced(backing.path, used)]


def replaced(path: str, used: str) -> bool:
    """Is the loop device major:minor, on which the pool lies, none of this file's?"""
    numbers = {os.stat(node).st_rdev for node in loops.attached(Path(path))}
    major, minor = map(int, used.split(":"))
    return os.makedev(major, minor) not in numbers
