"""What the image routes take and answer. Times are milliseconds since 1970; fields are only ever added."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast import Finding
from holdfast_images.administration import HeldLock
from holdfast_images.archive.entry import ArchiveFinding
from holdfast_images.catalog.fleet import HostLock
from holdfast_images.fleet import PAGE_LIMIT, ImageRow, SnapshotRow
from holdfast_images.gc import Action, Collected, Collection
from holdfast_images.messages import (
    CreatedSnapshot,
    DeactivatedSnapshot,
    ImageJob,
    ImageReport,
    Processed,
    RemovedImage,
    StageProgress,
)

MOST_TEXT = 2048
Text = Annotated[str, Meta(max_length=MOST_TEXT)]
Name = Annotated[str, Meta(max_length=127)]
Digest = Annotated[str, Meta(max_length=71)]
Host = Annotated[str, Meta(max_length=64)]
Limit = Annotated[int, Meta(ge=1, le=PAGE_LIMIT)]
Cursor = Annotated[str, Meta(pattern=r"^f[0-9]{1,18}$")]


class ImageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which images."""

    host: Host = ""
    status: Annotated[str, Meta(pattern="^(|pending|downloading|completed|failed)$")] = ""
    """Of the download."""
    text: Text = ""
    """In the id or the key."""
    after: Cursor | None = None
    """A cursor: `next` of another page."""
    limit: Limit = 50


class SnapshotQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which snapshots."""

    host: Host = ""
    image_id: Name = ""
    active: bool = False
    """Only those in use."""
    after: Cursor | None = None
    """A cursor: `next` of another page."""
    limit: Limit = 50


class ProcessBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An image to be fetched, checked, unpacked and snapshot: by its key in the server's bucket, or by a URL."""

    key: Text | None = None
    source: Text | None = None
    image_id: Name | None = None
    snapshot_name: Name | None = None
    sha256: Digest | None = None
    """The only content that is taken."""
    refresh: bool = False
    """Ask the source whether the object has changed."""
    verify: bool = False
    """Read everything again, and ask the source."""


class SnapshotBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A snapshot to be made."""

    name: Name


class RemoveQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an image is removed."""

    force: bool = False
    """Its snapshots as well."""


class InspectBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An archive to be looked into."""

    key: Text | None = None
    source: Text | None = None
    sha256: Digest | None = None


class VerifyBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an image is verified."""

    deep: bool = False
    """Read its file and its device; up to a limit of bytes."""


class ReleaseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A lock to be released."""

    force: bool = False
    """Even if an unfinished job holds it."""


class ExtendBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How large the pool shall be."""

    size: Annotated[int, Meta(ge=1, le=(1 << 60))] | None = None
    """Bytes of its file; without it nearly full metadata are doubled, and block devices that have grown are used."""


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a worker runs; `Location` leads to it. None if all is done already, and no job was needed."""

    job_id: str | None
    image_id: str
    has_worker: bool = True
    """Is a worker there that runs it?"""


class ProcessBegun(Begun, frozen=True, kw_only=True):
    """An image that is on its way, or there."""

    done: Processed | None = None


class SnapshotBegun(Begun, frozen=True, kw_only=True):
    """A snapshot that is on its way, or in use."""

    done: CreatedSnapshot | None = None


class DeactivationBegun(Begun, frozen=True, kw_only=True):
    """A snapshot that goes, or is, out of use."""

    done: DeactivatedSnapshot | None = None


class RemovalBegun(Begun, frozen=True, kw_only=True):
    """An image that goes, or is gone."""

    done: RemovedImage | None = None


class ImageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An image in the catalog of this host."""

    s3_key: str
    local_path: str
    checksum: str | None
    size_bytes: int
    download_status: str
    activation_status: str | None
    created_at: int
    downloaded_at: int | None
    activated_at: int | None


class DeviceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What it was unpacked into."""

    device_id: str
    device_name: str
    device_path: str
    size_bytes: int
    file_count: int
    layout_verified: bool
    unpacked_at: int


class VerificationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was verified of its content."""

    policy: str
    verified_at: int
    asked_at: int | None
    etag: str | None


class SnapshotRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of this host, and where it is."""

    snapshot_name: str
    snapshot_id: str
    device_path: str
    active: bool
    created_at: int
    deactivated_at: int | None


class LockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A lock of an image; `state` is that of the job that holds it, known for this host only."""

    image_id: str
    host: str = ""
    locked_by: str
    age: int
    """Seconds."""
    state: str | None = None


class ImageDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one image: what this host has of it, how far it is, and which hosts have it."""

    image_id: str
    image: ImageRecord | None = None
    verification: VerificationRecord | None = None
    warnings: tuple[ArchiveFinding, ...] | None = None
    """What was warned of; None if that cannot be read, or the image is not here."""
    device: DeviceRecord | None = None
    snapshots: list[SnapshotRecord] = []
    lock: LockAnswer | None = None
    jobs: tuple[ImageJob, ...] = ()
    """The newest first, some ten of them, each with the step that it is in."""
    stages: list[StageProgress] = []
    """Of the last job that processes it: steps and bytes."""
    hosts: list[ImageRow]


class LockList(msgspec.Struct, frozen=True, kw_only=True):
    """Locks, the oldest first."""

    locks: list[LockAnswer]


class FindingList(msgspec.Struct, frozen=True, kw_only=True):
    """What is not as it is recorded."""

    findings: list[Finding]


class CollectionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What gc would remove. `ETag` names this plan: it is applied only as long as it is the same."""

    actions: tuple[Action, ...]
    bytes: int
    """That it would give back, as far as that is known."""
    plan: str


class CollectionDone(msgspec.Struct, frozen=True, kw_only=True):
    """What gc has removed, and what had to stay."""

    removed: list[Action]
    kept: list[Collected]
    bytes: int


def image_detail(report: ImageReport, stages: list[StageProgress], hosts: list[ImageRow]) -> ImageDetail:
    """A report as it is answered."""
    image, known, device, lock = report.image, report.verification, report.device, report.lock
    return ImageDetail(
        image_id=report.image_id,
        image=_record(ImageRecord, image) if image is not None else None,
        verification=_record(VerificationRecord, known) if known is not None else None,
        warnings=report.warnings,
        device=_record(DeviceRecord, device) if device is not None else None,
        snapshots=[_record(SnapshotRecord, each) for each in report.snapshots],
        lock=_record(LockAnswer, lock) if lock is not None else None,
        jobs=report.jobs,
        stages=stages,
        hosts=hosts,
    )


def lock_answer(lock: HeldLock | HostLock) -> LockAnswer:
    """A lock as it is answered."""
    answer: LockAnswer = _record(LockAnswer, lock)
    return answer


def bytes_of(actions: list[Action] | tuple[Action, ...]) -> int:
    """What their removal gives back, as far as that is known."""
    return sum(each.bytes or 0 for each in actions)


def collection_done(done: Collection) -> CollectionDone:
    """What a collection has come to."""
    return CollectionDone(removed=done.removed, kept=done.kept, bytes=bytes_of(done.removed))


def _record(kind: Any, row: msgspec.Struct) -> Any:
    """A row as the struct that is answered for it."""
    fields = msgspec.structs.asdict(row)
    return kind(**{name: _plain(fields[name]) for name in kind.__struct_fields__ if name in fields})


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if isinstance(value, datetime) else value


__all__ = ["ImageRow", "SnapshotRow"]
