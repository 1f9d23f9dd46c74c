"""download-image: check-exists → download → validate → store-metadata.

| killed in | leaves | the next execution |
|---|---|---|
| check-exists | nothing, or the image's lock | asks again, and finds the lock to be its own |
| download | a hidden partial file | removes it and downloads from the beginning |
| validate | the file | judges it again |
| store-metadata | the file, and the row or no row | writes the row, once |
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec

from holdfast import Flow, Handoff, Rewind, Run, Transaction, exponential, fixed
from holdfast_images.archive.entry import Report, Severity
from holdfast_images.catalog.rows import Image, Verification
from holdfast_images.errors import ChecksumMismatch, ImageRefused
from holdfast_images.flows.finished import file_response, is_as_recorded, look_for_file, take_verdict
from holdfast_images.flows.messages import DownloadRequest, DownloadResponse
from holdfast_images.flows.steering import aborting, holds_image, lock_image, owner_of, time_to_read, unlock_image
from holdfast_images.flows.workshop import WARNINGS_KEPT, Workshop
from holdfast_images.source.fetching import fetch
from holdfast_images.source.hashing import fingerprint_of, hash_file
from holdfast_images.source.locations import full_name
from holdfast_images.source.partial import remove_partials

DownloadRun = Run[DownloadRequest, DownloadResponse]


def download_flow(shop: Workshop) -> Flow[DownloadRequest, DownloadResponse]:
    """The flow, done with the parts of this workshop."""
    return (
        Flow(
            shop.flow_name("download-image"),
            request=DownloadRequest,
            response=DownloadResponse,
            queue=shop.queue_name("downloads"),
            cleanup=partial(remove_unrecorded, shop),
        )
        .start("check-exists", aborting(partial(check_exists, shop)), retry=exponential(3))
        .to(
            "download",
            aborting(partial(download, shop)),
            retry=exponential(5, jitter=True),
            timeout=shop.timeouts.download,
        )
        .to("validate", aborting(partial(validate, shop)), retry=fixed(2), timeout=shop.timeouts.extract)
        .commit("store-metadata", aborting(partial(store_metadata, shop)), retry=exponential(5, jitter=True))
    )


def check_exists(shop: Workshop, run: DownloadRun) -> DownloadResponse:
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


def _look(shop: Workshop, run: DownloadRun) -> tuple[DownloadResponse, bool]:
    """The recorded file if it can be used, and whether it was judged by rules as strict as those asked for."""
    request = run.request
    recorded = look_for_file(shop, request)
    if recorded is None:
        # Before anything is fetched: the file of an image is named after its id, whatever key it came from.
        shop.catalog.refuse_other_key(request.image_id, request.s3_key)
        return run.response, False
    image, known = recorded
    found = _verified_file(shop, run, image, known)
    if found is None:
        return run.response, False
    _refuse_again(shop, run, checksum=found.checksum)
    # If not, the content is the one that was recorded, but it was judged by rules that let more through.
    return found, take_verdict(found, known, request.judging)


def _verified_file(
    shop: Workshop, run: DownloadRun, image: Image, known: Verification | None
) -> DownloadResponse | None:
    """The recorded file, if it is there and its content the recorded one. Reads it only if something has changed."""
    request, path = run.request, Path(image.local_path)
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
            shop.catalog.store_verification(
                image.image_id,
                checksum,
                fingerprint,
                policy=known.policy,
                warnings=known.warnings,
                origin=known.origin,
            )
    return file_response(image, fingerprint)


def download(shop: Workshop, run: DownloadRun) -> DownloadResponse:
    """Bring the object to its file, whole or not at all."""
    # Looked at again: a later step that misses the file comes back here with the very same response.
    if run.response.already_exist and Path(run.response.local_path).exists():
        return run.response
    request = run.request
    target = shop.file_of(request.image_id)
    shop.images.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in remove_partials(target):
        run.log.info("removed %s, left by a download that was killed", leftover.name)
    with run.effect("file"):
        fetched = fetch(
            request.location,
            target,
            limit=shop.limits.image_bytes,
            sha256=request.judging.sha256,
            connections=shop.connections,
            token=run.exec_id,
            check=run.check,
            on_progress=partial(run.progress, note="bytes downloaded"),
            on_head=partial(_refuse_again, shop, run),
            settings=shop.source,
        )
    return DownloadResponse(
        image_id=request.image_id,
        local_path=str(target),
        checksum=fetched.checksum,
        size_bytes=fetched.size_bytes,
        downloaded=True,
        etag=fetched.etag,
        fingerprint=fetched.fingerprint,
    )


def _refuse_again(shop: Workshop, run: DownloadRun, etag: str | None = None, *, checksum: str | None = None) -> None:
    """The very content that was refused before is refused without being read again."""
    request = run.request
    if (etag is None and checksum is None) or request.judging.verify:
        return
    refused = shop.catalog.find_refusal(request.s3_key, policy=request.judging.policy, etag=etag, checksum=checksum)
    if refused is None:
        return
    from holdfast_images.archive.reasons import BY_LIMITS  # noqa: PLC0415 - a finished image was not refused

    # The limits may have been raised since.
    if refused.code not in BY_LIMITS:
        raise refused


def validate(shop: Workshop, run: DownloadRun) -> DownloadResponse:
    """The content is the one that was fetched, and may be unpacked; a refused file is removed."""
    response, judging = run.response, run.request.judging
    path = Path(response.local_path)
    try:
        fingerprint = fingerprint_of(path)
    except FileNotFoundError as error:
        raise Rewind("download", f"{path.name} is gone") from error
    if judging.verify or fingerprint != response.fingerprint:
        checksum = hash_file(path, run.check, run.progress)
        if checksum != response.checksum:
            with run.effect("remove-changed"):
                path.unlink(missing_ok=True)
            raise ChecksumMismatch(
                f"{path} has SHA-256 {checksum}, and {response.checksum} was downloaded",
                hint="something has written to it: find out what, then process the image again",
            )
    from holdfast_images.archive.running import inspect_image  # noqa: PLC0415 - a finished image is not read

    report = inspect_image(
        path,
        policy=judging.policy,
        limits=shop.limits,
        keep_setuid=judging.keep_setuid,
        timeout=time_to_read(shop, run),
        check=run.check,
        on_progress=lambda done, total, _: run.progress(done, total or None, note="bytes validated"),
    )
    if not report.acceptable:
        _refuse(shop, run, report)
    response.fingerprint = fingerprint
    response.entries, response.total_bytes = report.entries, report.total_bytes
    response.warnings = report.findings[:WARNINGS_KEPT]
    return response


def _refuse(shop: Workshop, run: DownloadRun, report: Report) -> None:
    request, response = run.request, run.response
    first = next(finding for finding in report.findings if finding.severity is Severity.ERROR)
    errors = sum(finding.severity is Severity.ERROR for finding in report.findings)
    hint = "see everything that is wrong with it: holdfast inspect"
    refused = ImageRefused(first.code, first.detail, entry=first.path, offset=first.offset, hint=hint)
    run.log.error("security: image %s refused, %d findings: %s", request.image_id, errors, refused)
    # A file that other rules have let through belongs to those who asked for them.
    if response.downloaded:
        with run.effect("remove-refused"):
            Path(response.local_path).unlink(missing_ok=True)
    shop.catalog.store_refusal(
        request.image_id,
        request.s3_key,
        refused,
        policy=request.judging.policy,
        etag=response.etag,
        checksum=response.checksum,
        local_path=response.local_path,
        size_bytes=response.size_bytes,
    )
    raise refused


def store_metadata(shop: Workshop, run: DownloadRun, tx: Transaction) -> DownloadResponse:
    """Record the verified file, if it is still the one that was verified, and let go of the image."""
    request, response = run.request, run.response
    try:
        fingerprint = fingerprint_of(response.local_path)
    except FileNotFoundError as error:
        raise Rewind("download", f"{response.local_path} is gone") from error
    if fingerprint != response.fingerprint:
        raise Rewind("validate", f"{response.local_path} was written to since it was validated")
    shop.catalog.store_image_metadata(
        request.image_id, request.s3_key, response.local_path, response.checksum, response.size_bytes, tx=tx
    )
    shop.catalog.store_verification(
        request.image_id,
        response.checksum,
        fingerprint,
        policy=request.judging.policy,
        warnings=msgspec.json.encode(response.warnings).decode(),
        origin=full_name(request.location),
        tx=tx,
    )
    shop.catalog.release_image_lock(request.image_id, owner_of(run), tx=tx)
    return response


def remove_unrecorded(shop: Workshop, run: DownloadRun) -> None:
    """After a failure: no partial file stays, no file that no row knows, and no lock."""
    request = run.request
    if not holds_image(shop, run, request.image_id):
        return  # this job has made nothing, or has cleaned up before: what is there is another's
    target = shop.file_of(request.image_id)
    remove_partials(target)
    image = shop.catalog.get_image_by_id(request.image_id)
    if (image is None or image.download_status != "completed") and run.response.downloaded:
        with run.effect("remove-unrecorded"):
            target.unlink(missing_ok=True)
    unlock_image(shop, run, request.image_id)
