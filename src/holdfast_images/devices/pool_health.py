"""Can more be put into a pool? Judged from what the kernel says of it. Pure."""

from __future__ import annotations

from holdfast_images.devices.dm_table import SECTOR, Mode, ThinPoolStatus
from holdfast_images.devices.pool_record import PoolRecord
from holdfast_images.devices.protocol import PoolHealth, PoolStatus
from holdfast_images.errors import PoolUnusable

METADATA_BLOCK = 4096
REPAIR = "holdfast pool check --repair"
LOW_METADATA, LEAST_METADATA = 0.2, 0.1
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
    return _free_metadata(status) < LEAST_METADATA


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
