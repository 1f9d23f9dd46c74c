"""What there is: on disk, in the backend, in the catalog and among the jobs, in one look that changes nothing."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from holdfast import Engine, Finding, JobState
from holdfast.errors import NotFound
from holdfast_images.catalog.rows import (
    Image,
    ImageLock,
    Refusal,
    Reservation,
    Snapshot,
    UnpackedImage,
    Verification,
)
from holdfast_images.devices.protocol import Found
from holdfast_images.flows.workshop import Workshop

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
    refusals: tuple[Refusal, ...] = ()
    updates: tuple[Verification, ...] = ()
    """New content of images, not in use yet."""
    work: tuple[Work, ...] = ()
    finished: frozenset[str] = frozenset()
    """Jobs that are named as owners of locks and have ended, or are not known any more."""


def gather(shop: Workshop, engine: Engine) -> Facts:
    """Look at everything.

    First at what is there, then at the jobs, then at the rows: so what a job has made is either still its own, or has
    its row.
    """
    catalog = shop.catalog
    found = tuple(shop.devices.found())
    disagreements = tuple(shop.devices.disagreements())
    files = tuple(files_in(shop.images))
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
