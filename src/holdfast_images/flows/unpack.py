"""What an unpacked image must look like."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from holdfast import Flow, Handoff, Rewind, Run, Transaction
from holdfast_images.archive.entry import ArchiveFinding, ArchiveSeverity, Reason
from holdfast_images.catalog.tables import UnpackedImage
from holdfast_images.devices.protocol import Device, Health, PoolHealth
from holdfast_images.errors import (
    CatalogConflict,
    ChecksumMismatch,
    DeviceBusy,
    DeviceLost,
    ImageError,
    ImageRefused,
    InvalidName,
    NoSpace,
    PoolUnusable,
    TryAgain,
)
from holdfast_images.flows import steps as retries
from holdfast_images.flows.context import FlowContext, device_of, recorded_device, uuid_of
from holdfast_images.flows.download import discard_update, refuse_update
from holdfast_images.flows.lookup import device_response, is_content_of, look_for_device
from holdfast_images.flows.schemas import UnpackRequest, UnpackResponse
from holdfast_images.flows.steps import (
    TIME_TO_TELL,
    aborting,
    going_back,
    holds_image,
    lock_image,
    most_telling,
    owner_of,
    release_unused,
    unlock_image,
)
from holdfast_images.model import device_id_candidates, device_name
from holdfast_images.source.partial import fingerprint_of, hash_file

ROOT = "rootfs"
EXPECTED = ("etc", "usr", "var")
CRITICAL = ("etc", "usr")
LINKS_FOLLOWED = 40


def judge_layout(content: Path) -> tuple[ArchiveFinding, ...]:
    """What the root file system lacks; ImageRefused unless only their owners write to its critical directories.

    A distribution without /usr and programs without /etc exist: they are told of, and taken.
    """
    if not _is_directory(content / ROOT):
        raise ImageRefused(
            "LAYOUT_NO_ROOTFS",
            "the image has no directory rootfs",
            entry=ROOT,
            hint="archive the root file system below rootfs/, or as an OCI layout",
        )
    for name in CRITICAL:
        path = _inside(content / ROOT, name)
        if path is not None and path.lstat().st_mode & stat.S_IWOTH:
            raise ImageRefused("LAYOUT_WORLD_WRITABLE", f"anybody may write to rootfs/{name}", entry=f"{ROOT}/{name}")
    return tuple(_missing(name) for name in EXPECTED if not os.path.lexists(content / ROOT / name))


def _missing(name: str) -> ArchiveFinding:
    return ArchiveFinding(
        code=Reason.LAYOUT_INCOMPLETE,
        severity=ArchiveSeverity.WARNING,
        path=f"{ROOT}/{name}",
        offset=None,
        detail=f"the image has no {ROOT}/{name}",
    )


def _inside(root: Path, name: str) -> Path | None:
    """Where a name leads for a process whose root is the image's; None if to nothing, or through too many links."""
    at, left, links = root, [name], 0
    while left:
        part = left.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            at = at.parent if at != root else root
            continue
        below = at / part
        try:
            target = os.readlink(below)
        except FileNotFoundError:
            return None
        except OSError:
            at = below
            continue
        links += 1
        if links > LINKS_FOLLOWED:
            return None
        at = root if target.startswith("/") else at
        left += target.split("/")[::-1]
    return at


def _is_directory(path: Path) -> bool:
    """Itself, not what a symlink of the image points to on this host."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


# --- unpack-image: check-unpacked → create-device → extract-layers → verify-layout → update-db ----------
#
# | killed in | leaves | the next execution |
# |---|---|---|
# | check-unpacked | nothing, or the image's lock | asks again, and finds the lock to be its own |
# | create-device | a reserved id, no device or a half-made one | removes it and makes it anew |
# | extract-layers | a device with a part of the files | removes it and goes back to create-device |
# | verify-layout | a whole device, sealed or not | looks at it again |
# | update-db | a sealed device, mounted or not, and the row or no row | deactivates it, and writes the row, once |
#
# A device of new content is made beside the one in use, under an id of its own; update-db puts it in its place.

UnpackRun = Run[UnpackRequest, UnpackResponse]

BYTES_PER_ENTRY = 4096
"""What an entry takes besides its content, at most: the rest of its last block, its inode, its name."""
COLLISIONS = 3
"""So many ids may be found to hold something else before it is given up."""


def unpack_flow(ctx: FlowContext) -> Flow[UnpackRequest, UnpackResponse]:
    """The flow, done with the parts of this context."""
    return (
        Flow(
            ctx.flow_name("unpack-image"),
            request=UnpackRequest,
            response=UnpackResponse,
            queue=ctx.queue_name("unpacking"),
            cleanup=partial(remove_unrecorded, ctx),
        )
        .start("check-unpacked", aborting(partial(check_unpacked, ctx)), retry=retries.CHECK_UNPACKED)
        .to("create-device", aborting(partial(create_device, ctx)), retry=retries.CREATE_DEVICE)
        .to(
            "extract-layers",
            aborting(partial(extract_layers, ctx)),
            retry=retries.EXTRACT_LAYERS,
            timeout=ctx.timeouts.extract + TIME_TO_TELL,
        )
        .to("verify-layout", aborting(partial(verify_layout, ctx)), retry=retries.VERIFY_LAYOUT)
        .commit("update-db", aborting(partial(update_db, ctx)), retry=retries.UPDATE_DB)
    )


def check_unpacked(ctx: FlowContext, run: UnpackRun) -> None:
    """Hand off if the device is there and holds this very content; forget it if it does not."""
    request = run.request
    _refuse_unverified(ctx, request)
    row, lost = look_for_device(ctx, request)
    # What is done waits for nobody: a download that judges the image anew may have the lock for long.
    if row is None or lost:
        lock_image(ctx, run, request.image_id)
        row, lost = look_for_device(ctx, request)
        if row is None:
            return
        if lost:
            run.log.warning("image %s will be unpacked again: %s", request.image_id, lost)
            _make_way(ctx, row, request)
            return
        unlock_image(ctx, run, request.image_id)
    path = str(ctx.devices.path_of(row.device_name))
    if row.device_path != path:
        ctx.catalog.set_device_path(request.image_id, path)
    raise Handoff(device_response(ctx, row))


def _refuse_unverified(ctx: FlowContext, request: UnpackRequest) -> None:
    """Only what was downloaded and verified is unpacked, whoever asks for it."""
    if request.pool_name:
        raise InvalidName(
            f"pool {request.pool_name[:200]!r} cannot be chosen for an image",
            hint="leave pool_name empty: the backend of the settings has one pool",
        )
    image = ctx.catalog.get_image_by_id(request.image_id)
    staged = ctx.catalog.get_update(request.image_id)
    if is_content_of(image, request.checksum) or (staged is not None and staged.checksum == request.checksum):
        return
    if image is None or image.download_status != "completed" or image.checksum != request.checksum:
        found = "not known" if image is None else f"{image.download_status}, with SHA-256 {image.checksum}"
        raise CatalogConflict(
            f"image {request.image_id} is {found}: SHA-256 {request.checksum} of it was never verified",
            hint="process the image: it is downloaded and verified first",
        )


def _make_way(ctx: FlowContext, row: UnpackedImage, request: UnpackRequest) -> None:
    """What the row says is not to be believed any more, unless the device holds other content: that stays in use.

    Snapshots refer to the id of their device, so the row stays for them, and the device is made again under its id.
    """
    device = recorded_device(row.device_id, row.device_name, _uuid(request))
    snapshots = ctx.catalog.get_snapshots_by_image_id(row.image_id)
    if device is not None and row.layout_verified and ctx.devices.health(device) is Health.FOREIGN:
        image = ctx.catalog.get_image_by_id(row.image_id)
        if image is not None and snapshots:
            refuse_update(ctx, image, request.checksum)
    elif snapshots:
        ctx.catalog.mark_unpacked_unverified(row.image_id)
    else:
        ctx.catalog.delete_unpacked_image(row.image_id)


def _beside(ctx: FlowContext, request: UnpackRequest) -> str:
    """What the device is reserved as while another one is in use that it is to replace; empty if there is none."""
    row = ctx.catalog.get_unpacked_image_by_id(request.image_id)
    return _uuid(request) if row is not None and row.layout_verified else ""


def create_device(ctx: FlowContext, run: UnpackRun) -> UnpackResponse:
    """An empty device under an id that is reserved first; what an earlier execution left there is removed."""
    request, response = run.request, run.response
    response.entries = _admit(ctx, run)
    taken: set[int] = set()
    for _ in range(COLLISIONS):
        device_id = ctx.catalog.reserve_device_id(
            request.image_id, device_id_candidates(request.image_id), beside=_beside(ctx, request), avoiding=taken
        )
        device = Device(
            id=device_id,
            name=device_name(device_id),
            uuid=_uuid(request),
            size=request.device_size or ctx.device_size,
            files=response.entries,
        )
        if ctx.devices.health(device) is not Health.FOREIGN:
            _make_anew(ctx, run, device)
            response.image_id = request.image_id
            response.device_id = str(device.id)
            response.device_name = device.name
            response.device_size = device.size
            response.device_path = str(ctx.devices.path_of(device.name))
            return response
        taken.add(device_id)
    raise DeviceBusy(
        f"the ids {', '.join(map(str, sorted(taken)))} hold something that is not image {request.image_id}",
        hint="see what is there: holdfast gc --dry-run",
    )


def _admit(ctx: FlowContext, run: UnpackRun) -> int:
    """Refuse what cannot fit before anything is made; how many entries the image has."""
    pool = ctx.devices.pool()
    if pool.health in (PoolHealth.READ_ONLY, PoolHealth.FAILED):
        raise PoolUnusable(f"no image can be unpacked: {pool.detail or pool.health}", hint="holdfast verify-system")
    if pool.health is PoolHealth.FULL:
        raise NoSpace(f"no image can be unpacked: {pool.detail or pool.health}", hint="free or add space: holdfast gc")
    entries, content = _amounts(ctx, run)
    needed = content + entries * BYTES_PER_ENTRY
    size = run.request.device_size or ctx.device_size
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


def _amounts(ctx: FlowContext, run: UnpackRun) -> tuple[int, int]:
    """Entries, and bytes of content; of an image that an earlier job has validated, they are counted anew."""
    request = run.request
    if request.entries:
        return request.entries, request.total_bytes
    from holdfast_images.archive.sandbox import inspect_image  # noqa: PLC0415 - a finished image is not read

    report = inspect_image(
        ctx.file_of(request.image_id, request.checksum),
        policy=request.judging.policy,
        limits=ctx.limits,
        keep_setuid=request.judging.keep_setuid,
        timeout=ctx.timeouts.extract,
        check=run.check,
        on_progress=lambda done, total, _: run.progress(done, total or None, note="bytes counted"),
    )
    return report.entries, report.total_bytes


def _make_anew(ctx: FlowContext, run: UnpackRun, device: Device) -> None:
    """Nothing continues a half-filled device, so whatever is there goes."""
    with run.effect("device"):
        ctx.devices.unmount(device)
        ctx.devices.delete(device)
        ctx.devices.create(device)


def extract_layers(ctx: FlowContext, run: UnpackRun) -> UnpackResponse:
    """Every file of the image, in the mounted device, on disk."""
    from holdfast_images.archive.sandbox import extract_image  # noqa: PLC0415 - as above

    request, response = run.request, run.response
    device = _device(run)
    if run.interrupted:
        raise Rewind("create-device", "an extraction that was cut short cannot be continued")
    if run.tries > 1:
        _make_anew(ctx, run, device)
    _refuse_changed_file(ctx, run)
    try:
        with _remembering_refusals(ctx, run), run.effect("extract"):
            extracted = extract_image(
                ctx.file_of(request.image_id, request.checksum),
                _mounted(ctx, run, device),
                policy=request.judging.policy,
                limits=ctx.limits,
                keep_setuid=request.judging.keep_setuid,
                timeout=ctx.timeouts.extract,
                checksum=request.checksum,
                check=run.check,
                on_progress=lambda done, total, entries: run.progress(
                    done, total or None, note=f"bytes extracted, {entries:,} entries"
                ),
            )
    except TryAgain as error:
        # A pool that is full fails writes as a broken disk does; only the pool can tell.
        pool = ctx.devices.pool()
        if pool.health is PoolHealth.FULL:
            raise NoSpace(f"{error}: {pool.detail}", hint="free or add space: holdfast gc") from error
        raise
    response.size_bytes = extracted.total_bytes
    response.file_count = extracted.file_count
    response.warnings = most_telling(extracted.warnings)
    return response


@contextmanager
def _remembering_refusals(ctx: FlowContext, run: UnpackRun) -> Iterator[None]:
    """What can be seen only when it is unpacked is refused at once the next time, like what its file shows."""
    request = run.request
    try:
        yield
    except ImageRefused as refused:
        run.log.error("security: image %s refused: %s", request.image_id, refused)
        image = ctx.catalog.get_image_by_id(request.image_id)
        if image is not None:
            ctx.catalog.store_refusal(
                image.image_id, image.s3_key, refused, policy=request.judging.policy, checksum=request.checksum
            )
        raise


def _mounted(ctx: FlowContext, run: UnpackRun, device: Device) -> Path:
    """Where its content is; a device that somebody has removed meanwhile is made again."""
    try:
        return ctx.devices.mount(device)
    except DeviceLost as error:
        raise going_back(run, "create-device", error) from error


def _refuse_changed_file(ctx: FlowContext, run: UnpackRun) -> None:
    """Only what was verified is unpacked."""
    request, path = run.request, ctx.file_of(run.request.image_id, run.request.checksum)
    known = ctx.catalog.get_update(request.image_id)
    if known is None or known.checksum != request.checksum:
        known = ctx.catalog.get_verification(request.image_id)
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


def verify_layout(ctx: FlowContext, run: UnpackRun) -> UnpackResponse:
    """The device holds a root file system that nobody else may write to; then it is sealed, and stays mounted."""
    device, response = _device(run), run.response
    content = _mounted(ctx, run, device)
    with _remembering_refusals(ctx, run):
        lacking = judge_layout(content)
    for finding in lacking:
        run.log.warning("image %s: %s", run.request.image_id, finding.detail)
    response.warnings = most_telling((*lacking, *response.warnings))
    # Sealing syncs and reads through the whole device: too slow for the transaction of update-db.
    with run.effect("seal"):
        ctx.devices.seal(device, stays_mounted=True)
    return response


def update_db(ctx: FlowContext, run: UnpackRun, tx: Transaction) -> UnpackResponse:
    """Unmount and deactivate the sealed device, record it and let go of the image.

    New content takes the place of the old here: file, row and device in one transaction, or none of them.
    """
    request, response = run.request, run.response
    try:
        ctx.devices.verify(_device(run))
    except DeviceLost as error:
        raise going_back(run, "create-device", error) from error
    _put_away(ctx, run)
    staged = ctx.catalog.get_update(request.image_id)
    if staged is not None and staged.checksum == request.checksum:
        path = ctx.file_of(request.image_id, request.checksum)
        ctx.catalog.use_update(request.image_id, str(path), tx=tx)
    ctx.catalog.store_unpacked_image(
        request.image_id,
        response.device_id,
        response.device_name,
        response.device_path,
        response.size_bytes,
        response.file_count,
        tx=tx,
    )
    ctx.catalog.replace_device_id(request.image_id, int(response.device_id), _uuid(request), tx=tx)
    # Extracting has found all that judging the archive has, by the same rules.
    warnings = msgspec.json.encode(response.warnings).decode()
    ctx.catalog.note_warnings(request.image_id, request.checksum, warnings, tx=tx)
    ctx.catalog.forget_refusal(request.image_id, policy=request.judging.policy, checksum=request.checksum, tx=tx)
    ctx.catalog.release_image_lock(request.image_id, owner_of(run), tx=tx)
    response.unpacked = True
    return response


def _put_away(ctx: FlowContext, run: UnpackRun) -> None:
    """Quick, because the transaction waits for it: it was mounted read-only, so that nothing is to be written."""
    device = _device(run)
    try:
        ctx.devices.unmount(device)
        ctx.devices.deactivate(device)
    except (ImageError, OSError) as error:
        # Whoever looks into it cannot change it, and who takes a snapshot of it deactivates it first.
        run.log.warning("%s stays active: %s", device.name, error)


def remove_unrecorded(ctx: FlowContext, run: UnpackRun) -> None:
    """After a failure: no device stays that no row knows, no content that never came into use, and no lock.

    What cannot be removed now is left to gc.
    """
    request = run.request
    if not holds_image(ctx, run, request.image_id):
        return  # this job has made nothing, or has cleaned up before: what is there is another's
    row = ctx.catalog.get_unpacked_image_by_id(request.image_id)
    is_recorded = row is not None and row.layout_verified and row.device_id == run.response.device_id
    if run.response.device_id and not is_recorded:
        device = _device(run)
        try:
            with run.effect("remove-device"):
                ctx.devices.unmount(device)
                ctx.devices.deactivate(device)
                ctx.devices.delete(device)
            if row is None or row.device_id != run.response.device_id:
                ctx.catalog.release_reservation(request.image_id, device.id)
        except (ImageError, OSError) as error:
            run.log.warning("%s could not be removed, gc will: %s", device.name, error)
    elif row is None:
        release_unused(ctx, request.image_id)
    discard_update(ctx, request.image_id, request.checksum)
    unlock_image(ctx, run, request.image_id)


def _device(run: UnpackRun) -> Device:
    response = run.response
    device = device_of(response.device_id, response.device_name, _uuid(run.request), response.device_size)
    return msgspec.structs.replace(device, files=response.entries)


def _uuid(request: UnpackRequest) -> str:
    return uuid_of(request.image_id, request.checksum, request.judging)
