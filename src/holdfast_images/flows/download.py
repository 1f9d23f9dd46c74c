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
from holdfast_images.flows.existing import (
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


def refuse_update(shop: FlowContext, image: Image, checksum: str) -> None:
    """Raise CatalogConflict if the image cannot have other content: snapshots of what it has are recorded."""
    names = [row.snapshot_name for row in shop.catalog.get_snapshots_by_image_id(image.image_id)]
    if names:
        raise CatalogConflict(
            f"image {image.image_id} stays as it is: there are snapshots of its content {(image.checksum or '')[:12]}, "
            f"and {checksum[:12]} is other content: {', '.join(names)}",
            hint="process it under another --image-id, or remove the snapshots first: "
            f"holdfast snapshot deactivate {names[0]} --delete",
        )


def discard_update(shop: FlowContext, image_id: str, checksum: str) -> None:
    """New content that will not come into use: its file and its row go, and the image stays what it is."""
    staged = shop.catalog.get_update(image_id)
    if staged is not None and staged.checksum == checksum:
        shop.file_of(image_id, checksum).unlink(missing_ok=True)
        shop.catalog.drop_update(image_id, checksum)


def remove_replaced(shop: FlowContext, run: Run[Any, Any], image_id: str) -> None:
    """Remove the files and devices whose place others have taken. What is in use is left to gc."""
    if not reserved_devices(shop, image_id, REPLACED):
        return
    lock_image(shop, run, image_id)
    try:
        with run.effect("remove-replaced"):
            for path in _replaced_files(shop, image_id):
                path.unlink(missing_ok=True)
            for reservation in reserved_devices(shop, image_id, REPLACED):
                delete_device(shop, reservation.device_id)
                shop.catalog.release_reservation(image_id, reservation.device_id)
    except (ImageError, OSError) as error:
        run.log.warning("the former content of image %s could not be removed, gc will: %s", image_id, error)
    finally:
        unlock_image(shop, run, image_id)


def reserved_devices(shop: FlowContext, image_id: str, prefix: str = "/") -> list[Reservation]:
    """The ids of devices that lie beside an image's own: those that are to replace one, those that were replaced."""
    rows = shop.catalog.list_reservations()
    return [row for row in rows if row.image_id == image_id and row.snapshot_name.startswith(prefix)]


def delete_device(shop: FlowContext, device_id: int) -> None:
    """Delete the image's device with this id, whatever content it holds; nothing happens if there is none."""
    name = device_name(device_id)
    found = shop.devices.look(name)
    if found is None or found.id not in (None, device_id):
        return
    device = device_of(str(device_id), name, found.uuid or "", found.size)
    shop.devices.unmount(device)
    shop.devices.deactivate(device)
    shop.devices.delete(device)


def _replaced_files(shop: FlowContext, image_id: str) -> list[Path]:
    image = shop.catalog.get_image_by_id(image_id)
    if image is None or image.download_status != "completed":
        return []
    staged = shop.catalog.get_update(image_id)
    kept = [shop.recorded_file(image), *([shop.file_of(image_id, staged.checksum)] if staged else [])]
    return [path for path in shop.files_of(image_id) if path not in kept]


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


def download_flow(shop: FlowContext) -> Flow[DownloadRequest, DownloadResponse]:
    """The flow, done with the parts of this workshop."""
    return (
        Flow(
            shop.flow_name("download-image"),
            request=DownloadRequest,
            response=DownloadResponse,
            queue=shop.queue_name("downloads"),
            cleanup=partial(remove_unrecorded, shop),
        )
        .start("check-exists", aborting(partial(check_exists, shop)), retry=retries.CHECK_EXISTS)
        .to(
            "download",
            aborting(partial(download, shop)),
            retry=retries.DOWNLOAD,
            timeout=shop.timeouts.download,
        )
        .to("validate", aborting(partial(validate, shop)), retry=retries.VALIDATE)
        .commit("store-metadata", aborting(partial(store_metadata, shop)), retry=retries.STORE_METADATA)
    )


def check_exists(shop: FlowContext, run: DownloadRun) -> DownloadResponse:
    """Hand off if the file is there and still what was verified; else nobody else downloads it from here on."""
    found, is_done = _look(shop, run)
    if not is_done:
        lock_image(shop, run, run.request.image_id)
        # Whoever had the lock before may have done it, or recorded other content.
        found, is_done = _look(shop, run)
        if is_done:
            unlock_image(shop, run, run.request.image_id)
    if is_done:
        raise Handoff(found)
    return found


def _look(shop: FlowContext, run: DownloadRun) -> tuple[DownloadResponse, bool]:
    """The recorded file if it can be used, and whether it was judged by rules as strict as those asked for."""
    request = run.request
    recorded = look_for_file(shop, request)
    if recorded is None:
        return run.response, False
    if request.judging.sha256 not in (None, recorded.image.checksum):
        refuse_update(shop, recorded.image, request.judging.sha256 or "")
    found = _verified_file(shop, run, recorded)
    if found is None:
        return run.response, False
    _refuse_again(shop, run, checksum=found.checksum)
    # If not, the content is the one that was recorded, but it was judged by rules that let more through.
    is_judged = take_verdict(found, recorded.known, request.judging)
    return found, is_judged and not _asks_source(request, recorded)


def _asks_source(request: DownloadRequest, recorded: Recorded) -> bool:
    """Has the source to be asked whether the object is still the recorded one?"""
    return request.judging.refresh or request.judging.verify or recorded.is_elsewhere


def _verified_file(shop: FlowContext, run: DownloadRun, recorded: Recorded) -> DownloadResponse | None:
    """The recorded file, if it is there and its content the recorded one. Reads it only if something has changed."""
    request, image, known = run.request, recorded.image, recorded.known
    path = shop.recorded_file(image)
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
            shop.catalog.note_fingerprint(image.image_id, fingerprint)
    if image.local_path != str(path):
        shop.catalog.set_local_path(image.image_id, str(path))
    return file_response(shop, image, fingerprint, known)


class _Unchanged(Exception):
    """The source has what was verified."""


def download(shop: FlowContext, run: DownloadRun) -> DownloadResponse:
    """Bring the object to its file, whole or not at all; new content of an image lies beside the old."""
    request = run.request
    recorded = look_for_file(shop, request)
    # Looked at again: a later step that misses the file comes back here with the very same response.
    is_there = run.response.already_exist and recorded is not None and shop.recorded_file(recorded.image).exists()
    if is_there and recorded is not None and not _asks_source(request, recorded):
        return run.response
    known = recorded.known if recorded is not None and is_there else None
    target = shop.images / (file_name(request.image_id) if recorded is None else incoming_name(request.image_id))
    shop.images.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The job's, so that its next execution, or the next try, goes on with it.
    token = run.job.job_id
    for leftover in remove_partials(target, but=token):
        run.log.info("removed %s, left by a download that was killed", leftover.name)
    time_limit = TimeLimit(run, shop.timeouts.download)
    try:
        with run.effect("file"):
            fetched = fetch(
                request.location,
                target,
                limit=shop.limits.image_bytes,
                sha256=request.judging.sha256,
                connections=shop.connections,
                token=token,
                check=time_limit.check,
                on_progress=time_limit.progress,
                on_head=partial(_look_at_head, shop, run, known),
                settings=shop.source,
            )
            path = target if recorded is None else _placed(shop, run, recorded, fetched.checksum)
    except _Unchanged:
        assert known is not None
        remove_partials(target)
        return _unchanged(shop, run, known)
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


def _look_at_head(shop: FlowContext, run: DownloadRun, known: Verification | None, etag: str | None) -> None:
    if known is not None and etag is not None and etag == known.etag:
        raise _Unchanged
    _refuse_again(shop, run, etag)


def _unchanged(shop: FlowContext, run: DownloadRun, known: Verification) -> DownloadResponse:
    """The source has what is recorded: nothing was fetched, and nothing is to be done but to judge it, if at all."""
    request, response = run.request, run.response
    shop.catalog.note_source(request.image_id, origin=full_name(request.location), etag=known.etag)
    response.asked_at = round(time.time() * 1000)
    if take_verdict(response, known, request.judging):
        unlock_image(shop, run, request.image_id)
        raise Handoff(response)
    return response


def _placed(shop: FlowContext, run: DownloadRun, recorded: Recorded, checksum: str) -> Path:
    """Where the fetched content of a recorded image belongs: in its file, or beside it if it is other content.

    Crash: under its name, or as a leftover that the next download replaces.
    """
    image = recorded.image
    incoming = shop.images / incoming_name(image.image_id)
    if checksum != image.checksum:
        try:
            _refuse_other_store(run, recorded)
            refuse_update(shop, image, checksum)
        except CatalogConflict:
            incoming.unlink(missing_ok=True)
            raise
        shop.catalog.drop_update(image.image_id)
        for other in shop.files_of(image.image_id):
            if other not in (incoming, shop.recorded_file(image)):
                other.unlink(missing_ok=True)
    path = shop.file_of(image.image_id, checksum)
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


def _refuse_again(shop: FlowContext, run: DownloadRun, etag: str | None = None, *, checksum: str | None = None) -> None:
    """The very content that was refused before is refused without being read again."""
    request = run.request
    if (etag is None and checksum is None) or request.judging.verify:
        return
    refused = find_refusal(shop, request, etag=etag, checksum=checksum)
    if refused is None:
        return
    from holdfast_images.archive.entry import BY_LIMITS  # noqa: PLC0415 - a finished image was not refused

    # The limits may have been raised since.
    if refused.code not in BY_LIMITS:
        raise refused


def validate(shop: FlowContext, run: DownloadRun) -> DownloadResponse:
    """The bytes on disk are those that were fetched, and may be unpacked; a refused file is removed."""
    response, judging = run.response, run.request.judging
    path = shop.file_of(run.request.image_id, response.checksum)
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
            limits=shop.limits,
            keep_setuid=judging.keep_setuid,
            timeout=shop.timeouts.extract,
            check=run.check,
            on_progress=lambda done, total, _: run.progress(done, total or None, note="bytes validated"),
        )
        checksum = checksum_of_file()
    if checksum != response.checksum:
        _discard_changed(shop, run, path, checksum)
    if not report.acceptable:
        _refuse(shop, run, report)
    response.fingerprint = fingerprint
    response.entries, response.total_bytes = report.entries, report.total_bytes
    recorded = shop.catalog.get_verification(run.request.image_id)
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


def _discard_changed(shop: FlowContext, run: DownloadRun, path: Path, checksum: str) -> None:
    request, response = run.request, run.response
    with run.effect("remove-changed"):
        path.unlink(missing_ok=True)
    key = shop.catalog.free_key(request.image_id, keys_of(request))
    shop.catalog.mark_failed(request.image_id, key, local_path=str(path), size_bytes=response.size_bytes)
    raise ChecksumMismatch(
        f"{path} has SHA-256 {checksum}, and {response.checksum} was downloaded",
        hint="something has written to it: find out what, then process the image again",
    )


def _refuse(shop: FlowContext, run: DownloadRun, report: InspectionReport) -> None:
    request, response = run.request, run.response
    first = next(finding for finding in report.findings if finding.severity is ArchiveSeverity.ERROR)
    errors = sum(finding.severity is ArchiveSeverity.ERROR for finding in report.findings)
    where = shlex.quote(str(request.location))
    hint = f"see everything that is wrong with it: holdfast inspect {where} --policy {request.judging.policy}"
    refused = ImageRefused(first.code, first.detail, entry=first.path, offset=first.offset, hint=hint)
    run.log.error("security: image %s refused, %d findings: %s", request.image_id, errors, refused)
    # A file that other rules have let through belongs to those who asked for them.
    image = shop.catalog.get_image_by_id(request.image_id)
    if response.downloaded and not is_content_of(image, response.checksum):
        with run.effect("remove-refused"):
            shop.file_of(request.image_id, response.checksum).unlink(missing_ok=True)
    shop.catalog.store_refusal(
        request.image_id,
        shop.catalog.free_key(request.image_id, keys_of(request)),
        refused,
        policy=request.judging.policy,
        etag=response.etag,
        checksum=response.checksum,
        local_path=response.local_path,
        size_bytes=response.size_bytes,
    )
    raise refused


def store_metadata(shop: FlowContext, run: DownloadRun, tx: Transaction) -> DownloadResponse:
    """Record the verified file, if it is still the one that was verified, and let go of the image.

    New content of an image that has a device is recorded beside the old: its row changes with its device.
    """
    request, response = run.request, run.response
    path = shop.file_of(request.image_id, response.checksum)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError as error:
        raise Rewind("download", f"{path} is gone") from error
    if fingerprint != response.fingerprint:
        raise Rewind("validate", f"{path} was written to since it was validated")
    image = shop.catalog.get_image_by_id(request.image_id)
    is_update = image is not None and not is_content_of(image, response.checksum)
    is_beside = is_update and shop.catalog.get_unpacked_image_by_id(request.image_id) is not None
    if not is_beside:
        key = shop.catalog.free_key(request.image_id, keys_of(request), tx=tx)
        shop.catalog.store_image_metadata(
            request.image_id, key, str(path), response.checksum, response.size_bytes, tx=tx
        )
        shop.catalog.drop_update(request.image_id, tx=tx)
    for key in keys_of(request):
        shop.catalog.forget_refusals(key, tx=tx)
    (shop.catalog.store_update if is_beside else shop.catalog.store_verification)(
        request.image_id,
        response.checksum,
        fingerprint,
        policy=request.judging.policy,
        warnings=msgspec.json.encode(response.warnings).decode(),
        origin=full_name(request.location),
        etag=response.etag,
        tx=tx,
    )
    shop.catalog.release_image_lock(request.image_id, owner_of(run), tx=tx)
    return response


def remove_unrecorded(shop: FlowContext, run: DownloadRun) -> None:
    """After a failure: no partial file stays, no file that no row knows, and no lock."""
    request = run.request
    if not holds_image(shop, run, request.image_id):
        return  # this job has made nothing, or has cleaned up before: what is there is another's
    image = shop.catalog.get_image_by_id(request.image_id)
    is_recorded = image is not None and image.download_status == "completed"
    staged = shop.catalog.get_update(request.image_id)
    kept = {shop.recorded_file(image)} if image is not None and is_recorded else set()
    kept |= {shop.file_of(request.image_id, staged.checksum)} if staged is not None else set()
    targets = {shop.images / file_name(request.image_id), shop.images / incoming_name(request.image_id)}
    for target in targets:
        remove_partials(target)
    for path in shop.files_of(request.image_id):
        if path not in kept and (is_recorded or run.response.downloaded):
            with run.effect("remove-unrecorded"):
                path.unlink(missing_ok=True)
    unlock_image(shop, run, request.image_id)
