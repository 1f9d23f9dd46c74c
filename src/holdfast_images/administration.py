"""What an administrator asks for: locks, the pool, a look into an archive, and if all is there that is recorded."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast import Engine, Finding, Severity
from holdfast_images.archive.entry import ArchiveFinding as Warned
from holdfast_images.archive.entry import Policy
from holdfast_images.archive.sandbox import inspect_image
from holdfast_images.catalog.catalog import STALE_SECONDS, Catalog
from holdfast_images.catalog.tables import Image, ImageLock, Snapshot, UnpackedImage, Verification
from holdfast_images.devices.consistency import check_metadata
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.pool_record import read_record
from holdfast_images.devices.protocol import COLLECTED, Device, Found, PoolHealth, PoolStatus
from holdfast_images.devices.thin_pool import POOL_NAME, ThinPool
from holdfast_images.errors import (
    DeviceLost,
    ExtractionTimedOut,
    ImageBusy,
    ImageError,
    InvalidName,
    ObjectNotFound,
    PoolUnusable,
    UnknownImage,
)
from holdfast_images.facts import gather
from holdfast_images.flows.context import FlowContext, recorded_device, uuids_of
from holdfast_images.gc import Action, plan
from holdfast_images.host import LocalHost
from holdfast_images.jobs import UNFINISHED, ImageJobs
from holdfast_images.messages import Inspection, source_of
from holdfast_images.model import Fingerprint, device_number
from holdfast_images.settings import Settings
from holdfast_images.source.fetch import Fetched, fetch
from holdfast_images.source.location import FileObject, Location, location_of
from holdfast_images.source.partial import fingerprint_of, hash_file

STALE_AFTER = STALE_SECONDS
"""Seconds that a lock has to be held to count as stale."""
GONE = "gone"
"""The state of a job that is not known any more."""


class HeldLock(ImageLock, frozen=True, kw_only=True):
    """A lock, and the state of the job that holds it: None if no job holds it."""

    state: str | None

    @property
    def is_live(self) -> bool:
        """Is the job that holds it not finished, so that it goes on with what is locked?"""
        return self.state in UNFINISHED

    @property
    def is_jobs(self) -> bool:
        """Is it held by a job?"""
        return self.state is not None


class ImageLocks:
    """The locks of the images of one host."""

    def __init__(self, host: LocalHost, jobs: ImageJobs) -> None:
        self._host = host
        self._jobs = jobs

    def held(self) -> list[HeldLock]:
        """All of them, newest first. A job holds its lock for as long as it is unfinished."""
        return [self._with_state(lock) for lock in self._host.catalog.list_image_locks()]

    def stale(self, *, older_than: int = STALE_AFTER) -> list[HeldLock]:
        """Those that were held for longer than so many seconds, or whose job has ended. Changes nothing."""
        return [lock for lock in self.held() if lock.age > older_than or (lock.is_jobs and not lock.is_live)]

    def release(self, image_ids: Sequence[str], *, force: bool = False) -> list[HeldLock]:
        """Release the locks of these images; which were. UnknownImage if one is not locked.

        ImageBusy if an unfinished job holds one, unless it is forced: two jobs may then work on one image, which the
        database and the devices survive, but one of them fails.
        Crash: some are released.
        """
        return self._release([self._of(image_id) for image_id in image_ids], force=force)

    def release_stale(self, *, older_than: int = STALE_AFTER) -> list[HeldLock]:
        """Release the locks of jobs that have ended, and those of nobody that are older. Crash: as in release."""
        left = [lock for lock in self.held() if not lock.is_live and (lock.is_jobs or lock.age > older_than)]
        return self._release(left, force=False)

    def _release(self, locks: Sequence[HeldLock], *, force: bool) -> list[HeldLock]:
        for lock in locks:
            if lock.is_live and not force:
                raise ImageBusy(
                    f"image {lock.image_id} is locked by {lock.locked_by}, which is not finished",
                    hint=f"cancel it: holdfast job cancel {lock.locked_by.partition(':')[2]}; or --force",
                )
        # By its holder: whoever has taken it over meanwhile keeps it.
        return [lock for lock in locks if self._host.catalog.release_image_lock(lock.image_id, lock.locked_by)]

    def _of(self, image_id: str) -> HeldLock:
        lock = self._host.catalog.get_image_lock(image_id)
        if lock is None:
            raise UnknownImage(f"image {image_id!r} is not locked", hint="see which are: holdfast locks list")
        return self._with_state(lock)

    def _with_state(self, lock: ImageLock) -> HeldLock:
        kind, _, job_id = lock.locked_by.partition(":")
        state = (self._jobs.state_of(job_id) or GONE) if kind == "job" else None
        return HeldLock(**msgspec.structs.asdict(lock), state=state)


# --- The thin pool that the devices of the device mapper are made in: made, watched, extended and checked ---

DEFAULT_NAME = POOL_NAME
"""Of the pool in the device mapper."""


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much room there is. Of a pool that cannot be used, only what its record says and why."""

    name: str
    health: str
    """One of PoolHealth: `ok`, `low`, `full`, `read-only`, `failed`."""
    detail: str
    available_bytes: int | None = None
    used_bytes: int | None = None
    capacity_bytes: int | None = None
    low_water_bytes: int | None = None
    data_blocks: str | None = None
    metadata_blocks: str | None = None
    mode: str | None = None
    data: str
    metadata: str

    @property
    def is_well(self) -> bool:
        """Can more be put into it?"""
        return self.health == PoolHealth.OK


class ImagePool:
    """The pool below one data directory. Needs no database, and root."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(
        self,
        *,
        size: int = 0,
        metadata: str | None = None,
        data: str | None = None,
        name: str = DEFAULT_NAME,
        low_water: int | None = None,
        force: bool = False,
    ) -> PoolReport:
        """Make the pool: on files of `size` bytes, or on two block devices, which `force` destroys what is on.

        Crash: the same call goes on.
        """
        made = ThinPool.create(
            self._root, name=name, size=size, metadata=metadata, data=data, low_water_bytes=low_water, force=force
        )
        return _report(made)

    def status(self) -> PoolReport:
        """How much room there is. PoolUnusable if there is no pool."""
        try:
            return _report(ThinPool.open(self._root))
        except PoolUnusable as error:
            record = read_record(self._root)
            if record is None or not record.ready:
                raise
            return PoolReport(
                name=record.name,
                health=str(PoolHealth.FAILED),
                detail=_told(error),
                data=record.data.path,
                metadata=record.metadata.path,
            )

    def extend(self, size: int | None = None) -> PoolReport:
        """Give the pool more room, while it is used; metadata that are nearly full are doubled. Crash: more or not."""
        opened = ThinPool.open(self._root)
        opened.extend(size)
        return _report(opened)

    def check_metadata(self, *, repair: bool = False) -> None:
        """Read all its metadata, of which nothing may be active; PoolUnusable if anything is wrong with them.

        `repair` clears the mark that it must be checked. Crash: marked or not.
        """
        check_metadata(self._root, repair=repair)

    def check(self) -> Sequence[Finding]:
        """What pool, records, device mapper, mounts and loop devices do not agree about. Changes nothing."""
        try:
            return DeviceMapperDevices(self._root, ThinPool.open(self._root)).disagreements()
        except PoolUnusable as error:
            if read_record(self._root) is None:
                raise
            return [Finding(code="pool-unusable", severity=Severity.ERROR, subject="pool", message=_told(error))]


def _report(opened: ThinPool) -> PoolReport:
    room, now, record = opened.room(), opened.status(), opened.record
    return PoolReport(
        name=record.name,
        health=str(room.health),
        detail=room.detail,
        available_bytes=room.available_bytes,
        used_bytes=room.used_bytes,
        capacity_bytes=room.capacity_bytes,
        low_water_bytes=room.low_water_bytes,
        data_blocks=f"{now.used_data_blocks}/{now.total_data_blocks}",
        metadata_blocks=f"{now.used_metadata_blocks}/{now.total_metadata_blocks}",
        mode=str(now.mode),
        data=record.data.path,
        metadata=record.metadata.path,
    )


def _told(error: PoolUnusable) -> str:
    return f"{error}: {error.hint}" if error.hint else str(error)


# --- A dry run of the safety rules over an archive, wherever it is --------------------------------------


def inspect_source(
    settings: Settings,
    source: str | Path | None,
    key: str | None,
    sha256: str | None,
    most_bytes: int | None = None,
    seconds: float | None = None,
) -> Inspection:
    """Everything that is wrong with a file, a URL, or a key in the bucket of the settings."""
    if (source is None) == (key is None):
        raise InvalidName("one archive is inspected at a time", hint="give a file, or --s3-key, or --source")
    if most_bytes is not None:
        limits = msgspec.structs.replace(settings.limits, image_bytes=min(most_bytes, settings.limits.image_bytes))
        settings = msgspec.structs.replace(settings, limits=limits)
    check = _until(seconds)
    location = _location(settings, source, key)
    with _archive(settings, Path(source or ""), location, sha256, check) as (path, fetched):
        report = inspect_image(
            path, policy=settings.policy, limits=settings.limits, keep_setuid=settings.keep_setuid, check=check
        )
    if fetched is None:
        return Inspection(report=report)
    return Inspection(report=report, fetched_bytes=fetched.size_bytes, checksum=fetched.checksum)


def _until(seconds: float | None) -> Callable[[], None] | None:
    if seconds is None:
        return None
    deadline = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > deadline:
            raise ExtractionTimedOut(f"looking into it took longer than {seconds:g} s", hint="inspect it on the host")

    return check


def _location(settings: Settings, source: str | Path | None, key: str | None) -> Location | None:
    if key is not None:
        return source_of(settings, key=key).location
    # A signed URL will do: no job keeps it.
    return location_of(str(source), settings=settings.source) if "://" in str(source) else None


@contextmanager
def _archive(
    settings: Settings,
    file: Path,
    location: Location | None,
    sha256: str | None,
    check: Callable[[], None] | None,
) -> Iterator[tuple[Path, Fetched | None]]:
    """The archive as a file as long as the block lasts; how it was fetched, if it had to be."""
    if location is None or isinstance(location, FileObject):
        path = Path(location.path) if location is not None else file
        if not path.exists():
            raise ObjectNotFound(f"there is no file {path}")
        yield path, None
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-inspect-") as directory:
        path = Path(directory, "image.tar")
        fetched = fetch(
            location,
            path,
            limit=settings.limits.image_bytes,
            sha256=sha256,
            connections=settings.connections,
            check=check,
            settings=settings.source,
        )
        yield path, fetched


# --- Is everything that the catalog records there, and what it should be? All of it is reported, none changed ---


def verify_everything(ctx: FlowContext, engine: Engine, *, deep: bool) -> Iterator[Finding]:
    """Rows, rules, room, every image, and what is left over. What cannot be asked hides nothing else."""
    yield from verify_rows(ctx)
    yield from verify_catalog(ctx.catalog)
    yield from _verify_pool(ctx)
    yield from checked("the catalog", _verify_images(ctx, deep=deep))
    yield from checked("the backend", _verify_leftovers(ctx, engine))


def _verify_images(ctx: FlowContext, *, deep: bool) -> Iterator[Finding]:
    for image in ctx.catalog.list_images():
        yield from checked(f"image {image.image_id}", verify_image(ctx, image, deep=deep))


def _verify_pool(ctx: FlowContext) -> Iterator[Finding]:
    try:
        yield from check_pool(ctx.devices.pool())
    except (ImageError, OSError) as failure:
        yield error("pool-unusable", "pool", with_hint(failure))


def _verify_leftovers(ctx: FlowContext, engine: Engine) -> Iterator[Finding]:
    facts = gather(ctx, engine)
    yield from (each for each in facts.disagreements if each.code not in COLLECTED)
    yield from leftovers(plan(facts))


def verify_catalog(catalog: Catalog) -> Iterator[Finding]:
    """The four rules between downloads, devices and snapshots."""
    for violation in catalog.violations():
        yield error("catalog-rule", f"image {violation.image_id}", f"rule {violation.rule}: {violation.message}")


def verify_rows(ctx: FlowContext) -> Iterator[Finding]:
    """Rows that cannot be read: somebody has written to the database by hand."""
    for table, subject, problem in ctx.catalog.unreadable():
        yield error("row-unreadable", f"{table} {subject}", f"the row cannot be read: {problem}")


def verify_image(ctx: FlowContext, image: Image, *, deep: bool) -> Iterator[Finding]:
    """Its file, its device and its snapshots. `deep` reads them all."""
    subject = f"image {image.image_id}"
    if image.download_status == "completed":
        path = ctx.recorded_file(image)
        known = ctx.catalog.get_verification(image.image_id)
        yield from check_file(image, known, path, *_file_facts(path, deep=deep))
        yield from _check_path(subject, image.local_path, path)
    unpacked = ctx.catalog.get_unpacked_image_by_id(image.image_id)
    if unpacked is not None:
        yield from checked(subject, _verify_device(ctx, image, unpacked, deep=deep))
    for snapshot in ctx.catalog.get_snapshots_by_image_id(image.image_id):
        yield from checked(f"snapshot {snapshot.snapshot_name}", _verify_snapshot(ctx, snapshot))


def checked(subject: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings, and one that says why there are no more, if the backend cannot be asked."""
    try:
        yield from findings
    except (ImageError, OSError) as failure:
        yield error("not-checked", subject, with_hint(failure))


def _file_facts(path: Path, *, deep: bool) -> tuple[Fingerprint | None, str | None]:
    try:
        return fingerprint_of(path), hash_file(path) if deep else None
    except OSError:
        return None, None


def check_file(
    image: Image, known: Verification | None, path: Path, fingerprint: Fingerprint | None, checksum: str | None
) -> Iterator[Finding]:
    """Pure: the recorded file against what is there; `checksum` if it was read."""
    subject = f"image {image.image_id}"
    if fingerprint is None:
        yield error("file-missing", subject, f"{path} is gone or cannot be read")
    elif checksum is not None and checksum != image.checksum:
        yield error("file-changed", subject, f"{path} has SHA-256 {checksum}, {image.checksum} is recorded")
    elif fingerprint.size != image.size_bytes:
        yield error("file-changed", subject, f"{path} has {fingerprint.size} bytes, {image.size_bytes} are recorded")
    elif known is None or not is_verdict(known):
        yield warning("file-unverified", subject, "nothing is known of how its content was judged")
    elif checksum is None and known.fingerprint != fingerprint:
        yield warning("file-touched", subject, f"{path} was written to or replaced: --deep tells")


def is_verdict(known: Verification) -> bool:
    """Pure: does the row name a policy, and warnings that can be read?"""
    try:
        msgspec.json.decode(known.warnings, type=tuple[Warned, ...])
    except msgspec.MsgspecError:
        return False
    return known.policy in set(Policy)


def _check_path(subject: str, recorded: str, path: Path) -> Iterator[Finding]:
    if recorded != str(path):
        message = f"{recorded} is recorded, and it is at {path}: holdfast gc records that, if the state was moved"
        yield warning("path-moved", subject, message)


def _verify_device(ctx: FlowContext, image: Image, row: UnpackedImage, *, deep: bool) -> Iterator[Finding]:
    subject = f"image {row.image_id}"
    if not row.layout_verified:
        yield warning("device-unverified", subject, f"{row.device_name} is not to be believed: process the image again")
        return
    if recorded_device(row.device_id, row.device_name, "") is None:
        yield error("device-lost", subject, f"{row.device_name!r} with the id {row.device_id!r} cannot be a device")
        return
    found = ctx.devices.look(row.device_name)
    if (lost := _lost(found, row.device_id, row.device_name)) is not None:
        yield error("device-lost", subject, lost)
        return
    assert found is not None
    if found.uuid not in uuids_of(row.image_id, image.checksum or ""):
        yield error("device-lost", subject, f"{row.device_name} holds other content than {image.checksum}")
    elif (lost := _refused(lambda device: ctx.devices.verify(device, deep=deep), found)) is not None:
        yield error("device-lost", subject, lost)
    yield from _check_path(subject, row.device_path, ctx.devices.path_of(row.device_name))


def _verify_snapshot(ctx: FlowContext, row: Snapshot) -> Iterator[Finding]:
    # A snapshot is there to be written to, so nothing is promised of its content.
    subject = f"snapshot {row.snapshot_name}"
    found = ctx.devices.look(row.snapshot_name)
    lost = _lost(found, row.snapshot_id, row.snapshot_name)
    # One that is out of use on purpose is only to be there.
    if lost is None and found is not None and row.active:
        lost = _refused(ctx.devices.verify, found)
    if lost is not None:
        told = error if row.active else warning
        yield told("snapshot-lost", subject, lost)
    yield from _check_path(subject, row.device_path, ctx.devices.path_of(row.snapshot_name))


def _lost(found: Found | None, device_id: str, name: str) -> str | None:
    if found is None:
        return f"{name} is not there"
    if device_number(device_id) is None:
        return f"{device_id!r} cannot be the id of {name}"
    if found.id != device_number(device_id) or not found.uuid:
        return f"{name} is {found.health}, or something else"
    return None


def _refused(verify: Callable[[Device], None], found: Found) -> str | None:
    assert found.id is not None
    try:
        verify(Device(id=found.id, name=found.name, uuid=found.uuid or "", size=found.size))
    except DeviceLost as lost:
        return with_hint(lost)
    return None


def check_pool(pool: PoolStatus) -> Iterator[Finding]:
    """Pure: can more be unpacked?"""
    if pool.health is PoolHealth.LOW:
        yield warning("pool-low", "pool", pool.detail)
    elif pool.health is not PoolHealth.OK:
        yield error("pool-unusable", "pool", pool.detail or str(pool.health))


def leftovers(actions: list[Action]) -> Iterator[Finding]:
    """Pure: what `gc` would remove."""
    for action in actions:
        yield warning(f"left-over-{action.kind}", f"{action.kind} {action.subject}", f"{action.why}: holdfast gc")


def with_hint(failure: Exception) -> str:
    """What is wrong, and what to do about it."""
    hint = getattr(failure, "hint", None)
    return f"{failure}: {hint}" if hint else str(failure)


def error(code: str, subject: str, message: str) -> Finding:
    """A broken promise."""
    return Finding(code=code, severity=Severity.ERROR, subject=subject, message=message)


def warning(code: str, subject: str, message: str) -> Finding:
    """Something to look at."""
    return Finding(code=code, severity=Severity.WARNING, subject=subject, message=message)
