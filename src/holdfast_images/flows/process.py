"""process-image, and its flows that follow the unpacking: activate-image, deactivate-snapshot and remove-image.

activate-image: check-snapshot → create-snapshot → register.

| killed in | leaves | the next execution |
|---|---|---|
| check-snapshot | nothing | asks again |
| create-snapshot | a reserved id, no snapshot, a half-made or a whole one | makes it, or finds it made |
| register | the snapshot, and the rows or no rows | writes both rows, once |

Whoever removes the image at the same time sees the snapshot's row, or the snapshot is not recorded and left to gc.
The two that undo the others are as safe to interrupt as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast import Flow, Handoff, Pipeline, Run, Transaction
from holdfast_images.catalog.tables import Snapshot
from holdfast_images.devices.protocol import Device, Health
from holdfast_images.errors import (
    CatalogConflict,
    DeviceBusy,
    DeviceLost,
    ImageError,
    InvalidName,
    NotAsSealed,
    UnknownImage,
)
from holdfast_images.flows import steps as retries
from holdfast_images.flows.context import FlowContext, device_of
from holdfast_images.flows.download import delete_device, download_flow, remove_replaced, reserved_devices
from holdfast_images.flows.lookup import is_active, look_for_snapshot, origin_of_snapshots, snapshot_response
from holdfast_images.flows.schemas import (
    PROCESS,
    ActivateRequest,
    ActivateResponse,
    DeactivateRequest,
    DeactivateResponse,
    ProcessRequest,
    RemoveRequest,
    RemoveResponse,
    key_of_stage,
    snapshot_name_of,
    to_activate,
    to_download,
    to_unpack,
)
from holdfast_images.flows.steps import (
    aborting,
    going_back,
    lock_image,
    locked_in,
    owner_of,
    refuse_bad_request,
    release_unused,
    unlock_image,
    wait_for_image,
)
from holdfast_images.flows.unpack import unpack_flow
from holdfast_images.model import device_number, file_name, incoming_name, snapshot_id_candidates
from holdfast_images.source.partial import remove_partials

ActivateRun = Run[ActivateRequest, ActivateResponse]

COLLISIONS = 3
"""So many ids may be found to hold something else before it is given up."""


def activate_flow(ctx: FlowContext) -> Flow[ActivateRequest, ActivateResponse]:
    """The flow, done with the parts of this context."""
    return (
        Flow(
            ctx.flow_name("activate-image"),
            request=ActivateRequest,
            response=ActivateResponse,
            cleanup=partial(remove_unrecorded, ctx),
        )
        .start("check-snapshot", aborting(partial(check_snapshot, ctx)), retry=retries.CHECK_SNAPSHOT)
        .to("create-snapshot", aborting(partial(create_snapshot, ctx)), retry=retries.CREATE_SNAPSHOT)
        .commit("register", aborting(partial(register, ctx)), retry=retries.REGISTER)
    )


def check_snapshot(ctx: FlowContext, run: ActivateRun) -> None:
    """Hand off if the snapshot is there, in use and taken of this device.

    A row without its device stays as it is: somebody wants the snapshot. If it cannot be made now, `verify-system` goes
    on to tell of it, and `snapshot activate --all` to bring it back.
    """
    request = run.request
    if request.pool_name:
        raise InvalidName(
            f"pool {request.pool_name[:200]!r} cannot be chosen for a snapshot",
            hint="leave pool_name empty: a snapshot is made where its image is",
        )
    row, lost = look_for_snapshot(ctx, request)
    if row is not None and not lost:
        path = str(ctx.devices.path_of(row.snapshot_name))
        if row.device_path != path:
            ctx.catalog.set_snapshot_path(row.snapshot_name, path)
        if not is_active(ctx, request.image_id):
            run.log.warning("image %s has a snapshot in use and is recorded as active again", request.image_id)
            ctx.catalog.update_image_activation_status(request.image_id, "active")
        raise Handoff(snapshot_response(ctx, row))
    wait_for_image(ctx, run, request.image_id)
    remove_replaced(ctx, run, request.image_id)
    if row is not None:
        run.log.warning("snapshot %s will be made again: %s", row.snapshot_name, lost)


def create_snapshot(ctx: FlowContext, run: ActivateRun) -> ActivateResponse:
    """A snapshot of the sealed device, under an id that is reserved first."""
    request, name = run.request, snapshot_name_of(run.request)
    origin = _origin(ctx, request)
    taken: set[int] = set()
    for _ in range(COLLISIONS):
        snapshot_id = ctx.catalog.reserve_snapshot_id(
            request.image_id, name, snapshot_id_candidates(origin.id, name), avoiding=taken
        )
        snapshot = Device(id=snapshot_id, name=name, uuid=origin.uuid, size=origin.size)
        if ctx.devices.health(snapshot) is not Health.FOREIGN:
            with run.effect("snapshot"), _disbelieving(ctx, request):
                ctx.devices.snapshot(origin, snapshot)
                path = ctx.devices.activate(snapshot)
            return ActivateResponse(
                image_id=request.image_id, snapshot_id=str(snapshot_id), snapshot_name=name, device_path=str(path)
            )
        taken.add(snapshot_id)
    raise DeviceBusy(
        f"something else is in the place of snapshot {name}",
        hint="choose another snapshot name, or see what is there: holdfast gc --dry-run",
    )


@contextmanager
def _disbelieving(ctx: FlowContext, request: ActivateRequest) -> Iterator[None]:
    """A device that was found to be changed is not believed any more: whoever processes the image unpacks it anew."""
    try:
        yield
    except NotAsSealed as error:
        ctx.catalog.mark_unpacked_unverified(request.image_id)
        raise NotAsSealed(str(error), hint="process the image again: it will be unpacked anew") from error


def register(ctx: FlowContext, run: ActivateRun, tx: Transaction) -> ActivateResponse:
    """Record the snapshot, and its image as active, unless somebody unpacks or removes the image."""
    request, response = run.request, run.response
    # Many snapshots of an image may be made at once, so its lock is held no longer than the row needs.
    with locked_in(tx, ctx, run, request.image_id, else_to="check-snapshot"):
        try:
            ctx.devices.verify(_made(ctx, run))
        except DeviceLost as error:
            raise going_back(run, "create-snapshot", error) from error
        ctx.catalog.register_snapshot(
            request.image_id,
            response.snapshot_id,
            response.snapshot_name,
            response.device_path,
            request.device_id,
            tx=tx,
        )
    response.active = response.activated = True
    return response


def remove_unrecorded(ctx: FlowContext, run: ActivateRun) -> None:
    """After a failure: no snapshot stays that no row knows. What cannot be removed now is left to gc."""
    request, response = run.request, run.response
    row = ctx.catalog.check_snapshot_exists(request.image_id, snapshot_name_of(request))
    if response.snapshot_id and row is None:
        try:
            snapshot = _made(ctx, run)
            with run.effect("remove-snapshot"):
                ctx.devices.deactivate(snapshot)
                ctx.devices.delete(snapshot)
            ctx.catalog.release_reservation(request.image_id, snapshot.id)
        except (ImageError, OSError) as error:
            run.log.warning("snapshot %s could not be removed, gc will: %s", response.snapshot_name, error)
    elif row is None:
        release_unused(ctx, request.image_id, snapshot_name_of(request))
    image = ctx.catalog.get_image_by_id(request.image_id)
    if image is not None and image.activation_status == "inactive":
        ctx.catalog.update_image_activation_status(request.image_id, "failed")


def _origin(ctx: FlowContext, request: ActivateRequest) -> Device:
    """The sealed device of the image, by what the catalog and the backend say of it."""
    row = ctx.catalog.get_unpacked_image_by_device_id(request.device_id)
    if row is None or row.image_id != request.image_id or not row.layout_verified:
        raise DeviceLost(
            f"device {request.device_id} does not hold image {request.image_id}", hint="process the image again"
        )
    found = origin_of_snapshots(ctx, row)
    origin = device_of(row.device_id, row.device_name, found.uuid or "", found.size)
    ctx.devices.verify(origin)
    return origin


def _made(ctx: FlowContext, run: ActivateRun) -> Device:
    response = run.response
    origin = _origin(ctx, run.request)
    return device_of(response.snapshot_id, response.snapshot_name, origin.uuid, origin.size)


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
