"""What of a request is done already, by what the catalog, the file and the devices say. Nothing here changes anything.

The first step of each flow asks here, and so does whoever wants to know it without a job.
"""

from __future__ import annotations

import msgspec

from holdfast_images.archive.entry import Finding, Policy
from holdfast_images.catalog.rows import Image, Snapshot, UnpackedImage, Verification
from holdfast_images.devices.protocol import Device, Found
from holdfast_images.errors import CatalogConflict, DeviceLost, ImageError
from holdfast_images.flows.messages import (
    PROCESS,
    ActivateRequest,
    ActivateResponse,
    DownloadRequest,
    DownloadResponse,
    Judging,
    ProcessRequest,
    UnpackRequest,
    UnpackResponse,
    key_of,
    snapshot_name_of,
    to_activate,
    to_download,
    to_unpack,
)
from holdfast_images.flows.workshop import Workshop, device_of, uuid_of
from holdfast_images.model import Fingerprint
from holdfast_images.source.hashing import fingerprint_of
from holdfast_images.source.locations import full_name


class Finished(msgspec.Struct, frozen=True):
    """What every stage would hand over."""

    download: DownloadResponse
    unpack: UnpackResponse
    activate: ActivateResponse


def find_finished(shop: Workshop, request: ProcessRequest) -> Finished | None:
    """What is there, if all of it is there and as it should be; None if anything is left to do, to read or to tell.

    A job that was asked the same and has not ended, be it only that nobody has noted its end, is left to do.
    """
    if request.judging.verify:
        return None
    try:
        if shop.catalog.has_unfinished_job(shop.flow_name(PROCESS), key_of(request)):
            return None
        downloaded = _find_file(shop, to_download(request))
        unpacked = downloaded and _find_device(shop, to_unpack(request, downloaded))
        activated = unpacked and _find_snapshot(shop, to_activate(request, unpacked))
    except (ImageError, OSError, ValueError, msgspec.MsgspecError):
        return None  # a job finds the same, rows that cannot be understood included, and tells it
    return Finished(downloaded, unpacked, activated) if downloaded and unpacked and activated else None


def _find_file(shop: Workshop, request: DownloadRequest) -> DownloadResponse | None:
    recorded = look_for_file(shop, request)
    if recorded is None:
        return None
    image, known = recorded
    fingerprint = fingerprint_of(image.local_path)
    if known is None or not is_as_recorded(image, fingerprint, request.judging) or known.fingerprint != fingerprint:
        return None
    response = file_response(image, fingerprint)
    refused = shop.catalog.find_refusal(
        request.s3_key, policy=request.judging.policy, etag=None, checksum=response.checksum
    )
    return response if refused is None and take_verdict(response, known, request.judging) else None


def _find_device(shop: Workshop, request: UnpackRequest) -> UnpackResponse | None:
    row, lost = look_for_device(shop, request)
    return None if row is None or lost else device_response(row)


def _find_snapshot(shop: Workshop, request: ActivateRequest) -> ActivateResponse | None:
    row, lost = look_for_snapshot(shop, request)
    return None if row is None or lost else snapshot_response(row)


# --- the file -------------------------------------------------------------------------------------------------


def look_for_file(shop: Workshop, request: DownloadRequest) -> tuple[Image, Verification | None] | None:
    """What is recorded under the key. Raises CatalogConflict if that is another image or another object."""
    image = shop.catalog.check_image_downloaded(request.s3_key)
    if image is None:
        return None
    known = shop.catalog.get_verification(image.image_id)
    if known is not None and known.origin not in ("", full_name(request.location)):
        raise CatalogConflict(
            f"key {request.s3_key!r} is recorded as image {image.image_id} from {known.origin}, "
            f"not from {full_name(request.location)}",
            hint="name this one by its URL and choose another image id: --source s3://…; or remove that image first",
        )
    if image.image_id != request.image_id:
        raise CatalogConflict(
            f"key {request.s3_key!r} is recorded as image {image.image_id}, not {request.image_id}",
            hint="use that image id, or remove that image first",
        )
    return image, known


def is_as_recorded(image: Image, fingerprint: Fingerprint, judging: Judging) -> bool:
    """Can the file hold the recorded content, and is that the content asked for?"""
    return judging.sha256 in (None, image.checksum) and fingerprint.size == image.size_bytes


def take_verdict(response: DownloadResponse, known: Verification | None, judging: Judging) -> bool:
    """Was this content judged by rules as strict as those asked for? Then what was warned of is in the response."""
    if known is None or known.checksum != response.checksum or not _covers(Policy(known.policy), judging.policy):
        return False
    response.warnings = msgspec.json.decode(known.warnings, type=tuple[Finding, ...])
    return True


def file_response(image: Image, fingerprint: Fingerprint) -> DownloadResponse:
    """The recorded file, as it was found."""
    return DownloadResponse(
        image_id=image.image_id,
        local_path=image.local_path,
        checksum=image.checksum or "",
        size_bytes=image.size_bytes,
        already_exist=True,
        fingerprint=fingerprint,
    )


def _covers(judged_by: Policy, asked_for: Policy) -> bool:
    """What STRICT has let through, DISTRO would have let through."""
    return judged_by is asked_for or judged_by is Policy.STRICT


# --- the device -----------------------------------------------------------------------------------------------


def look_for_device(shop: Workshop, request: UnpackRequest) -> tuple[UnpackedImage | None, str]:
    """What the image is recorded to be unpacked to, and why that cannot be used; empty if it can."""
    row = shop.catalog.check_image_unpacked(request.image_id)
    if row is None:
        return None, ""
    if not row.layout_verified:
        return row, f"{row.device_name} was never verified"
    device = device_of(row.device_id, row.device_name, uuid_of(request.image_id, request.checksum, request.judging))
    return row, _what_is_lost(shop, device, deep=request.judging.verify)


def device_response(row: UnpackedImage) -> UnpackResponse:
    """The recorded device, as it was found."""
    return UnpackResponse(
        image_id=row.image_id,
        device_id=row.device_id,
        device_name=row.device_name,
        device_path=row.device_path,
        size_bytes=row.size_bytes,
        file_count=row.file_count,
    )


def _what_is_lost(shop: Workshop, device: Device, *, deep: bool = False) -> str:
    try:
        shop.devices.verify(device, deep=deep)
    except DeviceLost as error:
        return str(error)
    return ""


# --- the snapshot ---------------------------------------------------------------------------------------------


def look_for_snapshot(shop: Workshop, request: ActivateRequest) -> tuple[Snapshot | None, str]:
    """The recorded snapshot, if it is in use, and why it cannot be used; empty if it can."""
    row = shop.catalog.check_snapshot_exists(request.image_id, snapshot_name_of(request))
    if row is None or not row.active:
        return None, ""
    if row.origin_device_id != request.device_id:
        return row, f"it was taken of device {row.origin_device_id}, not {request.device_id}"
    try:
        origin = found_device(shop, request.device_name, request.device_id)
    except DeviceLost as error:
        return row, str(error)
    snapshot = device_of(row.snapshot_id, row.snapshot_name, origin.uuid or "", origin.size)
    return row, _what_is_lost(shop, snapshot)


def found_device(shop: Workshop, name: str, device_id: str) -> Found:
    """What the backend holds under this name. Raises DeviceLost unless it has this id and a UUID."""
    found = shop.devices.look(name)
    if found is not None and found.id == int(device_id) and found.uuid:
        return found
    raise DeviceLost(f"{name} is not there", hint="process the image again: it will be unpacked anew")


def snapshot_response(row: Snapshot) -> ActivateResponse:
    """The recorded snapshot, as it was found."""
    return ActivateResponse(
        image_id=row.image_id,
        snapshot_id=row.snapshot_id,
        snapshot_name=row.snapshot_name,
        device_path=row.device_path,
        active=True,
    )
