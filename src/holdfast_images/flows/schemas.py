"""What the flows are asked, and what they answer. Saved with every job, so fields are only ever added."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast_images.archive.entry import ArchiveFinding, Policy
from holdfast_images.model import Fingerprint, default_snapshot_name
from holdfast_images.source.location import Location

PROCESS = "process-image"
"""The flow that is asked with a ProcessRequest."""


class Judging(msgspec.Struct, frozen=True, kw_only=True):
    """By which rules an image is taken."""

    policy: Policy = Policy.STRICT
    keep_setuid: bool = False
    sha256: str | None = None
    """The only content that is taken."""
    verify: bool = False
    """Read everything again, however much it looks like what was verified before; ask the source, too."""
    refresh: bool = False
    """Ask the source whether the object is still the one that was downloaded."""


class DownloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Bring an object here and see whether it is an image that may be unpacked."""

    s3_key: str
    image_id: str
    bucket: str = ""
    location: Location
    judging: Judging = Judging()


class DownloadResponse(msgspec.Struct, kw_only=True):
    """A verified file."""

    image_id: str = ""
    local_path: str = ""
    checksum: str = ""
    size_bytes: int = 0
    downloaded: bool = False
    already_exist: bool = False
    etag: str | None = None
    fingerprint: Fingerprint | None = None
    entries: int = 0
    total_bytes: int = 0
    """Of the files in it, once extracted."""
    warnings: tuple[ArchiveFinding, ...] = ()
    asked_at: int = 0
    """When the source was last known to have this content, in milliseconds since 1970; 0 if that is not known."""


class UnpackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Unpack a verified file into a device of its own."""

    image_id: str
    local_path: str
    checksum: str
    pool_name: str = ""
    device_size: int = 0
    """Bytes; 0 leaves it to the settings."""
    entries: int = 0
    total_bytes: int = 0
    judging: Judging = Judging()


class UnpackResponse(msgspec.Struct, kw_only=True):
    """A sealed device."""

    image_id: str = ""
    device_id: str = ""
    device_name: str = ""
    device_path: str = ""
    device_size: int = 0
    entries: int = 0
    """Of the archive, for the device to have room for them."""
    size_bytes: int = 0
    file_count: int = 0
    unpacked: bool = False
    warnings: tuple[ArchiveFinding, ...] = ()


class ActivateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Make a snapshot of an unpacked image."""

    image_id: str
    device_id: str
    device_name: str
    snapshot_name: str = ""
    pool_name: str = ""


class ActivateResponse(msgspec.Struct, kw_only=True):
    """A snapshot that is ready for use."""

    image_id: str = ""
    snapshot_id: str = ""
    snapshot_name: str = ""
    device_path: str = ""
    active: bool = False
    activated: bool = False


class ProcessRequest(msgspec.Struct, frozen=True, kw_only=True):
    """From an object to a snapshot."""

    s3_key: str
    image_id: str
    bucket: str = ""
    location: Location
    snapshot_name: str = ""
    judging: Judging = Judging()


class DeactivateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Take a snapshot out of use; what it holds stays, unless it is to be deleted."""

    snapshot_name: str
    delete: bool = False


class DeactivateResponse(msgspec.Struct, kw_only=True):
    """The snapshot that is not in use any more."""

    image_id: str = ""
    snapshot_id: str = ""
    snapshot_name: str = ""
    deactivated: bool = False


class RemoveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Remove an image: its snapshots if forced, its device, its file, its rows."""

    image_id: str
    force: bool = False


class RemoveResponse(msgspec.Struct, kw_only=True):
    """What is gone."""

    image_id: str = ""
    snapshots: list[str] = []
    device_name: str = ""
    local_path: str = ""


# --- from the request of a pipeline to those of its stages ----------------------------------------------------


def to_download(request: ProcessRequest) -> DownloadRequest:
    """What the first stage is asked."""
    return DownloadRequest(
        s3_key=request.s3_key,
        image_id=request.image_id,
        bucket=request.bucket,
        location=request.location,
        judging=request.judging,
    )


def to_unpack(request: ProcessRequest, downloaded: DownloadResponse) -> UnpackRequest:
    """What the second stage is asked."""
    return UnpackRequest(
        image_id=downloaded.image_id,
        local_path=downloaded.local_path,
        checksum=downloaded.checksum,
        entries=downloaded.entries,
        total_bytes=downloaded.total_bytes,
        judging=request.judging,
    )


def to_activate(request: ProcessRequest, unpacked: UnpackResponse) -> ActivateRequest:
    """What the third stage is asked."""
    return ActivateRequest(
        image_id=unpacked.image_id,
        device_id=unpacked.device_id,
        device_name=unpacked.device_name,
        snapshot_name=request.snapshot_name,
    )


# --- which requests are one -----------------------------------------------------------------------------------


def snapshot_name_of(request: ActivateRequest | ProcessRequest) -> str:
    """The name asked for, or the one that follows from the image's."""
    return request.snapshot_name or default_snapshot_name(request.image_id)


def key_of(request: ProcessRequest) -> str:
    """Equal requests are one job while it is unfinished; one that asks for stricter rules is another."""
    return f"{request.image_id}/{snapshot_name_of(request)}/{_mark(request.judging)}"


def key_of_stage(request: ProcessRequest, stage: str) -> str:
    """The same for a stage: a snapshot is one by its name, whatever rules its image was taken by."""
    part = snapshot_name_of(request) if stage == "activate" else _mark(request.judging)
    return f"{request.image_id}/{part}"


def _mark(judging: Judging) -> str:
    told = {name: value for name, value in msgspec.structs.asdict(judging).items() if name != "refresh" or value}
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:12]
