"""`holdfast pool …`: the thin pool that the devices of the device mapper are made in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from holdfast import Finding, Severity
from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.catalog.place import database_path, is_postgres
from holdfast_images.cli.settings import data_option, settings_of
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.pool_checking import check_metadata
from holdfast_images.devices.pool_record import read_record
from holdfast_images.devices.protocol import PoolHealth, PoolStatus
from holdfast_images.devices.thin_pool import POOL_NAME, ThinPool
from holdfast_images.errors import InvalidName, PoolUnusable
from holdfast_images.settings import data_directory

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType[int]):
    """Bytes, with K, M, G or T for powers of 1024."""

    name = "size"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        """Raises InvalidName for what is no size."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
        if match is None:
            raise InvalidName(f"{value!r} is no size", hint="bytes, or a number and K, M, G or T: 20G")
        return int(match[1]) * UNITS[match[2].upper()]


@click.group(cls=Group)
def pool() -> None:
    """Make, watch, extend and check the thin pool."""


@pool.command()
@click.option("--size", type=Size(), default=0, help="Make it on files of this size below the data directory.")
@click.option("--metadata", metavar="DEVICE", help="Make it on block devices: this one for its metadata,")
@click.option("--data-device", metavar="DEVICE", help="and this one for its data.")
@click.option("--name", default=POOL_NAME, show_default=True, help="Its name in the device mapper.")
@click.option("--low-water", type=Size(), help="Warn with less than this left; a tenth if nothing is said.")
@click.option("--force", is_flag=True, help="Destroy what the block devices hold.")
@data_option
@click.pass_obj
def create(
    settings: Settings,
    /,
    size: int,
    metadata: str | None,
    data_device: str | None,
    name: str,
    low_water: int | None,
    force: bool,
    **flags: Any,
) -> int:
    """Make the pool.

    Killed in the midst of it, the same command goes on. Devices that hold anything are refused without --force.
    """
    made = ThinPool.create(
        _root(settings, flags),
        name=name,
        size=size,
        metadata=metadata,
        data=data_device,
        low_water_bytes=low_water,
        force=force,
    )
    _show_status(settings, made)
    return ExitCode.OK


@pool.command()
@data_option
@click.pass_obj
def status(settings: Settings, /, **flags: Any) -> int:
    """Say how much room there is. Ends with 7 if the pool is nearly full, full, or not usable."""
    root = _root(settings, flags)
    try:
        room = _show_status(settings, ThinPool.open(root))
    except PoolUnusable as error:
        if (record := read_record(root)) is None or not record.ready:
            raise
        fields = {"name": record.name, "health": str(PoolHealth.FAILED), "detail": _told(error)}
        fields |= {"data": record.data.path, "metadata": record.metadata.path}
        show(settings, fields, lambda: print_fields(fields.items()))
        return ExitCode.FINDINGS
    return ExitCode.OK if room.health is PoolHealth.OK else ExitCode.FINDINGS


@pool.command()
@click.option("--size", type=Size(), help="How large its file shall be; a block device must have grown before.")
@data_option
@click.pass_obj
def extend(settings: Settings, /, size: int | None, **flags: Any) -> int:
    """Give the pool more room, while it is used.

    Metadata that are nearly full are doubled, too; without --size a pool on files gets only that.
    """
    opened = ThinPool.open(_root(settings, flags))
    opened.extend(size)
    _show_status(settings, opened)
    return ExitCode.OK


@pool.command()
@click.option("--repair", is_flag=True, help="Clear the mark that it must be checked, if nothing is wrong.")
@click.option("--offline", is_flag=True, help="Read all its metadata: nothing of it may be active.")
@data_option
@click.pass_obj
def check(settings: Settings, /, repair: bool, offline: bool, **flags: Any) -> int:
    """Hold pool, records, device mapper, mounts and loop devices against each other. Ends with 7 if they differ."""
    root = _root(settings, flags)
    if repair or offline:
        check_metadata(root, repair=repair)
        note(settings, "thin_check found nothing wrong")
    try:
        found = DeviceMapperDevices(root, ThinPool.open(root)).disagreements()
    except PoolUnusable as error:
        if read_record(root) is None:
            raise
        found = [Finding(code="pool-unusable", severity=Severity.ERROR, subject="pool", message=_told(error))]
    return show_findings(settings, found)


def _told(error: PoolUnusable) -> str:
    return f"{error}: {error.hint}" if error.hint else str(error)


def _root(settings: Settings, flags: dict[str, Any]) -> Path:
    own = settings_of(settings, **flags)
    return data_directory(own, None if is_postgres(settings.place) else database_path(settings.place))


def _show_status(settings: Settings, opened: ThinPool) -> PoolStatus:
    room, now, record = opened.room(), opened.status(), opened.record
    fields = {
        "name": record.name,
        "health": str(room.health),
        "detail": room.detail,
        "available_bytes": room.available_bytes,
        "used_bytes": room.used_bytes,
        "capacity_bytes": room.capacity_bytes,
        "low_water_bytes": room.low_water_bytes,
        "data_blocks": f"{now.used_data_blocks}/{now.total_data_blocks}",
        "metadata_blocks": f"{now.used_metadata_blocks}/{now.total_metadata_blocks}",
        "mode": str(now.mode),
        "data": record.data.path,
        "metadata": record.metadata.path,
    }
    show(settings, fields, lambda: print_fields(fields.items()))
    return room
