"""What the image manager is asked, and what it answers. Scripts rely on the names: fields are only ever added."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeAlias

import msgspec

from holdfast.errors import HoldfastError
from holdfast_images.archive.entry import ArchiveFinding, InspectionReport
from holdfast_images.catalog.tables import Image, ImageLock, Snapshot, UnpackedImage, Verification
from holdfast_images.errors import InvalidName
from holdfast_images.flows.context import WARNINGS_KEPT
from holdfast_images.flows.lookup import ExistingImage
from holdfast_images.flows.schemas import Judging, ProcessRequest
from holdfast_images.model import image_id_of, valid_image_id, valid_key, valid_sha256, valid_snapshot_name
from holdfast_images.settings import Settings
from holdfast_images.source.location import HttpObject, Location, S3Object, location_of, origin_of, without_secrets

# --- what is asked: from a key or a URL to a request ----------------------------------------------------------


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    """An object, and what the catalog and the journal call it: nothing in it is secret."""

    location: Location
    s3_key: str
    bucket: str


def request_of(
    settings: Settings,
    source: ImageSource,
    *,
    image_id: str | None = None,
    snapshot_name: str | None = None,
    sha256: str | None = None,
    verify: bool = False,
    refresh: bool = False,
) -> ProcessRequest:
    """What is asked of process-image under these settings; InvalidName if it cannot be meant."""
    return ProcessRequest(
        s3_key=source.s3_key,
        bucket=source.bucket,
        image_id=valid_image_id(image_id) if image_id is not None else image_id_of(*origin_of(source.location)),
        location=source.location,
        snapshot_name=valid_snapshot_name(snapshot_name) if snapshot_name else "",
        judging=Judging(
            policy=settings.policy,
            keep_setuid=settings.keep_setuid,
            sha256=valid_sha256(sha256) if sha256 is not None else None,
            verify=verify,
            refresh=refresh,
        ),
    )


def source_of(settings: Settings, *, key: str | None = None, url: str | None = None) -> ImageSource:
    """The object that is meant: by its key in the bucket of the settings, or by a URL. InvalidName if it is none.

    The catalog calls an object in that bucket by its key, however it is asked for, and any other by its URL.
    """
    if url is None:
        if not key:
            raise InvalidName("no image is named", hint="give --s3-key and --bucket, or --source")
        if not settings.bucket:
            raise InvalidName("no bucket is given", hint="--bucket, HOLDFAST_BUCKET or S3_BUCKET; or use --source")
        location = location_of(bucket=settings.bucket, key=valid_key(key), settings=settings.source)
        return ImageSource(location=location, s3_key=key, bucket=settings.bucket)
    if key:
        raise InvalidName("both a key and a URL are given", hint="give one of --s3-key and --source")
    location = location_of(url, settings=settings.source)
    if isinstance(location, HttpObject) and location.signature is not None:
        raise InvalidName(
            f"the URL {location} has a signature or token in it, which a job must not keep",
            hint="use s3://bucket/key with credentials, or fetch it and use file:///path",
        )
    plain = without_secrets(location)
    if isinstance(plain, S3Object):
        name = plain.key if plain.bucket == settings.bucket else str(plain)
        return ImageSource(location=plain, s3_key=name, bucket=plain.bucket)
    return ImageSource(location=plain, s3_key=plain.url if isinstance(plain, HttpObject) else str(plain), bucket="")


# --- what is answered -----------------------------------------------------------------------------------------


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """How one stage ended: `completed`, or `handoff` if it found its work done; with no job if none was needed."""

    job_id: str | None = None
    state: str = "succeeded"
    outcome: str = "handoff"
    seconds: float = 0.0


class Processed(msgspec.Struct, frozen=True, kw_only=True):
    """An image that is a file, a device and a snapshot now."""

    image_id: str
    s3_key: str
    checksum: str
    size_bytes: int
    local_path: str
    device_id: str
    device_name: str
    device_path: str
    file_count: int
    snapshot_id: str
    snapshot_name: str
    snapshot_path: str
    stages: dict[str, Stage]
    asked_at: int = 0
    """When the source was last asked, in milliseconds since 1970."""
    warnings: tuple[ArchiveFinding, ...] = ()
    """What is odd about the image, or was left out of it; some of each kind."""

    @property
    def may_have_more_warnings(self) -> bool:
        """Only so many are kept: `inspect` tells all."""
        return len(self.warnings) == WARNINGS_KEPT

    @property
    def was_there(self) -> bool:
        """Was all of it there already, so that no job was needed?"""
        return all(stage.job_id is None for stage in self.stages.values())


class ImageFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why one of several images could not be processed."""

    image_id: str
    s3_key: str
    error: HoldfastError


class SubmittedImage(msgspec.Struct, frozen=True, kw_only=True):
    """The job that processes an image; an equal request that is not finished yet is the same job."""

    job_id: str
    image_id: str


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """Images that are left to a worker."""

    jobs: tuple[SubmittedImage, ...]
    has_worker: bool
    """Is a worker there that runs them?"""


class StageProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one stage of a job is."""

    stage: str
    state: str
    job_id: str = ""
    has_begun: bool = True
    outcome: str | None = None
    seconds: float = 0.0
    step: str = ""
    done: float = 0.0
    total: float | None = None
    note: str = ""
    setback: str = ""
    """Why the step has to be tried again."""
    pause: float = 0.0
    """Seconds until then."""

    @property
    def has_ended(self) -> bool:
        """Is there nothing more to come?"""
        return self.state not in ("pending", "running")


OnProgress: TypeAlias = Callable[[Sequence[StageProgress]], None]
Since: TypeAlias = int | datetime | timedelta | None
"""A time, in milliseconds since 1970 or with its zone; or for so long until now."""


class StopSource(Protocol):
    """What can end the waiting for a job, such as the signals of a process."""

    @property
    def received(self) -> str | None:
        """What has ended it; None as long as nothing has."""
        ...

    @property
    def descriptor(self) -> int:
        """Readable as soon as something has."""
        ...


class JobStep(msgspec.Struct, frozen=True, kw_only=True):
    """The step that a running job is in, who works on it, and how far it says it is."""

    job_id: str
    exec_id: str
    attempt: int
    worker: str
    step: str | None
    number: int | None
    """Counted from 1; None for the cleanup, and where there is no step."""
    steps: int
    tries: int
    """Tries of this step that have failed so far."""
    since: int
    progress: dict[str, Any] | None
    """What this step last reported: `done` and `total`, mostly bytes, and a `note`."""
    progressed_at: int
    retry_at: int | None


class ImageJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job about an image; `current` while it runs."""

    job_id: str
    flow: str
    state: str
    created_at: int
    current: JobStep | None

    @property
    def is_unfinished(self) -> bool:
        """Will it go on by itself?"""
        return self.state in ("pending", "running")


class ImageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one image; of one that is on its way and not in the catalog yet, only its jobs."""

    image_id: str
    image: Image | None
    verification: Verification | None
    warnings: tuple[ArchiveFinding, ...] | None
    """What was warned of; None if somebody has been at the row: processing the image writes it anew."""
    device: UnpackedImage | None
    snapshots: tuple[Snapshot, ...]
    lock: ImageLock | None
    jobs: tuple[ImageJob, ...]
    """The newest first, some ten of them."""


class ListedImage(msgspec.Struct, frozen=True, kw_only=True):
    """An image in a list."""

    image: Image
    device_name: str | None
    snapshots: tuple[str, ...]


class CreatedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that is in use; `created` if it was made now, and not found."""

    image_id: str
    snapshot_id: str
    snapshot_name: str
    snapshot_path: str
    created: bool


class ActivatedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that is in use again, or why it is not."""

    image_id: str
    snapshot_name: str
    snapshot_path: str = ""
    error: HoldfastError | None = None


class DeactivatedSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that is out of use; `deactivated` if it was in use before."""

    image_id: str
    snapshot_id: str
    snapshot_name: str
    deactivated: bool
    deleted: bool = False


class RemovedImage(msgspec.Struct, frozen=True, kw_only=True):
    """What is gone."""

    image_id: str
    snapshots: tuple[str, ...] = ()
    device_name: str = ""
    local_path: str = ""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said about an archive; its size and digest if it had to be fetched."""

    report: InspectionReport
    fetched_bytes: int | None = None
    checksum: str = ""


class ImageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change of state of a job about an image, as the journal has it."""

    job_id: str
    flow: str
    image_id: str
    """Empty of a job that names a snapshot only."""
    seq: int
    at: int
    """Milliseconds since 1970."""
    actor: str
    job_from: str | None
    job_to: str
    exec_from: str | None
    exec_to: str | None
    step: str | None
    reason: str


def processed_of(
    request: ProcessRequest, finished: ExistingImage, stages: Mapping[str, Stage] | None = None
) -> Processed:
    """What came of a request; without stages, what was there before anything was asked."""
    downloaded, unpacked, activated = finished.download, finished.unpack, finished.activate
    return Processed(
        image_id=request.image_id,
        s3_key=request.s3_key,
        checksum=downloaded.checksum,
        size_bytes=downloaded.size_bytes,
        local_path=downloaded.local_path,
        device_id=unpacked.device_id,
        device_name=unpacked.device_name,
        device_path=unpacked.device_path,
        file_count=unpacked.file_count,
        snapshot_id=activated.snapshot_id,
        snapshot_name=activated.snapshot_name,
        snapshot_path=activated.device_path,
        stages=dict(stages if stages is not None else dict.fromkeys(ExistingImage.__struct_fields__, Stage())),
        asked_at=downloaded.asked_at,
        warnings=unpacked.warnings if unpacked.unpacked else downloaded.warnings,
    )


def warnings_of(known: Verification | None) -> tuple[ArchiveFinding, ...] | None:
    """What was warned of when an image was verified; None if the row cannot be understood."""
    if known is None:
        return ()
    try:
        return msgspec.json.decode(known.warnings, type=tuple[ArchiveFinding, ...])
    except msgspec.MsgspecError:
        return None
