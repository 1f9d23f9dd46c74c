"""What is there of an image already: asked before any job and by the first steps, with nothing of the engine."""

from __future__ import annotations

from enum import Enum
from urllib.parse import urlsplit

import msgspec

from holdfast_images.archive.entry import ArchiveFinding, Policy
from holdfast_images.catalog.tables import Image, Snapshot, UnpackedImage, Verification
from holdfast_images.devices.protocol import Device, Found
from holdfast_images.errors import CatalogConflict, DeviceLost, ImageError, ImageRefused, SnapshotOverwritten
from holdfast_images.flows.context import FlowContext, device_of, recorded_device, uuid_of, uuids_of
from holdfast_images.flows.schemas import (
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
from holdfast_images.model import Fingerprint, device_number, image_id_of
from holdfast_images.source.location import Location, S3Object, full_name, origin_of
from holdfast_images.source.partial import fingerprint_of

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}
_AT = " at "
"""Between an object of S3 and its endpoint in the full name."""


class Relation(Enum):
    """Of a recorded object to one that is asked for."""

    SAME = "same"
    ELSEWHERE = "elsewhere"
    """The same bucket and key at another endpoint: the same store under another name, or another store."""
    OTHER = "other"


def relation_of(origin: str, location: Location) -> Relation:
    """Pure. By the full name that was recorded; an empty one, of an older version, is taken for the same."""
    if origin in ("", full_name(location)):
        return Relation.SAME
    if not isinstance(location, S3Object):
        return Relation.OTHER
    name = str(location)
    if origin != name and not origin.startswith((f"{name}{_AT}http://", f"{name}{_AT}https://")):
        return Relation.OTHER
    recorded = origin[len(name) + len(_AT) :]
    if not recorded or not location.endpoint:
        return Relation.ELSEWHERE
    return Relation.SAME if _address(recorded) == _address(location.endpoint) else Relation.ELSEWHERE


def keys_of(request: DownloadRequest) -> list[str]:
    """What the catalog may call the object for this image: its key, or more of its name if others have that."""
    name = full_name(request.location)
    return list(dict.fromkeys([request.s3_key, str(request.location), f"{name}#{request.image_id}"]))


def is_derived(request: DownloadRequest) -> bool:
    """Has nobody chosen the image id?"""
    return request.image_id == image_id_of(*origin_of(request.location))


def _address(endpoint: str) -> tuple[str, str, int | None]:
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").rstrip(".")
    return parts.scheme, "localhost" if host in _LOOPBACK else host, parts.port or _PORTS.get(parts.scheme)


# --- What of a request is done already, by what the catalog, the file and the devices say. Nothing here changes
# anything.
#
# The first step of each flow asks here, and so does whoever wants to know it without a job.


class ExistingImage(msgspec.Struct, frozen=True):
    """What every stage would hand over."""

    download: DownloadResponse
    unpack: UnpackResponse
    activate: ActivateResponse


def find_finished(ctx: FlowContext, request: ProcessRequest) -> ExistingImage | None:
    """What is there, if all of it is there and as it should be; None if anything is left to do, to read or to tell.

    A job that was asked the same and has not ended, be it only that nobody has noted its end, is left to do.
    """
    if request.judging.verify or request.judging.refresh:
        return None
    try:
        if ctx.catalog.has_unfinished_job(ctx.flow_name(PROCESS), key_of(request)):
            return None
        downloaded = _find_file(ctx, to_download(request))
        unpacked = downloaded and _find_device(ctx, to_unpack(request, downloaded))
        activated = unpacked and _find_snapshot(ctx, to_activate(request, unpacked))
    except (ImageError, OSError, ValueError, msgspec.MsgspecError):
        return None  # a job finds the same, rows that cannot be understood included, and tells it
    return ExistingImage(downloaded, unpacked, activated) if downloaded and unpacked and activated else None


def _find_file(ctx: FlowContext, request: DownloadRequest) -> DownloadResponse | None:
    recorded = look_for_file(ctx, request)
    if recorded is None or recorded.is_elsewhere:
        return None
    image, known = recorded.image, recorded.known
    path = ctx.recorded_file(image)
    fingerprint = fingerprint_of(path)
    if known is None or not is_as_recorded(image, fingerprint, request.judging) or known.fingerprint != fingerprint:
        return None
    if image.local_path != str(path):
        return None
    response = file_response(ctx, image, fingerprint, known)
    refused = find_refusal(ctx, request, checksum=response.checksum)
    return response if refused is None and take_verdict(response, known, request.judging) else None


def _find_device(ctx: FlowContext, request: UnpackRequest) -> UnpackResponse | None:
    row, lost = look_for_device(ctx, request)
    if row is None or lost or row.device_path != str(ctx.devices.path_of(row.device_name)):
        return None
    return device_response(ctx, row)


def _find_snapshot(ctx: FlowContext, request: ActivateRequest) -> ActivateResponse | None:
    row, lost = look_for_snapshot(ctx, request)
    if row is None or lost or not is_active(ctx, request.image_id):
        return None
    return snapshot_response(ctx, row) if row.device_path == str(ctx.devices.path_of(row.snapshot_name)) else None


# --- the file -------------------------------------------------------------------------------------------------


class Recorded(msgspec.Struct, frozen=True):
    """A downloaded image, what is known of its content, and whether that came from another endpoint."""

    image: Image
    known: Verification | None
    is_elsewhere: bool = False


def look_for_file(ctx: FlowContext, request: DownloadRequest) -> Recorded | None:
    """What is recorded under the image id. Raises CatalogConflict if that is another object."""
    image = ctx.catalog.get_image_by_id(request.image_id)
    if image is None or image.download_status != "completed":
        _refuse_second_name(ctx, request)
        return None
    known = ctx.catalog.get_verification(image.image_id)
    origin = known.origin if known is not None else ""
    relation = relation_of(origin, request.location)
    if relation is Relation.OTHER or (not origin and image.s3_key != request.s3_key):
        raise CatalogConflict(
            f"image {image.image_id} is recorded under the key {image.s3_key!r} from {origin or 'there'}, "
            f"not from {full_name(request.location)}",
            hint="choose another --image-id, or remove that image first",
        )
    return Recorded(image, known, relation is Relation.ELSEWHERE)


def _refuse_second_name(ctx: FlowContext, request: DownloadRequest) -> None:
    """Raise CatalogConflict if the object has got an image id of its own, and no other was chosen here."""
    image = ctx.catalog.check_image_downloaded(request.s3_key)
    if image is None or image.image_id == request.image_id or not is_derived(request):
        return
    known = ctx.catalog.get_verification(image.image_id)
    if relation_of(known.origin if known is not None else "", request.location) is not Relation.OTHER:
        raise CatalogConflict(
            f"key {request.s3_key!r} is recorded as image {image.image_id}, not {request.image_id}",
            hint=f"use that one: --image-id {image.image_id}; or choose another --image-id for a second image of it",
        )


def find_refusal(
    ctx: FlowContext, request: DownloadRequest, *, etag: str | None = None, checksum: str | None = None
) -> ImageRefused | None:
    """The error with which this very content was refused before, under whatever name the catalog has it."""
    policy = request.judging.policy
    found = (ctx.catalog.find_refusal(key, policy=policy, etag=etag, checksum=checksum) for key in keys_of(request))
    return next((refused for refused in found if refused is not None), None)


def is_content_of(image: Image | None, checksum: str) -> bool:
    """Is this the content that a downloaded image is recorded with?"""
    return image is not None and image.download_status == "completed" and image.checksum == checksum


def is_as_recorded(image: Image, fingerprint: Fingerprint, judging: Judging) -> bool:
    """Can the file hold the recorded content, and is that the content asked for?"""
    return judging.sha256 in (None, image.checksum) and fingerprint.size == image.size_bytes


def take_verdict(response: DownloadResponse, known: Verification | None, judging: Judging) -> bool:
    """Was this content judged by rules as strict as those asked for? Then what was warned of is in the response."""
    if known is None or known.checksum != response.checksum or not _covers(known.policy, judging.policy):
        return False
    try:
        response.warnings = msgspec.json.decode(known.warnings, type=tuple[ArchiveFinding, ...])
    except msgspec.MsgspecError:
        return False  # somebody has been at the row: the image is judged again, and the row written anew
    return True


def file_response(
    ctx: FlowContext, image: Image, fingerprint: Fingerprint, known: Verification | None
) -> DownloadResponse:
    """The recorded file, as it was found."""
    asked_at = (known.asked_at if known is not None else None) or image.downloaded_at
    return DownloadResponse(
        image_id=image.image_id,
        local_path=str(ctx.recorded_file(image)),
        checksum=image.checksum or "",
        size_bytes=image.size_bytes,
        already_exist=True,
        fingerprint=fingerprint,
        etag=known.etag if known is not None else None,
        asked_at=round(asked_at.timestamp() * 1000) if asked_at is not None else 0,
    )


def _covers(judged_by: str, asked_for: Policy) -> bool:
    """What STRICT has let through, DISTRO would have let through; what no policy is called has let nothing through."""
    return judged_by in (asked_for, Policy.STRICT)


# --- the device -----------------------------------------------------------------------------------------------


def look_for_device(ctx: FlowContext, request: UnpackRequest) -> tuple[UnpackedImage | None, str]:
    """What the image is recorded to be unpacked to, and why that cannot be used; empty if it can."""
    row = ctx.catalog.check_image_unpacked(request.image_id)
    if row is None:
        return None, ""
    if not row.layout_verified:
        return row, f"{row.device_name} was never verified"
    uuid = uuid_of(request.image_id, request.checksum, request.judging)
    device = recorded_device(row.device_id, row.device_name, uuid)
    if device is None:
        return row, f"{row.device_name!r} with the id {row.device_id!r} cannot be a device"
    return row, _what_is_lost(ctx, device, deep=request.judging.verify)


def device_response(ctx: FlowContext, row: UnpackedImage) -> UnpackResponse:
    """The recorded device, as it was found."""
    return UnpackResponse(
        image_id=row.image_id,
        device_id=row.device_id,
        device_name=row.device_name,
        device_path=str(ctx.devices.path_of(row.device_name)),
        size_bytes=row.size_bytes,
        file_count=row.file_count,
    )


def _what_is_lost(ctx: FlowContext, device: Device, *, deep: bool = False) -> str:
    try:
        ctx.devices.verify(device, deep=deep)
    except SnapshotOverwritten:
        raise  # it cannot be made again without losing what somebody has written
    except DeviceLost as error:
        return str(error)
    return ""


# --- the snapshot ---------------------------------------------------------------------------------------------


def look_for_snapshot(ctx: FlowContext, request: ActivateRequest) -> tuple[Snapshot | None, str]:
    """The recorded snapshot, if it is in use, and why it cannot be used; empty if it can."""
    row = ctx.catalog.check_snapshot_exists(request.image_id, snapshot_name_of(request))
    if row is None or not row.active:
        return None, ""
    if device_number(row.snapshot_id) is None:
        return row, f"{row.snapshot_id!r} cannot be its id"
    if row.origin_device_id != request.device_id:
        return row, f"it was taken of device {row.origin_device_id}, not {request.device_id}"
    try:
        origin = found_device(ctx, request.device_name, request.device_id)
    except DeviceLost as error:
        return row, str(error)
    snapshot = device_of(row.snapshot_id, row.snapshot_name, origin.uuid or "", origin.size)
    return row, _what_is_lost(ctx, snapshot)


def is_active(ctx: FlowContext, image_id: str) -> bool:
    """Is the image recorded as active, as one with a snapshot in use has to be?"""
    image = ctx.catalog.get_image_by_id(image_id)
    return image is not None and image.activation_status == "active"


def found_device(ctx: FlowContext, name: str, device_id: str) -> Found:
    """What the backend holds under this name. Raises DeviceLost unless it has this id and a UUID."""
    found = ctx.devices.look(name)
    if found is not None and found.id == device_number(device_id) and found.uuid:
        return found
    raise DeviceLost(f"{name} is not there", hint="process the image again: it will be unpacked anew")


def origin_of_snapshots(ctx: FlowContext, row: UnpackedImage) -> Found:
    """The device that snapshots of an image are taken of. Raises DeviceLost unless it holds the recorded content."""
    found = found_device(ctx, row.device_name, row.device_id)
    image = ctx.catalog.get_image_by_id(row.image_id)
    if image is None or found.uuid not in uuids_of(row.image_id, image.checksum or ""):
        raise DeviceLost(
            f"{row.device_name} does not hold the recorded content of image {row.image_id}",
            hint="process the image again: it will be unpacked anew",
        )
    return found


def snapshot_response(ctx: FlowContext, row: Snapshot) -> ActivateResponse:
    """The recorded snapshot, as it was found."""
    return ActivateResponse(
        image_id=row.image_id,
        snapshot_id=row.snapshot_id,
        snapshot_name=row.snapshot_name,
        device_path=str(ctx.devices.path_of(row.snapshot_name)),
        active=True,
    )
