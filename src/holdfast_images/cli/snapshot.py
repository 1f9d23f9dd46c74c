"""`holdfast snapshot …`: snapshots made and taken out of use."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.following import finish
from holdfast_images.cli.image import found
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.settings import data_option
from holdfast_images.errors import UnknownImage
from holdfast_images.flows.messages import ActivateRequest, ActivateResponse, DeactivateRequest, DeactivateResponse
from holdfast_images.model import valid_snapshot_name


@click.group(cls=Group)
def snapshot() -> None:
    """Make a snapshot, or take one out of use."""


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
