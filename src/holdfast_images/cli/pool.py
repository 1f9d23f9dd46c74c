"""`holdfast pool …`: the thin pool that the devices of the device mapper are made in."""

from __future__ import annotations

import re
from typing import Any

import click
import msgspec

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_fields, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.session import data_option, image_manager
from holdfast_images.errors import InvalidName
from holdfast_images.pool import DEFAULT_NAME, PoolReport

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
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Its name in the device mapper.")
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
    with image_manager(settings, **flags) as images:
        report = images.pool.create(
            size=size, metadata=metadata, data=data_device, name=name, low_water=low_water, force=force
        )
    _show(settings, report)
    return ExitCode.OK


@pool.command()
@data_option
@click.pass_obj
def status(settings: Settings, /, **flags: Any) -> int:
    """Say how much room there is. Ends with 7 if the pool is nearly full, full, or not usable."""
    with image_manager(settings, **flags) as images:
        report = images.pool.status()
    _show(settings, report)
    return ExitCode.OK if report.is_well else ExitCode.FINDINGS


@pool.command()
@click.option("--size", type=Size(), help="How large its file shall be; a block device must have grown before.")
@data_option
@click.pass_obj
def extend(settings: Settings, /, size: int | None, **flags: Any) -> int:
    """Give the pool more room, while it is used.

    Metadata that are nearly full are doubled, too; without --size a pool on files gets only that.
    """
    with image_manager(settings, **flags) as images:
        _show(settings, images.pool.extend(size))
    return ExitCode.OK


@pool.command()
@click.option("--repair", is_flag=True, help="Clear the mark that it must be checked, if nothing is wrong.")
@click.option("--offline", is_flag=True, help="Read all its metadata: nothing of it may be active.")
@data_option
@click.pass_obj
def check(settings: Settings, /, repair: bool, offline: bool, **flags: Any) -> int:
    """Hold pool, records, device mapper, mounts and loop devices against each other. Ends with 7 if they differ."""
    with image_manager(settings, **flags) as images:
        if repair or offline:
            images.pool.check_metadata(repair=repair)
            note(settings, "thin_check found nothing wrong")
        found = images.pool.check()
    return show_findings(settings, found)


def _show(settings: Settings, report: PoolReport) -> None:
    """Of a pool that cannot be used only what is known."""
    fields = {name: value for name, value in msgspec.structs.asdict(report).items() if value is not None}
    show(settings, fields, lambda: print_fields(fields.items()))
