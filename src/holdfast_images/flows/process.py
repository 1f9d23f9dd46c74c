"""deactivate-snapshot and remove-image: what undoes the others, as safe to interrupt as they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Flow, Pipeline, Run, Transaction
from holdfast_images.catalog.tables import Snapshot
from holdfast_images.errors import CatalogConflict, UnknownImage
from holdfast_images.flows import steps as retries
from holdfast_images.flows.activate import activate_flow
from holdfast_images.flows.context import FlowContext, device_of
from holdfast_images.flows.download import delete_device, download_flow, reserved_devices
from holdfast_images.flows.schemas import (
    PROCESS,
    DeactivateRequest,
    DeactivateResponse,
    ProcessRequest,
    RemoveRequest,
    RemoveResponse,
    key_of_stage,
    to_activate,
    to_download,
    to_unpack,
)
from holdfast_images.flows.steps import aborting, lock_image, owner_of, refuse_bad_request, unlock_image
from holdfast_images.flows.unpack import unpack_flow
from holdfast_images.model import device_number, file_name, incoming_name
from holdfast_images.source.partial import remove_partials

DeactivateRun = Run[DeactivateRequest, DeactivateResponse]
RemoveRun = Run[RemoveRequest, RemoveResponse]


def deactivate_flow(ctx: FlowContext) -> Flow[DeactivateRequest, DeactivateResponse]:
    """deactivate-snapshot: deactivate → record."""
    return (
        Flow(ctx.flow_name("deactivate-snapshot"), request=DeactivateRequest, response=DeactivateResponse)
        .start("deactivate", aborting(partial(deactivate, ctx)), retry=retries.REMOVE)
        .commit("record", aborting(partial(record_inactive, ctx)), retry=retries.FORGET)
    )


def deactivate(ctx: FlowContext, run: DeactivateRun) -> DeactivateResponse:
    """Take the snapshot's device out of use; nobody may have it open."""
    name = run.request.snapshot_name
    row = ctx.catalog.get_snapshot_by_name(name)
    if row is None:
        raise UnknownImage(f"there is no snapshot {name}", hint="see which there are: holdfast snapshots")
    with run.effect("deactivate"):
        _take_out_of_use(ctx, row, delete=run.request.delete)
    return DeactivateResponse(
        image_id=row.image_id, snapshot_id=row.snapshot_id, snapshot_name=name, deactivated=row.active
    )


def record_inactive(ctx: FlowContext, run: DeactivateRun, tx: Transaction) -> None:
    """Record it as inactive, or forget it."""
    response = run.response
    if run.request.delete:
        ctx.catalog.delete_snapshot(response.snapshot_id, tx=tx)
        ctx.catalog.release_snapshot_id(response.image_id, response.snapshot_name, tx=tx)
    else:
        ctx.catalog.deactivate_snapshot(response.snapshot_id, tx=tx)


def _take_out_of_use(ctx: FlowContext, row: Snapshot, *, delete: bool) -> None:
    found = ctx.devices.look(row.snapshot_name)
    number = device_number(row.snapshot_id)
    if found is None or number is None or found.id not in (None, number):
        return
    snapshot = device_of(row.snapshot_id, row.snapshot_name, found.uuid or "", found.size)
    ctx.devices.unmount(snapshot)
    ctx.devices.deactivate(snapshot)
    if delete:
        ctx.devices.delete(snapshot)


def remove_flow(ctx: FlowContext) -> Flow[RemoveRequest, RemoveResponse]:
    """remove-image: check-removable → remove-snapshots → remove-device → remove-file → forget."""
    return (
        Flow(
            ctx.flow_name("remove-image"),
            request=RemoveRequest,
            response=RemoveResponse,
            cleanup=lambda run: unlock_image(ctx, run, run.request.image_id),
        )
        .start("check-removable", aborting(partial(check_removable, ctx)), retry=retries.CHECK_REMOVABLE)
        .to("remove-snapshots", aborting(partial(remove_snapshots, ctx)), retry=retries.REMOVE)
        .to("remove-device", aborting(partial(remove_device, ctx)), retry=retries.REMOVE)
        .to("remove-file", aborting(partial(remove_file, ctx)), retry=retries.REMOVE)
        .commit("forget", aborting(partial(forget, ctx)), retry=retries.FORGET)
    )


def check_removable(ctx: FlowContext, run: RemoveRun) -> RemoveResponse:
    """Nobody downloads or unpacks the image meanwhile, and no snapshot of it is in use, unless it is forced."""
    request = run.request
    lock_image(ctx, run, request.image_id)
    image = ctx.catalog.get_image_by_id(request.image_id)
    if image is None:
        raise UnknownImage(f"there is no image {request.image_id}", hint="see which there are: holdfast images")
    snapshots = ctx.catalog.get_snapshots_by_image_id(request.image_id)
    if snapshots and not request.force:
        names = ", ".join(row.snapshot_name for row in snapshots)
        raise CatalogConflict(
            f"image {request.image_id} has snapshots: {names}", hint="remove them first, or all of it with --force"
        )
    unpacked = ctx.catalog.get_unpacked_image_by_id(request.image_id)
    return RemoveResponse(
        image_id=request.image_id,
        snapshots=[row.snapshot_name for row in snapshots],
        device_name=unpacked.device_name if unpacked else "",
        local_path=image.local_path,
    )


def remove_snapshots(ctx: FlowContext, run: RemoveRun) -> None:
    """Delete the devices of all snapshots; one that is in use stops the removal."""
    for row in ctx.catalog.get_snapshots_by_image_id(run.request.image_id):
        with run.effect("remove-snapshot"):
            _take_out_of_use(ctx, row, delete=True)


def remove_device(ctx: FlowContext, run: RemoveRun) -> None:
    """Delete the image's device, and what lies beside it: one that was replaced, or was to replace it."""
    row = ctx.catalog.get_unpacked_image_by_id(run.request.image_id)
    own = device_number(row.device_id) if row is not None else None
    reserved = [each.device_id for each in reserved_devices(ctx, run.request.image_id)]
    for device_id in dict.fromkeys([*([own] if own is not None else []), *reserved]):
        with run.effect("remove-device"):
            delete_device(ctx, device_id)


def remove_file(ctx: FlowContext, run: RemoveRun) -> None:
    """Delete the downloaded file and what downloads have left beside it."""
    # By the image's id, never by what a row says: one that was tampered with must not delete other files.
    image_id = run.request.image_id
    if run.response.local_path and Path(run.response.local_path).parent != ctx.images:
        run.log.warning("%s is not where images are kept, and stays", run.response.local_path)
    for path in ctx.files_of(image_id):
        with run.effect("remove-file"):
            path.unlink(missing_ok=True)
    for name in (file_name(image_id), incoming_name(image_id)):
        remove_partials(ctx.images / name)


def forget(ctx: FlowContext, run: RemoveRun, tx: Transaction) -> None:
    """Delete every row of the image, and let go of it."""
    image_id = run.request.image_id
    for row in ctx.catalog.get_snapshots_by_image_id(image_id):
        ctx.catalog.delete_snapshot(row.snapshot_id, tx=tx)
    ctx.catalog.delete_image(image_id, tx=tx)
    ctx.catalog.release_reservations(image_id, tx=tx)
    ctx.catalog.release_image_lock(image_id, owner_of(run), tx=tx)


# --- process-image: download, unpack and activate as one job; and every flow that a worker of images runs ---

QUEUE_LIMITS = {"downloads": 5, "unpacking": 2}


def process_flow(ctx: FlowContext) -> Pipeline[ProcessRequest]:
    """The pipeline, done with the parts of this context. Equal requests at the same time share their stages."""
    return (
        Pipeline(ctx.flow_name(PROCESS), request=ProcessRequest)
        .then(
            download_flow(ctx),
            name="download",
            request=lambda view: to_download(refuse_bad_request(view.request)),
            key=lambda view: key_of_stage(refuse_bad_request(view.request), "download"),
        )
        .then(
            unpack_flow(ctx),
            name="unpack",
            request=lambda view: to_unpack(view.request, view.previous),
            key=lambda view: key_of_stage(view.request, "unpack"),
        )
        .then(
            activate_flow(ctx),
            name="activate",
            request=lambda view: to_activate(view.request, view.previous),
            key=lambda view: key_of_stage(view.request, "activate"),
        )
    )


def all_flows(ctx: FlowContext) -> list[Flow[Any, Any]]:
    """Everything that a worker of images runs, the stages of the pipeline included."""
    process = process_flow(ctx)
    return [process, *process.stages.values(), deactivate_flow(ctx), remove_flow(ctx)]


def queue_limits(ctx: FlowContext) -> Mapping[str, int]:
    """How many jobs of each queue may run at once."""
    return {ctx.queue_name(name): limit for name, limit in QUEUE_LIMITS.items()}
