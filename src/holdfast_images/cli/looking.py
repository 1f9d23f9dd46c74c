"""`holdfast images` and `snapshots`: what the catalog has."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

from holdfast.cli.command import Command
from holdfast.cli.output import print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.catalog.rows import Image, Row, Snapshot, UnpackedImage
from holdfast_images.cli.opening import opened_images

Located = TypeVar("Located", Snapshot, UnpackedImage)

IMAGE_COLUMNS = ("image", "key", "download", "activation", "bytes", "device", "snapshots")
SNAPSHOT_COLUMNS = ("snapshot", "image", "id", "active", "path")


@click.command(cls=Command)
@click.option(
    "--status",
    type=click.Choice(["pending", "downloading", "completed", "failed"]),
    help="Only images whose download has this status.",
)
@click.pass_obj
def images(settings: Settings, status: str | None) -> None:
    """List images."""
    with opened_images(settings, read_only=True) as manager:
        rows = manager.catalog.list_images(status or "")
        devices = {row.image_id: row for row in manager.catalog.list_unpacked_images()}
        taken = manager.catalog.list_snapshots()
        paths = {row.image_id: str(manager.shop.recorded_file(row)) for row in rows}
    listed = [
        {
            **fields_of(row),
            "local_path": paths[row.image_id],
            "device_name": devices[row.image_id].device_name if row.image_id in devices else None,
            "snapshots": [each.snapshot_name for each in taken if each.image_id == row.image_id],
        }
        for row in rows
    ]
    show(settings, {"images": listed}, lambda: print_table(IMAGE_COLUMNS, map(_image_row, rows, listed)))


@click.command(cls=Command)
@click.option("--active", is_flag=True, help="Only those in use.")
@click.pass_obj
def snapshots(settings: Settings, active: bool) -> None:
    """List snapshots."""
    with opened_images(settings, read_only=True) as manager:
        rows = manager.catalog.list_active_snapshots() if active else manager.catalog.list_snapshots()
        rows = [at_its_path(manager, row) for row in rows]
    data = {"snapshots": [fields_of(row) for row in rows]}
    show(settings, data, lambda: print_table(SNAPSHOT_COLUMNS, map(snapshot_row, rows)))


def at_its_path(manager: Images, row: Located) -> Located:
    """The row of a device or snapshot with the path that it has here, whatever was recorded elsewhere."""
    name = row.snapshot_name if isinstance(row, Snapshot) else row.device_name
    return msgspec.structs.replace(row, device_path=str(manager.devices.path_of(name)))


def fields_of(row: Row) -> dict[str, Any]:
    """A row as JSON has it: without the number of the row, and times as everywhere in milliseconds since 1970."""
    fields = msgspec.structs.asdict(row)
    fields.pop("id", None)
    return {
        name: round(value.timestamp() * 1000) if isinstance(value, datetime) else value
        for name, value in fields.items()
    }


def snapshot_row(row: Snapshot) -> tuple[object, ...]:
    """A snapshot as a row of a table."""
    return (row.snapshot_name, row.image_id, row.snapshot_id, "yes" if row.active else "no", row.device_path)


def _image_row(row: Image, data: dict[str, Any]) -> tuple[object, ...]:
    names = ", ".join(data["snapshots"])
    return (
        row.image_id,
        row.s3_key,
        row.download_status,
        row.activation_status,
        row.size_bytes,
        data["device_name"],
        names,
    )
