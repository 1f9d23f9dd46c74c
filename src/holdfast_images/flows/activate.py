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


def activate_flow(shop: FlowContext) -> Flow[ActivateRequest, ActivateResponse]:
    """The flow, done with the parts of this workshop."""
    return (
        Flow(
            shop.flow_name("activate-image"),
            request=ActivateRequest,
            response=ActivateResponse,
            cleanup=partial(remove_unrecorded, shop),
        )
        .start("check-snapshot", aborting(partial(check_snapshot, shop)), retry=retries.CHECK_SNAPSHOT)
        .to("create-snapshot", aborting(partial(create_snapshot, shop)), retry=retries.CREATE_SNAPSHOT)
        .commit("register", aborting(partial(register, shop)), retry=retries.REGISTER)
    )


def check_snapshot(shop: FlowContext, run: ActivateRun) -> None:
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
    row, lost = look_for_snapshot(shop, request)
    if row is not None and not lost:
        path = str(shop.devices.path_of(row.snapshot_name))
        if row.device_path != path:
            shop.catalog.set_snapshot_path(row.snapshot_name, path)
        if not is_active(shop, request.image_id):
            run.log.warning("image %s has a snapshot in use and is recorded as active again", request.image_id)
            shop.catalog.update_image_activation_status(request.image_id, "active")
        raise Handoff(snapshot_response(shop, row))
    wait_for_image(shop, run, request.image_id)
    remove_replaced(shop, run, request.image_id)
    if row is not None:
        run.log.warning("snapshot %s will be made again: %s", row.snapshot_name, lost)


def create_snapshot(shop: FlowContext, run: ActivateRun) -> ActivateResponse:
    """A snapshot of the sealed device, under an id that is reserved first."""
    request, name = run.request, snapshot_name_of(run.request)
    origin = _origin(shop, request)
    taken: set[int] = set()
    for _ in range(COLLISIONS):
        snapshot_id = shop.catalog.reserve_snapshot_id(
            request.image_id, name, snapshot_id_candidates(origin.id, name), avoiding=taken
        )
        snapshot = Device(id=snapshot_id, name=name, uuid=origin.uuid, size=origin.size)
        if shop.devices.health(snapshot) is not Health.FOREIGN:
            with run.effect("snapshot"), _disbelieving(shop, request):
                shop.devices.snapshot(origin, snapshot)
                path = shop.devices.activate(snapshot)
            return ActivateResponse(
                image_id=request.image_id, snapshot_id=str(snapshot_id), snapshot_name=name, device_path=str(path)
            )
        taken.add(snapshot_id)
    raise DeviceBusy(
        f"something else is in the place of snapshot {name}",
        hint="choose another snapshot name, or see what is there: holdfast gc --dry-run",
    )


@contextmanager
def _disbelieving(shop: FlowContext, request: ActivateRequest) -> Iterator[None]:
    """A device that was found to be changed is not believed any more: whoever processes the image unpacks it anew."""
    try:
        yield
    except NotAsSealed as error:
        shop.catalog.mark_unpacked_unverified(request.image_id)
        raise NotAsSealed(str(error), hint="process the image again: it will be unpacked anew") from error


def register(shop: FlowContext, run: ActivateRun, tx: Transaction) -> ActivateResponse:
    """Record the snapshot, and its image as active, unless somebody unpacks or removes the image."""
    request, response = run.request, run.response
    # Many snapshots of an image may be made at once, so its lock is held no longer than the row needs.
    with locked_in(tx, shop, run, request.image_id, else_to="check-snapshot"):
        try:
            shop.devices.verify(_made(shop, run))
        except DeviceLost as error:
            raise going_back(run, "create-snapshot", error) from error
        shop.catalog.register_snapshot(
            request.image_id,
            response.snapshot_id,
            response.snapshot_name,
            response.device_path,
            request.device_id,
            tx=tx,
        )
    response.active = response.activated = True
    return response


def remove_unrecorded(shop: FlowContext, run: ActivateRun) -> None:
    """After a failure: no snapshot stays that no row knows. What cannot be removed now is left to gc."""
    request, response = run.request, run.response
    row = shop.catalog.check_snapshot_exists(request.image_id, snapshot_name_of(request))
    if response.snapshot_id and row is None:
        try:
            snapshot = _made(shop, run)
            with run.effect("remove-snapshot"):
                shop.devices.deactivate(snapshot)
                shop.devices.delete(snapshot)
            shop.catalog.release_reservation(request.image_id, snapshot.id)
        except (ImageError, OSError) as error:
            run.log.warning("snapshot %s could not be removed, gc will: %s", response.snapshot_name, error)
    elif row is None:
        release_unused(shop, request.image_id, snapshot_name_of(request))
    image = shop.catalog.get_image_by_id(request.image_id)
    if image is not None and image.activation_status == "inactive":
        shop.catalog.update_image_activation_status(request.image_id, "failed")


def _origin(shop: FlowContext, request: ActivateRequest) -> Device:
    """The sealed device of the image, by what the catalog and the backend say of it."""
    row = shop.catalog.get_unpacked_image_by_device_id(request.device_id)
    if row is None or row.image_id != request.image_id or not row.layout_verified:
        raise DeviceLost(
            f"device {request.device_id} does not hold image {request.image_id}", hint="process the image again"
        )
    found = origin_of_snapshots(shop, row)
    origin = device_of(row.device_id, row.device_name, found.uuid or "", found.size)
    shop.devices.verify(origin)
    return origin


def _made(shop: FlowContext, run: ActivateRun) -> Device:
    response = run.response
    origin = _origin(shop, run.request)
    return device_of(response.snapshot_id, response.snapshot_name, origin.uuid, origin.size)
