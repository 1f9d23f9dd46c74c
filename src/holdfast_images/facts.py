"""What there is: on disk, in the backend, in the catalog and among the jobs, in one look that changes nothing."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec

from holdfast import Engine, Finding, JobState
from holdfast.errors import NotFound
from holdfast_images.catalog.tables import (
    Image,
    ImageLock,
    ImageRefusal,
    Reservation,
    RuleViolation,
    Snapshot,
    UnpackedImage,
    Verification,
)
from holdfast_images.devices.protocol import Found
from holdfast_images.errors import ImageError
from holdfast_images.flows.context import FlowContext, recorded_device, uuids_of
from holdfast_images.host import LocalHost
from holdfast_images.source.partial import hash_file

MOST_JOBS = 1 << 30
UNFINISHED = (JobState.PENDING, JobState.RUNNING)
PARTIAL = ".partial"


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the directory of the images."""

    name: str
    size: int
    is_written: bool = False
    """Somebody holds it open and locked, as the writer of a partial file does."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A job that is not finished, and what it is about."""

    job_id: str
    image_id: str = ""
    snapshot_name: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. Times are seconds since 1970."""

    now: float
    files: tuple[File, ...] = ()
    found: tuple[Found, ...] = ()
    disagreements: tuple[Finding, ...] = ()
    """Between the parts of the backend."""
    images: tuple[Image, ...] = ()
    unpacked: tuple[UnpackedImage, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    locks: tuple[ImageLock, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    refusals: tuple[ImageRefusal, ...] = ()
    updates: tuple[Verification, ...] = ()
    """New content of images, not in use yet."""
    work: tuple[Work, ...] = ()
    finished: frozenset[str] = frozenset()
    """Jobs that are named as owners of locks and have ended, or are not known any more."""


def gather(ctx: FlowContext, engine: Engine) -> Facts:
    """Look at everything.

    First at what is there, then at the jobs, then at the rows: so what a job has made is either still its own, or has
    its row.
    """
    catalog = ctx.catalog
    found = tuple(ctx.devices.found())
    disagreements = tuple(ctx.devices.disagreements())
    files = tuple(files_in(ctx.images))
    locks = tuple(catalog.list_image_locks())
    return Facts(
        now=engine.store.now() / 1000,
        files=files,
        found=found,
        disagreements=disagreements,
        locks=locks,
        finished=frozenset(_finished(engine, locks)),
        work=tuple(work_of(engine)),
        images=tuple(catalog.list_images()),
        unpacked=tuple(catalog.list_unpacked_images()),
        snapshots=tuple(catalog.list_snapshots()),
        reservations=tuple(catalog.list_reservations()),
        refusals=tuple(catalog.list_refusals()),
        updates=tuple(catalog.list_updates()),
    )


def work_of(engine: Engine) -> Iterator[Work]:
    """Every unfinished job of the image flows."""
    store = engine.store
    for flow in engine.flows:
        for job in store.jobs(flow=flow, states=UNFINISHED, limit=MOST_JOBS):
            request = msgspec.json.decode(store.request(job.job_id))
            yield Work(
                job_id=job.job_id,
                image_id=request.get("image_id", ""),
                snapshot_name=request.get("snapshot_name", ""),
            )


def files_in(directory: Path) -> Iterator[File]:
    """The plain files of a directory, which need not be there."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    for name in names:
        try:
            status = os.stat(directory / name, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                is_written = name.endswith(PARTIAL) and _is_locked(directory / name)
                yield File(name=name, size=status.st_size, is_written=is_written)
        except FileNotFoundError:
            continue  # renamed or removed since the names were read


def _is_locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _finished(engine: Engine, locks: tuple[ImageLock, ...]) -> Iterator[str]:
    for lock in locks:
        kind, _, job_id = lock.locked_by.partition(":")
        if kind != "job":
            continue
        try:
            if engine.store.job(job_id).state not in UNFINISHED:
                yield job_id
        except NotFound:
            yield job_id


# --- Rows that say what is not so: put right where files, devices and the other rows tell how it is -----
#
# `repair` and `gc` do it, and the flows for the image they are about. What cannot be told is left to a person.


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """One row that is wrong, and what puts it right; None if only a person, or processing the image, can."""

    subject: str
    why: str
    mend: Callable[[], object] | None


def wrong_rows(ctx: FlowContext) -> Iterator[Wrong]:
    """Every row that breaks a rule of the catalog or names a path where nothing of this state is. Changes nothing."""
    for violation in ctx.catalog.violations():
        yield Wrong(
            subject=f"image {violation.image_id}",
            why=f"rule {violation.rule}: {violation.message}",
            mend=_remedy(ctx, violation),
        )
    yield from _moved(ctx)


class MendedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that was wrong, and whether it is right now."""

    subject: str
    why: str
    is_done: bool


def mend_all(host: LocalHost, *, dry_run: bool) -> list[MendedRow]:
    """Put every row right that can be, or only say which are wrong. Crash: each is one transaction."""
    host.check_owner()
    if not dry_run:
        host.claim()
    mended = []
    for wrong in list(wrong_rows(host)):
        is_done = not dry_run and wrong.mend is not None
        if wrong.mend is not None and is_done:
            wrong.mend()
        mended.append(MendedRow(subject=wrong.subject, why=wrong.why, is_done=is_done))
    return mended


def mend(ctx: FlowContext, subject: str, why: str) -> bool:
    """Put one row right, if it is still wrong. Crash: each is one transaction."""
    for wrong in wrong_rows(ctx):
        if (wrong.subject, wrong.why) == (subject, why) and wrong.mend is not None:
            wrong.mend()
            return True
    return False


def _moved(ctx: FlowContext) -> Iterator[Wrong]:
    catalog = ctx.catalog
    for image in catalog.list_images("completed"):
        path = str(ctx.recorded_file(image))
        if image.local_path != path:
            yield _elsewhere(f"image {image.image_id}", path, partial(catalog.set_local_path, image.image_id, path))
    for row in catalog.list_unpacked_images():
        if recorded_device(row.device_id, row.device_name, "") is None:
            continue  # verify-system tells of it, and processing the image forgets it
        path = str(ctx.devices.path_of(row.device_name))
        if row.device_path != path:
            yield _elsewhere(f"image {row.image_id}", path, partial(catalog.set_device_path, row.image_id, path))
    for snapshot in catalog.list_snapshots():
        name, path = snapshot.snapshot_name, str(ctx.devices.path_of(snapshot.snapshot_name))
        if snapshot.device_path != path:
            yield _elsewhere(f"snapshot {name}", path, partial(catalog.set_snapshot_path, name, path))


def _elsewhere(subject: str, path: str, mend: Callable[[], object]) -> Wrong:
    return Wrong(subject=subject, why=f"it is at {path}, and another path is recorded", mend=mend)


def _remedy(ctx: FlowContext, violation: RuleViolation) -> Callable[[], object] | None:
    catalog = ctx.catalog
    if violation.rule == 4:
        return catalog.settle_activations
    image = catalog.get_image_by_id(violation.image_id)
    row = catalog.get_unpacked_image_by_id(violation.image_id)
    snapshots = catalog.get_snapshots_by_image_id(violation.image_id)
    if row is None or (image is None and snapshots):
        return None
    if image is not None and _is_whole(ctx, image, row):
        return partial(_record_as_whole, ctx, image)
    # Nothing depends on the row, so it can be forgotten: gc collects the device, processing the image makes it again.
    return None if snapshots else partial(catalog.delete_unpacked_image, violation.image_id)


def _is_whole(ctx: FlowContext, image: Image, row: UnpackedImage) -> bool:
    """Are the file and the device of the image what its row says, by every byte of them?"""
    found = ctx.devices.look(row.device_name)
    if found is None or found.uuid not in uuids_of(image.image_id, image.checksum or ""):
        return False
    device = recorded_device(row.device_id, row.device_name, found.uuid or "", found.size)
    if device is None:
        return False
    try:
        ctx.devices.verify(device, deep=True)
        return hash_file(ctx.recorded_file(image)) == image.checksum
    except (ImageError, OSError):
        return False


def _record_as_whole(ctx: FlowContext, image: Image) -> None:
    ctx.catalog.mark_completed(image.image_id)
    ctx.catalog.mark_unpacked_verified(image.image_id)
