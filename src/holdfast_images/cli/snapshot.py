"""`holdfast snapshot …`: snapshots made and taken out of use."""

from __future__ import annotations

from typing import Any

import click

from holdfast import HoldfastError
from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, show
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.catalog.rows import Snapshot
from holdfast_images.cli.following import finish
from holdfast_images.cli.image import found
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.settings import data_option
from holdfast_images.errors import Interrupted, InvalidName, UnknownImage
from holdfast_images.flows.messages import ActivateRequest, ActivateResponse, DeactivateRequest, DeactivateResponse
from holdfast_images.model import valid_snapshot_name


@click.group(cls=Group)
def snapshot() -> None:
    """Make a snapshot, take one out of use, or bring it back."""


@snapshot.command()
@click.argument("image_id", metavar="IMAGE")
@click.argument("name")
@data_option
@click.pass_obj
def create(settings: Settings, /, image_id: str, name: str, **flags: Any) -> int:
    """Make one more snapshot of an image, and print its path.

    One of this name that is there and in use is found, and not made again.
    """
    with opened_images(settings, **flags) as images:
        found(images, image_id)
        unpacked = images.catalog.get_unpacked_image_by_id(image_id)
        if unpacked is None:
            raise UnknownImage(f"image {image_id} is not unpacked", hint="process it first: holdfast process-image")
        request = ActivateRequest(
            image_id=image_id,
            device_id=unpacked.device_id,
            device_name=unpacked.device_name,
            snapshot_name=valid_snapshot_name(name),
        )
        job = images.engine.submit(images.flow("activate-image"), request, key=f"{image_id}/{name}")
        made = finish(settings, images, job, ActivateResponse, name=f"snapshot {name}")
    data = {
        "image_id": image_id,
        "snapshot_id": made.snapshot_id,
        "snapshot_name": made.snapshot_name,
        "snapshot_path": made.device_path,
        "created": made.activated,
    }
    show(settings, data, lambda: print(made.device_path))
    return ExitCode.OK


@snapshot.command()
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Every snapshot that is recorded as in use, as after a reboot.")
@data_option
@click.pass_obj
def activate(settings: Settings, /, names: tuple[str, ...], every: bool, **flags: Any) -> int:
    """Bring snapshots back into use, and print their paths.

    Those that are named, or with --all every one that was in use: thin devices are gone after a reboot, or when
    somebody has removed them; what was written to them is not. One that was taken out of use on purpose comes back
    only by its name. Ends with 1 if one could not be brought back; the others are.
    """
    if bool(names) == every:
        raise InvalidName("give the names of snapshots, or --all", hint="see which there are: holdfast snapshots")
    with opened_images(settings, **flags) as images:
        rows = {row.snapshot_name: row for row in images.catalog.list_snapshots()}
        unknown = [name for name in names if name not in rows]
        if unknown:
            raise UnknownImage(f"there is no snapshot {unknown[0]}", hint="see which there are: holdfast snapshots")
        wanted = [rows[name] for name in names] if names else [row for row in rows.values() if row.active]
        done = [_activated(settings, images, row) for row in wanted]
    show(settings, done, lambda: _print_paths(done))
    for each in done:
        if each["error"]:
            note(settings, f"{each['snapshot_name']} is not in use: {each['error']}")
    return ExitCode.FAILURE if any(each["error"] for each in done) else ExitCode.OK


def _print_paths(done: list[dict[str, Any]]) -> None:
    for each in done:
        if each["snapshot_path"]:
            print(each["snapshot_path"])


def _activated(settings: Settings, images: Images, row: Snapshot) -> dict[str, Any]:
    """One of many: why it failed is told with the others."""
    unpacked = images.catalog.get_unpacked_image_by_id(row.image_id)
    request = ActivateRequest(
        image_id=row.image_id,
        device_id=row.origin_device_id,
        device_name=unpacked.device_name if unpacked else "",
        snapshot_name=row.snapshot_name,
    )
    answer = {"image_id": row.image_id, "snapshot_name": row.snapshot_name, "snapshot_path": "", "error": ""}
    try:
        key = f"{row.image_id}/{row.snapshot_name}"
        job = images.engine.submit(images.flow("activate-image"), request, key=key)
        made = finish(settings, images, job, ActivateResponse, name=f"snapshot {row.snapshot_name}")
    except Interrupted:
        raise
    except HoldfastError as error:
        return {**answer, "error": f"{error}" + (f" ({error.hint})" if error.hint else "")}
    return {**answer, "snapshot_path": made.device_path}


@snapshot.command()
@click.argument("name")
@click.option("--delete", is_flag=True, help="Remove it and what was written to it.")
@data_option
@click.pass_obj
def deactivate(settings: Settings, /, name: str, delete: bool, **flags: Any) -> int:
    """Take a snapshot out of use; with --delete for good.

    One that is mounted or open stays as it is.
    """
    with opened_images(settings, **flags) as images:
        request = DeactivateRequest(snapshot_name=valid_snapshot_name(name), delete=delete)
        key = f"{name}/{'delete' if delete else 'keep'}"
        job = images.engine.submit(images.flow("deactivate-snapshot"), request, key=key)
        done = finish(settings, images, job, DeactivateResponse, name=f"deactivate {name}")
    show(settings, {**_fields(done), "deleted": delete}, lambda: print(name))
    note(settings, f"{name} is {'deleted' if delete else 'out of use'}")
    return ExitCode.OK


def _fields(done: DeactivateResponse) -> dict[str, Any]:
    return {
        "image_id": done.image_id,
        "snapshot_id": done.snapshot_id,
        "snapshot_name": done.snapshot_name,
        "deactivated": done.deactivated,
    }
