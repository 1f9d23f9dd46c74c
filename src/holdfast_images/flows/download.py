"""New content of an image in the place of the old: when it cannot be, what it leaves, and what is left of the old.

File, row and device change in the transaction of update-db. Before it the new ones lie beside the old, after it the
old ones are left over: each is known by its name or its reserved id, and is removed here or by gc.
"""

from __future__ import annotations

import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Flow, Handoff, Rewind, Run, StepTimeout, Transaction
from holdfast_images.archive.entry import ArchiveSeverity, InspectionReport
from holdfast_images.catalog.devices import REPLACED
from holdfast_images.catalog.tables import Image, Reservation, Verification
from holdfast_images.durable import sync_directory
from holdfast_images.errors import CatalogConflict, ChecksumMismatch, ImageError, ImageRefused
from holdfast_images.flows import steps as retries
from holdfast_images.flows.context import FlowContext, device_of
from holdfast_images.flows.lookup import (
    Recorded,
    file_response,
    find_refusal,
    is_as_recorded,
    is_content_of,
    keys_of,
    look_for_file,
    take_verdict,
)
from holdfast_images.flows.schemas import DownloadRequest, DownloadResponse
from holdfast_images.flows.steps import (
    OutOfTime,
    TimeLimit,
    aborting,
    holds_image,
    lock_image,
    most_telling,
    owner_of,
    unlock_image,
    warnings_of_unpacking,
)
from holdfast_images.model import device_name, file_name, incoming_name
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import full_name
from holdfast_images.source.partial import fingerprint_of, hash_file, partials_of, remove_partials


def refuse_update(ctx: FlowContext, image: Image, checksum: str) -> None:
    """Raise CatalogConflict if the image cannot have other content: snapshots of what it has are recorded."""
    names = [row.snapshot_name for row in ctx.catalog.get_snapshots_by_image_id(image.image_id)]
    if names:
        raise CatalogConflict(
            f"image {image.image_id} stays as it is: there are snapshots of its content {(image.checksum or '')[:12]}, "
            f"and {checksum[:12]} is other content: {', '.join(names)}",
            hint="process it under another --image-id, or remove the snapshots first: "
            f"holdfast snapshot deactivate {names[0]} --delete",
        )


def discard_update(ctx: FlowContext, image_id: str, checksum: str) -> None:
    """New content that will not come into use: its file and its row go, and the image stays what it is."""
    staged = ctx.catalog.get_update(image_id)
    if staged is not None and staged.checksum == checksum:
        ctx.file_of(image_id, checksum).unlink(missing_ok=True)
        ctx.catalog.drop_update(image_id, checksum)


def remove_replaced(ctx: FlowContext, run: Run[Any, Any], image_id: str) -> None:
    """Remove the files and devices whose place others have taken. What is in use is left to gc."""
    if not reserved_devices(ctx, image_id, REPLACED):
        return
    lock_image(ctx, run, image_id)
    try:
        with run.effect("remove-replaced"):
            for path in _replaced_files(ctx, image_id):
                path.unlink(missing_ok=True)
            for reservation in reserved_devices(ctx, image_id, REPLACED):
                delete_device(ctx, reservation.device_id)
                ctx.catalog.release_reservation(image_id, reservation.device_id)
    except (ImageError, OSError) as error:
        run.log.warning("the former content of image %s could not be removed, gc will: %s", image_id, error)
    finally:
        unlock_image(ctx, run, image_id)


def reserved_devices(ctx: FlowContext, image_id: str, prefix: str = "/") -> list[Reservation]:
    """The ids of devices that lie beside an image's own: those that are to replace one, those that were replaced."""
    rows = ctx.catalog.list_reservations()
    return [row for row in rows if row.image_id == image_id and row.snapshot_name.startswith(prefix)]


def delete_device(ctx: FlowContext, device_id: int) -> None:
    """Delete the image's device with this id, whatever content it holds; nothing happens if there is none."""
    name = device_name(device_id)
    found = ctx.devices.look(name)
    if found is None or found.id not in (None, device_id):
        return
    device = device_of(str(device_id), name, found.uuid or "", found.size)
    ctx.devices.unmount(device)
    ctx.devices.deactivate(device)
    ctx.devices.delete(device)


def _replaced_files(ctx: FlowContext, image_id: str) -> list[Path]:
    image = ctx.catalog.get_image_by_id(image_id)
    if image is None or image.download_status != "completed":
        return []
    staged = ctx.catalog.get_update(image_id)
    kept = [ctx.recorded_file(image), *([ctx.file_of(image_id, staged.checksum)] if staged else [])]
    return [path for path in ctx.files_of(image_id) if path not in kept]


# --- download-image: check-exists → download → validate → store-metadata --------------------------------
#
# | killed in | leaves | the next execution |
# |---|---|---|
# | check-exists | nothing, or the image's lock | asks again, and finds the lock to be its own |
# | download | a hidden partial file | goes on behind the bytes that are there, if the object is the same |
# | validate | the file | judges it again |
# | store-metadata | the file, and the row or no row | writes the row, once |
#
# New content of an image is fetched to a file beside the old one, and all of it that is left by a kill is that file.

DownloadRun = Run[DownloadRequest, DownloadResponse]


def download_flow(ctx: FlowContext) -> Flow[DownloadRequest, DownloadResponse]:
    """The flow, done with the parts of this context."""
    return (
        Flow(
            ctx.flow_name("download-image"),
            request=DownloadRequest,
            response=DownloadResponse,
            queue=ctx.queue_name("downloads"),
            cleanup=partial(remove_unrecorded, ctx),
        )
        .start("check-exists", aborting(partial(check_exists, ctx)), retry=retries.CHECK_EXISTS)
        .to(
            "download",
            aborting(partial(download, ctx)),
            retry=retries.DOWNLOAD,
            timeout=ctx.timeouts.download,
        )
        .to("validate", aborting(partial(validate, ctx)), retry=retries.VALIDATE)
        .commit("store-metadata", aborting(partial(store_metadata, ctx)), retry=retries.STORE_METADATA)
    )


def check_exists(ctx: FlowContext, run: DownloadRun) -> DownloadResponse:
    """Hand off if the file is there and still what was verified; else nobody else downloads it from here on."""
    found, is_done = _look(ctx, run)
    if not is_done:
        lock_image(ctx, run, run.request.image_id)
        # Whoever had the lock before may have done it, or recorded other content.
        found, is_done = _look(ctx, run)
        if is_done:
            unlock_image(ctx, run, run.request.image_id)
    if is_done:
        raise Handoff(found)
    return found


def _look(ctx: FlowContext, run: DownloadRun) -> tuple[DownloadResponse, bool]:
    """The recorded file if it can be used, and whether it was judged by rules as strict as those asked for."""
    request = run.request
    recorded = look_for_file(ctx, request)
    if recorded is None:
        return run.response, False
    if request.judging.sha256 not in (None, recorded.image.checksum):
        refuse_update(ctx, recorded.image, request.judging.sha256 or "")
    found = _verified_file(ctx, run, recorded)
    if found is None:
        return run.response, False
    _refuse_again(ctx, run, checksum=found.checksum)
    # If not, the content is the one that was recorded, but it was judged by rules that let more through.
    is_judged = take_verdict(found, recorded.known, request.judging)
    return found, is_judged and not _asks_source(request, recorded)


def _asks_source(request: DownloadRequest, recorded: Recorded) -> bool:
    """Has the source to be asked whether the object is still the recorded one?"""
    return request.judging.refresh or request.judging.verify or recorded.is_elsewhere


def _verified_file(ctx: FlowContext, run: DownloadRun, recorded: Recorded) -> DownloadResponse | None:
    """The recorded file, if it is there and its content the recorded one. Reads it only if something has changed."""
    request, image, known = run.request, recorded.image, recorded.known
    path = ctx.recorded_file(image)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError:
        run.log.warning("the file of image %s is gone: it will be downloaded again", image.image_id)
        return None
    if not is_as_recorded(image, fingerprint, request.judging):
        return None
    if request.judging.verify or known is None or known.fingerprint != fingerprint:
        checksum = hash_file(path, run.check, run.progress)
        if checksum != image.checksum:
            run.log.warning("the file of image %s was changed: it will be downloaded again", image.image_id)
            return None
        if known is not None:
            ctx.catalog.note_fingerprint(image.image_id, fingerprint)
    if image.local_path != str(path):
        ctx.catalog.set_local_path(image.image_id, str(path))
    return file_response(ctx, image, fingerprint, known)


class _Unchanged(Exception):
    """The source has what was verified."""


def download(ctx: FlowContext, run: DownloadRun) -> DownloadResponse:
    """Bring the object to its file, whole or not at all; new content of an image lies beside the old."""
    request = run.request
    recorded = look_for_file(ctx, request)
    # Looked at again: a later step that misses the file comes back here with the very same response.
    is_there = run.response.already_exist and recorded is not None and ctx.recorded_file(recorded.image).exists()
    if is_there and recorded is not None and not _asks_source(request, recorded):
        return run.response
    known = recorded.known if recorded is not None and is_there else None
    target = ctx.images / (file_name(request.image_id) if recorded is None else incoming_name(request.image_id))
    ctx.images.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The job's, so that its next execution, or the next try, goes on with it.
    token = run.job.job_id
    for leftover in remove_partials(target, but=token):
        run.log.info("removed %s, left by a download that was killed", leftover.name)
    time_limit = TimeLimit(run, ctx.timeouts.download)
    try:
        with run.effect("file"):
            fetched = fetch(
                request.location,
                target,
                limit=ctx.limits.image_bytes,
                sha256=request.judging.sha256,
                connections=ctx.connections,
                token=token,
                check=time_limit.check,
                on_progress=time_limit.progress,
                on_head=partial(_look_at_head, ctx, run, known),
                settings=ctx.source,
            )
            path = target if recorded is None else _placed(ctx, run, recorded, fetched.checksum)
    except _Unchanged:
        assert known is not None
        remove_partials(target)
        return _unchanged(ctx, run, known)
    except (OutOfTime, StepTimeout):
        raise time_limit.verdict(str(request.location), is_kept=bool(partials_of(target))) from None
    return DownloadResponse(
        image_id=request.image_id,
        local_path=str(path),
        checksum=fetched.checksum,
        size_bytes=fetched.size_bytes,
        downloaded=True,
        etag=fetched.etag,
        fingerprint=fetched.fingerprint if path == target else fingerprint_of(path),
        asked_at=round(time.time() * 1000),
    )


def _look_at_head(ctx: FlowContext, run: DownloadRun, known: Verification | None, etag: str | None) -> None:
    if known is not None and etag is not None and etag == known.etag:
        raise _Unchanged
    _refuse_again(ctx, run, etag)


def _unchanged(ctx: FlowContext, run: DownloadRun, known: Verification) -> DownloadResponse:
    """The source has what is recorded: nothing was fetched, and nothing is to be done but to judge it, if at all."""
    request, response = run.request, run.response
    ctx.catalog.note_source(request.image_id, origin=full_name(request.location), etag=known.etag)
    response.asked_at = round(time.time() * 1000)
    if take_verdict(response, known, request.judging):
        unlock_image(ctx, run, request.image_id)
        raise Handoff(response)
    return response


def _placed(ctx: FlowContext, run: DownloadRun, recorded: Recorded, checksum: str) -> Path:
    """Where the fetched content of a recorded image belongs: in its file, or beside it if it is other content.

    Crash: under its name, or as a leftover that the next download replaces.
    """
    image = recorded.image
    incoming = ctx.images / incoming_name(image.image_id)
    if checksum != image.checksum:
        try:
            _refuse_other_store(run, recorded)
            refuse_update(ctx, image, checksum)
        except CatalogConflict:
            incoming.unlink(missing_ok=True)
            raise
        ctx.catalog.drop_update(image.image_id)
        for other in ctx.files_of(image.image_id):
            if other not in (incoming, ctx.recorded_file(image)):
                other.unlink(missing_ok=True)
    path = ctx.file_of(image.image_id, checksum)
    os.rename(incoming, path)
    sync_directory(path.parent)
    return path


def _refuse_other_store(run: DownloadRun, recorded: Recorded) -> None:
    """Raise CatalogConflict if other content came from another endpoint, and nobody has said that it is to be taken."""
    image, judging = recorded.image, run.request.judging
    if recorded.is_elsewhere and not judging.refresh and judging.sha256 is None:
        raise CatalogConflict(
            f"{full_name(run.request.location)} is other content than image {image.image_id} has from "
            f"{recorded.known.origin if recorded.known is not None else image.s3_key}",
            hint="choose another --image-id; or --refresh, if it is the same store with new content",
        )


def _refuse_again(ctx: FlowContext, run: DownloadRun, etag: str | None = None, *, checksum: str | None = None) -> None:
    """The very content that was refused before is refused without being read again."""
    request = run.request
    if (etag is None and checksum is None) or request.judging.verify:
        return
    refused = find_refusal(ctx, request, etag=etag, checksum=checksum)
    if refused is None:
        return
    from holdfast_images.archive.entry import BY_LIMITS  # noqa: PLC0415 - a finished image was not refused

    # The limits may have been raised since.
    if refused.code not in BY_LIMITS:
        raise refused


def validate(ctx: FlowContext, run: DownloadRun) -> DownloadResponse:
    """The bytes on disk are those that were fetched, and may be unpacked; a refused file is removed."""
    response, judging = run.response, run.request.judging
    path = ctx.file_of(run.request.image_id, response.checksum)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError as error:
        raise Rewind("download", f"{path.name} is gone") from error
    from holdfast_images.archive.sandbox import inspect_image  # noqa: PLC0415 - a finished image is not read

    # What was found and not fetched has been read already, if there was reason to.
    must_hash = response.downloaded or fingerprint != response.fingerprint
    with _hashing(path) if must_hash else nullcontext(lambda: response.checksum) as checksum_of_file:
        report = inspect_image(
            path,
            policy=judging.policy,
            limits=ctx.limits,
            keep_setuid=judging.keep_setuid,
            timeout=ctx.timeouts.extract,
            check=run.check,
            on_progress=lambda done, total, _: run.progress(done, total or None, note="bytes validated"),
        )
        checksum = checksum_of_file()
    if checksum != response.checksum:
        _discard_changed(ctx, run, path, checksum)
    if not report.acceptable:
        _refuse(ctx, run, report)
    response.fingerprint = fingerprint
    response.entries, response.total_bytes = report.entries, report.total_bytes
    recorded = ctx.catalog.get_verification(run.request.image_id)
    of_device = warnings_of_unpacking(recorded, response.checksum)
    response.warnings = most_telling((*of_device, *report.findings))
    return response


@contextmanager
def _hashing(path: Path) -> Iterator[Callable[[], str]]:
    """The digest of what is on disk, taken while the archive is judged by another process."""
    stopped = threading.Event()

    def check() -> None:
        if stopped.is_set():
            raise InterruptedError

    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-hash") as executor:
        digest = executor.submit(hash_file, path, check)
        try:
            yield digest.result
        finally:
            stopped.set()


def _discard_changed(ctx: FlowContext, run: DownloadRun, path: Path, checksum: str) -> None:
    request, response = run.request, run.response
    with run.effect("remove-changed"):
        path.unlink(missing_ok=True)
    key = ctx.catalog.free_key(request.image_id, keys_of(request))
    ctx.catalog.mark_failed(request.image_id, key, local_path=str(path), size_bytes=response.size_bytes)
    raise ChecksumMismatch(
        f"{path} has SHA-256 {checksum}, and {response.checksum} was downloaded",
        hint="something has written to it: find out what, then process the image again",
    )


def _refuse(ctx: FlowContext, run: DownloadRun, report: InspectionReport) -> None:
    request, response = run.request, run.response
    first = next(finding for finding in report.findings if finding.severity is ArchiveSeverity.ERROR)
    errors = sum(finding.severity is ArchiveSeverity.ERROR for finding in report.findings)
    where = shlex.quote(str(request.location))
    hint = f"see everything that is wrong with it: holdfast inspect {where} --policy {request.judging.policy}"
    refused = ImageRefused(first.code, first.detail, entry=first.path, offset=first.offset, hint=hint)
    run.log.error("security: image %s refused, %d findings: %s", request.image_id, errors, refused)
    # A file that other rules have let through belongs to those who asked for them.
    image = ctx.catalog.get_image_by_id(request.image_id)
    if response.downloaded and not is_content_of(image, response.checksum):
        with run.effect("remove-refused"):
            ctx.file_of(request.image_id, response.checksum).unlink(missing_ok=True)
    ctx.catalog.store_refusal(
        request.image_id,
        ctx.catalog.free_key(request.image_id, keys_of(request)),
        refused,
        policy=request.judging.policy,
        etag=response.etag,
        checksum=response.checksum,
        local_path=response.local_path,
        size_bytes=response.size_bytes,
    )
    raise refused


def store_metadata(ctx: FlowContext, run: DownloadRun, tx: Transaction) -> DownloadResponse:
    """Record the verified file, if it is still the one that was verified, and let go of the image.

    New content of an image that has a device is recorded beside the old: its row changes with its device.
    """
    request, response = run.request, run.response
    path = ctx.file_of(request.image_id, response.checksum)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError as error:
        raise Rewind("download", f"{path} is gone") from error
    if fingerprint != response.fingerprint:
        raise Rewind("validate", f"{path} was written to since it was validated")
    image = ctx.catalog.get_image_by_id(request.image_id)
    is_update = image is not None and not is_content_of(image, response.checksum)
    is_beside = is_update and ctx.catalog.get_unpacked_image_by_id(request.image_id) is not None
    if not is_beside:
        key = ctx.catalog.free_key(request.image_id, keys_of(request), tx=tx)
        ctx.catalog.store_image_metadata(
            request.image_id, key, str(path), response.checksum, response.size_bytes, tx=tx
        )
        ctx.catalog.drop_update(request.image_id, tx=tx)
    for key in keys_of(request):
        ctx.catalog.forget_refusals(key, tx=tx)
    (ctx.catalog.store_update if is_beside else ctx.catalog.store_verification)(
        request.image_id,
        response.checksum,
        fingerprint,
        policy=request.judging.policy,
        warnings=msgspec.json.encode(response.warnings).decode(),
        origin=full_name(request.location),
        etag=response.etag,
        tx=tx,
    )
    ctx.catalog.release_image_lock(request.image_id, owner_of(run), tx=tx)
    return response


def remove_unrecorded(ctx: FlowContext, run: DownloadRun) -> None:
    """After a failure: no partial file stays, no file that no row knows, and no lock."""
    request = run.request
    if not holds_image(ctx, run, request.image_id):
        return  # this job has made nothing, or has cleaned up before: what is there is another's
    image = ctx.catalog.get_image_by_id(request.image_id)
    is_recorded = image is not None and image.download_status == "completed"
    staged = ctx.catalog.get_update(request.image_id)
    kept = {ctx.recorded_file(image)} if image is not None and is_recorded else set()
    kept |= {ctx.file_of(request.image_id, staged.checksum)} if staged is not None else set()
    targets = {ctx.images / file_name(request.image_id), ctx.images / incoming_name(request.image_id)}
    for target in targets:
        remove_partials(target)
    for path in ctx.files_of(request.image_id):
        if path not in kept and (is_recorded or run.response.downloaded):
            with run.effect("remove-unrecorded"):
                path.unlink(missing_ok=True)
    unlock_image(ctx, run, request.image_id)
