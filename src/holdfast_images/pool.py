"""The thin pool that the devices of the device mapper are made in: made, watched, extended and checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast import Finding, Severity
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.pool_checking import check_metadata
from holdfast_images.devices.pool_record import read_record
from holdfast_images.devices.protocol import PoolHealth
from holdfast_images.devices.thin_pool import POOL_NAME, ThinPool
from holdfast_images.errors import PoolUnusable

DEFAULT_NAME = POOL_NAME
"""Of the pool in the device mapper."""


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much room there is. Of a pool that cannot be used, only what its record says and why."""

    name: str
    health: str
    """One of PoolHealth: `ok`, `low`, `full`, `read-only`, `failed`."""
    detail: str
    available_bytes: int | None = None
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    low_water_bytes: int | None = None
    data_blocks: str | None = None
    metadata_blocks: str | None = None
    mode: str | None = None
    data: str
    metadata: str

    @property
    def is_well(self) -> bool:
        """Can more be put into it?"""
        return self.health == PoolHealth.OK


class ImagePool:
    """The pool below one data directory. Needs no database, and root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(
        self,
        *,
        size: int = 0,
        metadata: str | None = None,
        data: str | None = None,
        name: str = DEFAULT_NAME,
        low_water: int | None = None,
        force: bool = False,
    ) -> PoolReport:
        """Make the pool: on files of `size` bytes, or on two block devices, which `force` destroys what is on.

        Crash: the same call goes on.
        """
        made = ThinPool.create(
            self._root, name=name, size=size, metadata=metadata, data=data, low_water_bytes=low_water, force=force
        )
        return _report(made)

    def status(self) -> PoolReport:
        """How much room there is. PoolUnusable if there is no pool."""
        try:
            return _report(ThinPool.open(self._root))
        except PoolUnusable as error:
            record = read_record(self._root)
            if record is None or not record.ready:
                raise
            return PoolReport(
                name=record.name,
                health=str(PoolHealth.FAILED),
                detail=_told(error),
                data=record.data.path,
                metadata=record.metadata.path,
            )

    def extend(self, size: int | None = None) -> PoolReport:
        """Give the pool more room, while it is used; metadata that are nearly full are doubled. Crash: more or not."""
        opened = ThinPool.open(self._root)
        opened.extend(size)
        return _report(opened)

    def check_metadata(self, *, repair: bool = False) -> None:
        """Read all its metadata, of which nothing may be active; PoolUnusable if anything is wrong with them.

        `repair` clears the mark that it must be checked. Crash: marked or not.
        """
        check_metadata(self._root, repair=repair)

    def check(self) -> Sequence[Finding]:
        """What pool, records, device mapper, mounts and loop devices do not agree about. Changes nothing."""
        try:
            return DeviceMapperDevices(self._root, ThinPool.open(self._root)).disagreements()
        except PoolUnusable as error:
            if read_record(self._root) is None:
                raise
            return [Finding(code="pool-unusable", severity=Severity.ERROR, subject="pool", message=_told(error))]


def _report(opened: ThinPool) -> PoolReport:
    room, now, record = opened.room(), opened.status(), opened.record
    return PoolReport(
        name=record.name,
        health=str(room.health),
        detail=room.detail,
        available_bytes=room.available_bytes,
        used_bytes=room.used_bytes,
        capacity_bytes=room.capacity_bytes,
        low_water_bytes=room.low_water_bytes,
        data_blocks=f"{now.used_data_blocks}/{now.total_data_blocks}",
        metadata_blocks=f"{now.used_metadata_blocks}/{now.total_metadata_blocks}",
        mode=str(now.mode),
        data=record.data.path,
        metadata=record.metadata.path,
    )


def _told(error: PoolUnusable) -> str:
    return f"{error}: {error.hint}" if error.hint else str(error)
