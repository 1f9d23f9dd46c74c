"""What the catalog answers with: one frozen record per row, times with their zone."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TypeVar

import msgspec

from holdfast_images.model import Fingerprint


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records."""


class DownloadStatus(StrEnum):
    """Of an image's file."""

    PENDING = "pending"
    DOWNLOADING = "downloading"
    COMPLETED = "completed"
    FAILED = "failed"


class ActivationStatus(StrEnum):
    """ACTIVE: the image has an active snapshot."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    FAILED = "failed"


class HostClaim(Row, frozen=True, kw_only=True):
    """A row of `catalog_hosts`: the machine and the data directory that have the name of a host."""

    host: str
    machine: str
    data_id: str
    directory: str


class Image(Row, frozen=True, kw_only=True):
    """A row of `images`."""

    id: int
    image_id: str
    s3_key: str
    local_path: str
    checksum: str | None
    size_bytes: int
    download_status: DownloadStatus
    activation_status: ActivationStatus | None
    created_at: datetime
    downloaded_at: datetime | None
    activated_at: datetime | None
    updated_at: datetime


class UnpackedImage(Row, frozen=True, kw_only=True):
    """A row of `unpacked_images`."""

    id: int
    image_id: str
    device_id: str
    device_name: str
    device_path: str
    size_bytes: int
    file_count: int
    layout_verified: bool
    created_at: datetime
    unpacked_at: datetime
    updated_at: datetime


class Snapshot(Row, frozen=True, kw_only=True):
    """A row of `snapshots`."""

    id: int
    image_id: str
    snapshot_id: str
    snapshot_name: str
    device_path: str
    origin_device_id: str
    active: bool
    created_at: datetime
    deactivated_at: datetime | None
    updated_at: datetime


class ImageLock(Row, frozen=True, kw_only=True):
    """A row of `image_locks`, and how many seconds old it is by the database's clock."""

    image_id: str
    locked_at: int
    locked_by: str
    age: int


class ImageStatus(Row, frozen=True, kw_only=True):
    """Everything about one key in one line per snapshot."""

    image_id: str
    s3_key: str
    download_status: DownloadStatus
    activation_status: ActivationStatus | None
    device_name: str | None
    snapshot_name: str | None
    snapshot_active: bool | None


class Verification(Row, frozen=True, kw_only=True):
    """What was verified: the content, the file that holds it, the policy, and what was warned of."""

    image_id: str
    checksum: str
    size_bytes: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    policy: str
    warnings: str
    """JSON, as it was given."""
    origin: str = ""
    """Which object it was, of all that there are; empty if that is not known."""
    etag: str | None = None
    """Of the object when its source was last asked."""
    asked_at: datetime | None = None
    """When that was; None if it is not known."""
    verified_at: datetime

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the file when it was verified."""
        return Fingerprint(self.size_bytes, self.inode, self.mtime_ns, self.ctime_ns)


class Refusal(Row, frozen=True, kw_only=True):
    """Why an image was refused: what is needed to say the same again."""

    s3_key: str
    policy: str
    etag: str | None
    checksum: str | None
    code: str
    detail: str
    entry: str
    byte_offset: int | None
    hint: str | None
    refused_at: datetime


class Reservation(Row, frozen=True, kw_only=True):
    """A device id that is taken; with a snapshot's name it is that snapshot's, else the image's device's."""

    device_id: int
    image_id: str
    snapshot_name: str
    reserved_at: datetime


class Violation(msgspec.Struct, frozen=True):
    """A row that breaks one of the four rules of consistency."""

    rule: int
    image_id: str
    message: str


AnyRow = TypeVar("AnyRow", bound=Row)
