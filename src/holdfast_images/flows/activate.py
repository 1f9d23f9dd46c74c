"""activate-image: check-snapshot → create-snapshot → register.

| killed in | leaves | the next execution |
|---|---|---|
| check-snapshot | nothing | asks again |
| create-snapshot | a reserved id, no snapshot, a half-made or a whole one | makes it, or finds it made |
| register | the snapshot, and the rows or no rows | writes both rows, once |

Whoever removes the image at the same time sees the snapshot's row, or the snapshot is not recorded and left to gc.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from holdfast import Flow, Handoff, Run, Transaction
from holdfast_images.devices.protocol import Device, Health
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError, InvalidName, NotAsSealed
from holdfast_images.flows import steps as retries
from holdfast_images.flows.context import FlowContext, device_of
from holdfast_images.flows.download import remove_replaced
from holdfast_images.flows.existing import is_active, look_for_snapshot, origin_of_snapshots, snapshot_response
from holdfast_images.flows.schemas import ActivateRequest, ActivateResponse, snapshot_name_of
from holdfast_images.flows.steps import aborting, going_back, locked_in, release_unused, wait_for_image
from holdfast_images.model import snapshot_id_candidates

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
