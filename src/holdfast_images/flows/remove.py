"""deactivate-snapshot and remove-image: what undoes the others, as safe to interrupt as they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from holdfast import Flow, Run, Transaction
from holdfast_images.catalog.rows import Snapshot
from holdfast_images.errors import CatalogConflict, UnknownImage
from holdfast_images.flows import retries
from holdfast_images.flows.messages import DeactivateRequest, DeactivateResponse, RemoveRequest, RemoveResponse
from holdfast_images.flows.replacement import delete_device, reserved_devices
from holdfast_images.flows.steering import aborting, lock_image, owner_of, unlock_image
from holdfast_images.flows.workshop import Workshop, device_of
from holdfast_images.model import device_number, file_name, incoming_name
from holdfast_images.source.partial import remove_partials

DeactivateRun = Run[DeactivateRequest, DeactivateResponse]
RemoveRun = Run[RemoveRequest, RemoveResponse]


def deactivate_flow(shop: Workshop) -> Flow[DeactivateRequest, DeactivateResponse]:
    """deactivate-snapshot: deactivate → record."""
    return (
        Flow(shop.flow_name("deactivate-snapshot"), request=DeactivateRequest, response=DeactivateResponse)
        .start("deactivate", aborting(partial(deactivate, shop)), retry=retries.REMOVE)
        .commit("record", aborting(partial(record_inactive, shop)), retry=retries.FORGET)
    )


def deactivate(shop: Workshop, run: DeactivateRun) -> DeactivateResponse:
    """Take the snapshot's device out of use; nobody may have it open."""
    name = run.request.snapshot_name
    row = shop.catalog.get_snapshot_by_name(name)
    if row is None:
        raise UnknownImage(f"there is no snapshot {name}", hint="see which there are: holdfast snapshots")
    with run.effect("deactivate"):
        _take_out_of_use(shop, row, delete=run.request.delete)
    return DeactivateResponse(
        image_id=row.image_id, snapshot_id=row.snapshot_id, snapshot_name=name, deactivated=row.active
    )


def record_inactive(shop: Workshop, run: DeactivateRun, tx: Transaction) -> None:
    """Record it as inactive, or forget it."""
    response = run.response
    if run.request.delete:
        shop.catalog.delete_snapshot(response.snapshot_id, tx=tx)
        shop.catalog.release_snapshot_id(response.image_id, response.snapshot_name, tx=tx)
    else:
        shop.catalog.deactivate_snapshot(response.snapshot_id, tx=tx)


def _take_out_of_use(shop: Workshop, row: Snapshot, *, delete: bool) -> None:
    found = shop.devices.look(row.snapshot_name)
    number = device_number(row.snapshot_id)
    if found is None or number is None or found.id not in (None, number):
        return
    snapshot = device_of(row.snapshot_id, row.snapshot_name, found.uuid or "", found.size)
    shop.devices.unmount(snapshot)
    shop.devices.deactivate(snapshot)
    if delete:
        shop.devices.delete(snapshot)


def remove_flow(shop: Workshop) -> Flow[RemoveRequest, RemoveResponse]:
    """remove-image: check-removable → remove-snapshots → remove-device → remove-file → forget."""
    return (
        Flow(
            shop.flow_name("remove-image"),
            request=RemoveRequest,
            response=RemoveResponse,
            cleanup=lambda run: unlock_image(shop, run, run.request.image_id),
        )
        .start("check-removable", aborting(partial(check_removable, shop)), retry=retries.CHECK_REMOVABLE)
        .to("remove-snapshots", aborting(partial(remove_snapshots, shop)), retry=retries.REMOVE)
        .to("remove-device", aborting(partial(remove_device, shop)), retry=retries.REMOVE)
        .to("remove-file", aborting(partial(remove_file, shop)), retry=retries.REMOVE)
        .commit("forget", aborting(partial(forget, shop)), retry=retries.FORGET)
    )


def check_removable(shop: Workshop, run: RemoveRun) -> RemoveResponse:
    """Nobody downloads or unpacks the image meanwhile, and no snapshot of it is in use, unless it is forced."""
    request = run.request
    lock_image(shop, run, request.image_id)
    image = shop.catalog.get_image_by_id(request.image_id)
    if image is None:
        raise UnknownImage(f"there is no image {request.image_id}", hint="see which there are: holdfast images")
    snapshots = shop.catalog.get_snapshots_by_image_id(request.image_id)
    if snapshots and not request.force:
        names = ", ".join(row.snapshot_name for row in snapshots)
        raise CatalogConflict(
            f"image {request.image_id} has snapshots: {names}", hint="remove them first, or all of it with --force"
        )
    unpacked = shop.catalog.get_unpacked_image_by_id(request.image_id)
    return RemoveResponse(
        image_id=request.image_id,
        snapshots=[row.snapshot_name for row in snapshots],
        device_name=unpacked.device_name if unpacked else "",
        local_path=image.local_path,
    )


def remove_snapshots(shop: Workshop, run: RemoveRun) -> None:
    """Delete the devices of all snapshots; one that is in use stops the removal."""
    for row in shop.catalog.get_snapshots_by_image_id(run.request.image_id):
        with run.effect("remove-snapshot"):
            _take_out_of_use(shop, row, delete=True)


def remove_device(shop: Workshop, run: RemoveRun) -> None:
    """Delete the image's device, and what lies beside it: one that was replaced, or was to replace it."""
    row = shop.catalog.get_unpacked_image_by_id(run.request.image_id)
    own = device_number(row.device_id) if row is not None else None
    reserved = [each.device_id for each in reserved_devices(shop, run.request.image_id)]
    for device_id in dict.fromkeys([*([own] if own is not None else []), *reserved]):
        with run.effect("remove-device"):
            delete_device(shop, device_id)


def remove_file(shop: Workshop, run: RemoveRun) -> None:
    """Delete the downloaded file and what downloads have left beside it."""
    # By the image's id, never by what a row says: one that was tampered with must not delete other files.
    image_id = run.request.image_id
    if run.response.local_path and Path(run.response.local_path).parent != shop.images:
        run.log.warning("%s is not where images are kept, and stays", run.response.local_path)
    for path in shop.files_of(image_id):
        with run.effect("remove-file"):
            path.unlink(missing_ok=True)
    for name in (file_name(image_id), incoming_name(image_id)):
        remove_partials(shop.images / name)


def forget(shop: Workshop, run: RemoveRun, tx: Transaction) -> None:
    """Delete every row of the image, and let go of it."""
    image_id = run.request.image_id
    for row in shop.catalog.get_snapshots_by_image_id(image_id):
        shop.catalog.delete_snapshot(row.snapshot_id, tx=tx)
    shop.catalog.delete_image(image_id, tx=tx)
    shop.catalog.release_reservations(image_id, tx=tx)
    shop.catalog.release_image_lock(image_id, owner_of(run), tx=tx)
