"""unpack-image: check-unpacked → create-device → extract-layers → verify-layout → update-db.

| killed in | leaves | the next execution |
|---|---|---|
| check-unpacked | nothing, or the image's lock | asks again, and finds the lock to be its own |
| create-device | a reserved id, no device or a half-made one | removes it and makes it anew |
| extract-layers | a device with a part of the files | removes it and goes back to create-device |
| verify-layout | a whole device, sealed or not | looks at it again |
| update-db | a sealed device, and the row or no row | writes the row, once |
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from holdfast import Flow, Handoff, Rewind, Run, Transaction, exponential, fixed
from holdfast_images.catalog.rows import UnpackedImage
from holdfast_images.devices.protocol import Device, Health, PoolHealth
from holdfast_images.errors import (
    CatalogConflict,
    ChecksumMismatch,
    DeviceBusy,
    DeviceLost,
    ImageError,
    ImageRefused,
    NoSpace,
    PoolUnusable,
    TryAgain,
)
from holdfast_images.flows.finished import device_response, look_for_device
from holdfast_images.flows.layout import refuse_bad_layout
from holdfast_images.flows.messages import UnpackRequest, UnpackResponse
from holdfast_images.flows.steering import aborting, holds_image, lock_image, owner_of, time_to_read, unlock_image
from holdfast_images.flows.workshop import WARNINGS_KEPT, Workshop, device_of, uuid_of
from holdfast_images.model import device_id_candidates, device_name
from holdfast_images.source.hashing import fingerprint_of, hash_file

UnpackRun = Run[UnpackRequest, UnpackResponse]

BYTES_PER_ENTRY = 4096
"""What an entry takes besides its content, at most: the rest of its last block, its inode, its name."""
COLLISIONS = 3
"""So many ids may be found to hold something else before it is given up."""


def unpack_flow(shop: Workshop) -> Flow[UnpackRequest, UnpackResponse]:
    """The flow, done with the parts of this workshop."""
    return (
        Flow(
            shop.flow_name("unpack-image"),
            request=UnpackRequest,
            response=UnpackResponse,
            queue=shop.queue_name("unpacking"),
            cleanup=partial(remove_unrecorded, shop),
        )
        .start("check-unpacked", aborting(partial(check_unpacked, shop)), retry=exponential(3))
        .to("create-device", aborting(partial(create_device, shop)), retry=fixed(3))
        .to(
            "extract-layers",
            aborting(partial(extract_layers, shop)),
            retry=fixed(2),
            timeout=shop.timeouts.extract,
        )
        .to("verify-layout", aborting(partial(verify_layout, shop)), retry=fixed(2))
        .commit("update-db", aborting(partial(update_db, shop)), retry=exponential(5))
    )


def check_unpacked(shop: Workshop, run: UnpackRun) -> None:
    """Hand off if the device is there and holds this very content; forget it if it does not."""
    request = run.request
    row, lost = look_for_device(shop, request)
    # What is done waits for nobody: a download that judges the image anew may have the lock for long.
    if row is None or lost:
        lock_image(shop, run, request.image_id)
        row, lost = look_for_device(shop, request)
        if row is None:
            return
        if lost:
            run.log.warning("image %s will be unpacked again: %s", request.image_id, lost)
            _forget(shop, row, device_of(row.device_id, row.device_name, _uuid(request)))
            return
        unlock_image(shop, run, request.image_id)
    raise Handoff(device_response(row))


def _forget(shop: Workshop, row: UnpackedImage, device: Device) -> None:
    """Delete the stale row; if snapshots were taken of the device, keep the row and mark it as not verified."""
    other_content = shop.devices.health(device) is Health.FOREIGN
    if shop.catalog.get_snapshots_by_image_id(row.image_id):
        if other_content:
            raise CatalogConflict(
                f"{row.device_name} holds other content of image {row.image_id}, and snapshots were taken of it",
                hint="remove those snapshots, or process the new content under another --image-id",
            )
        shop.catalog.mark_unpacked_unverified(row.image_id)
        return
    if other_content:
        _delete_found(shop, row)
    shop.catalog.delete_unpacked_image(row.image_id)


def _delete_found(shop: Workshop, row: UnpackedImage) -> None:
    """Remove what the catalog says is the image's device, whatever content it holds."""
    found = shop.devices.look(row.device_name)
    if found is not None and found.id == int(row.device_id) and found.uuid:
        shop.devices.delete(device_of(row.device_id, row.device_name, found.uuid))


def create_device(shop: Workshop, run: UnpackRun) -> UnpackResponse:
    """An empty device under an id that is reserved first; what an earlier execution left there is removed."""
    request, response = run.request, run.response
    response.entries = _admit(shop, run)
    taken: set[int] = set()
    for _ in range(COLLISIONS):
        device_id = shop.catalog.reserve_device_id(
            request.image_id, device_id_candidates(request.image_id), avoiding=taken
        )
        device = Device(
            id=device_id,
            name=device_name(device_id),
            uuid=_uuid(request),
            size=request.device_size or shop.device_size,
            files=response.entries,
        )
        if shop.devices.health(device) is not Health.FOREIGN:
            _make_anew(shop, run, device)
            response.image_id = request.image_id
            response.device_id = str(device.id)
            response.device_name = device.name
            response.device_size = device.size
            response.device_path = str(shop.devices.path_of(device.name))
            return response
        taken.add(device_id)
    raise DeviceBusy(
        f"the ids {', '.join(map(str, sorted(taken)))} hold something that is not image {request.image_id}",
        hint="see what is there: holdfast gc --dry-run",
    )


def _admit(shop: Workshop, run: UnpackRun) -> int:
    """Refuse what cannot fit before anything is made; how many entries the image has."""
    pool = shop.devices.pool()
    if pool.health in (PoolHealth.READ_ONLY, PoolHealth.FAILED):
        raise PoolUnusable(f"no image can be unpacked: {pool.detail or pool.health}", hint="holdfast verify-system")
    if pool.health is PoolHealth.FULL:
        raise NoSpace(f"no image can be unpacked: {pool.detail or pool.health}", hint="free or add space: holdfast gc")
    entries, content = _amounts(shop, run)
    needed = content + entries * BYTES_PER_ENTRY
    size = run.request.device_size or shop.device_size
    if needed > size:
        raise NoSpace(
            f"image {run.request.image_id} needs {needed} bytes, and its device would have {size}",
            hint="give it more: device_size in the settings",
        )
    if needed > pool.available_bytes:
        raise NoSpace(
            f"image {run.request.image_id} needs {needed} bytes, and {pool.available_bytes} of "
            f"{pool.capacity_bytes} are available",
            hint="remove images that are not needed, or give the pool more space",
        )
    return entries


def _amounts(shop: Workshop, run: UnpackRun) -> tuple[int, int]:
    """Entries, and bytes of content; of an image that an earlier job has validated, they are counted anew."""
    request = run.request
    if request.entries:
        return request.entries, request.total_bytes
    from holdfast_images.archive.running import inspect_image  # noqa: PLC0415 - a finished image is not read

    report = inspect_image(
        Path(request.local_path),
        policy=request.judging.policy,
        limits=shop.limits,
        keep_setuid=request.judging.keep_setuid,
        timeout=time_to_read(shop, run),
        check=run.check,
    )
    return report.entries, report.total_bytes


def _make_anew(shop: Workshop, run: UnpackRun, device: Device) -> None:
    """Nothing continues a half-filled device, so whatever is there goes."""
    with run.effect("device"):
        shop.devices.unmount(device)
        shop.devices.delete(device)
        shop.devices.create(device)


def extract_layers(shop: Workshop, run: UnpackRun) -> UnpackResponse:
    """Every file of the image, in the mounted device, on disk."""
    from holdfast_images.archive.running import extract_image  # noqa: PLC0415 - as above

    request, response = run.request, run.response
    device = _device(run)
    if run.interrupted:
        raise Rewind("create-device", "an extraction that was cut short cannot be continued")
    if run.tries > 1:
        _make_anew(shop, run, device)
    _refuse_changed_file(shop, run)
    try:
        with _remembering_refusals(shop, run), run.effect("extract"):
            extracted = extract_image(
                Path(request.local_path),
                _mounted(shop, device),
                policy=request.judging.policy,
                limits=shop.limits,
                keep_setuid=request.judging.keep_setuid,
                timeout=time_to_read(shop, run),
                check=run.check,
                on_progress=lambda done, total, _: run.progress(done, total or None, note="bytes extracted"),
            )
    except TryAgain as error:
        # A pool that is full fails writes as a broken disk does; only the pool can tell.
        pool = shop.devices.pool()
        if pool.health is PoolHealth.FULL:
            raise NoSpace(f"{error}: {pool.detail}", hint="free or add space: holdfast gc") from error
        raise
    response.size_bytes = extracted.total_bytes
    response.file_count = extracted.file_count
    response.warnings = extracted.warnings[:WARNINGS_KEPT]
    return response


@contextmanager
def _remembering_refusals(shop: Workshop, run: UnpackRun) -> Iterator[None]:
    """What can be seen only when it is unpacked is refused at once the next time, like what its file shows."""
    request = run.request
    try:
        yield
    except ImageRefused as refused:
        run.log.error("security: image %s refused: %s", request.image_id, refused)
        image = shop.catalog.get_image_by_id(request.image_id)
        if image is not None:
            shop.catalog.store_refusal(
                image.image_id, image.s3_key, refused, policy=request.judging.policy, checksum=request.checksum
            )
        raise


def _mounted(shop: Workshop, device: Device) -> Path:
    """Where its content is; a device that somebody has removed meanwhile is made again."""
    try:
        return shop.devices.mount(device)
    except DeviceLost as error:
        raise Rewind("create-device", str(error)) from error


def _refuse_changed_file(shop: Workshop, run: UnpackRun) -> None:
    """Only what was verified is unpacked."""
    request, path = run.request, Path(run.request.local_path)
    known = shop.catalog.get_verification(request.image_id)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError:
        raise DeviceLost(f"{path} is gone", hint="process the image again: it will be downloaded") from None
    if known is not None and (known.checksum, known.fingerprint) == (request.checksum, fingerprint):
        return
    checksum = hash_file(path, run.check, run.progress)
    if checksum != request.checksum:
        raise ChecksumMismatch(
            f"{path} has SHA-256 {checksum}, and {request.checksum} was verified",
            hint="process the image again: it will be downloaded",
        )


def verify_layout(shop: Workshop, run: UnpackRun) -> None:
    """The device holds a root file system that nobody else may write to; then it is sealed."""
    device = _device(run)
    content = _mounted(shop, device)
    with _remembering_refusals(shop, run):
        refuse_bad_layout(content, run.log)
    # Sealing syncs and reads through the whole device: too slow for the transaction of update-db.
    with run.effect("seal"):
        shop.devices.seal(device)


def update_db(shop: Workshop, run: UnpackRun, tx: Transaction) -> UnpackResponse:
    """Record the sealed device and let go of the image."""
    request, response = run.request, run.response
    try:
        shop.devices.verify(_device(run))
    except DeviceLost as error:
        raise Rewind("create-device", str(error)) from error
    shop.catalog.store_unpacked_image(
        request.image_id,
        response.device_id,
        response.device_name,
        response.device_path,
        response.size_bytes,
        response.file_count,
        tx=tx,
    )
    shop.catalog.forget_refusal(request.image_id, policy=request.judging.policy, checksum=request.checksum, tx=tx)
    shop.catalog.release_image_lock(request.image_id, owner_of(run), tx=tx)
    response.unpacked = True
    return response


def remove_unrecorded(shop: Workshop, run: UnpackRun) -> None:
    """After a failure: no device stays that no row knows, and no lock. What cannot be removed now is left to gc."""
    request = run.request
    if not holds_image(shop, run, request.image_id):
        return  # this job has made nothing, or has cleaned up before: what is there is another's
    row = shop.catalog.get_unpacked_image_by_id(request.image_id)
    if run.response.device_id and (row is None or not row.layout_verified):
        device = _device(run)
        try:
            with run.effect("remove-device"):
                shop.devices.unmount(device)
                shop.devices.deactivate(device)
                shop.devices.delete(device)
            if row is None:
                shop.catalog.release_reservation(request.image_id, device.id)
        except (ImageError, OSError) as error:
            run.log.warning("%s could not be removed, gc will: %s", device.name, error)
    unlock_image(shop, run, request.image_id)


def _device(run: UnpackRun) -> Device:
    response = run.response
    device = device_of(response.device_id, response.device_name, _uuid(run.request), response.device_size)
    return msgspec.structs.replace(device, files=response.entries)


def _uuid(request: UnpackRequest) -> str:
    return uuid_of(request.image_id, request.checksum, request.judging)
