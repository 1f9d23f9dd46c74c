"""`holdfast locks …`: who works on which image, and locks that nobody holds any more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast import JobState
from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast.errors import NotFound
from holdfast_images.app import Images
from holdfast_images.catalog.locks import STALE_SECONDS
from holdfast_images.catalog.rows import ImageLock
from holdfast_images.cli.opening import opened_images
from holdfast_images.errors import ImageBusy, UnknownImage

COLUMNS = ("image", "held by", "for", "state")
LIVE = (JobState.PENDING, JobState.RUNNING)

seconds_option = click.option(
    "--older-than",
    type=click.IntRange(0),
    default=STALE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long a lock has to be held to count as stale.",
)


@click.group(cls=Group)
def locks() -> None:
    """See who works on which image; release a lock that was left."""


@locks.command("list")
@click.pass_obj
def list_locks(settings: Settings) -> None:
    """List all locks of images, newest first.

    A lock is held by a job for as long as that is unfinished, whatever becomes of its worker.
    """
    with opened_images(settings, read_only=True) as images:
        rows = [_data(images, lock) for lock in images.catalog.list_image_locks()]
    show(settings, {"locks": rows}, lambda: print_table(COLUMNS, map(_row, rows)))


@locks.command()
@seconds_option
@click.pass_obj
def stale(settings: Settings, older_than: int) -> int:
    """List locks that were held for long, or whose job has ended.

    Nothing is changed. Ends with 7 if there are any. A lock whose job has ended is taken over by whoever needs the
    image, and collected by gc; an old lock of a job that goes on is no fault.
    """
    with opened_images(settings, read_only=True) as images:
        rows = [_data(images, lock) for lock in images.catalog.list_image_locks()]
    found = [row for row in rows if row["age"] > older_than or row["state"] not in (None, *LIVE)]
    show(settings, {"locks": found}, lambda: print_table(COLUMNS, map(_row, found)))
    return ExitCode.FINDINGS if found else ExitCode.OK


@locks.command()
@click.argument("image_ids", metavar="[IMAGE]...", nargs=-1)
@click.option("--stale", "are_stale", is_flag=True, help="All that are stale and whose job has ended.")
@click.option("--force", is_flag=True, help="Even if a job that is not finished holds it.")
@seconds_option
@click.pass_obj
def release(settings: Settings, image_ids: tuple[str, ...], are_stale: bool, force: bool, older_than: int) -> int:
    """Release the locks of images.

    A job that is not finished keeps its lock, unless it is forced: two jobs may then work on one image, which the
    database and the devices survive, but one of them fails. Prefer to cancel the job.
    """
    if bool(image_ids) == are_stale:
        raise click.UsageError("name the images, or give --stale")
    with opened_images(settings) as images:
        chosen = [_held(images, image_id) for image_id in image_ids]
        if are_stale:
            chosen = [
                lock
                for lock in images.catalog.list_image_locks()
                if _state(images, lock) not in LIVE and (_is_jobs(lock) or lock.age > older_than)
            ]
        for lock in chosen:
            if _state(images, lock) in LIVE and not force:
                raise ImageBusy(
                    f"image {lock.image_id} is locked by {lock.locked_by}, which is not finished",
                    hint=f"cancel it: holdfast job cancel {lock.locked_by.partition(':')[2]}; or --force",
                )
        # By its holder: whoever has taken it over meanwhile keeps it.
        released = [lock for lock in chosen if images.catalog.release_image_lock(lock.image_id, lock.locked_by)]
    show(
        settings,
        {"released": [msgspec.structs.asdict(lock) for lock in released]},
        lambda: print(*(lock.image_id for lock in released), sep="\n") if released else None,
    )
    note(settings, f"{len(released)} lock(s) released")
    return ExitCode.OK


def _held(images: Images, image_id: str) -> ImageLock:
    lock = images.catalog.get_image_lock(image_id)
    if lock is None:
        raise UnknownImage(f"image {image_id!r} is not locked", hint="see which are: holdfast locks list")
    return lock


def _is_jobs(lock: ImageLock) -> bool:
    return lock.locked_by.startswith("job:")


def _state(images: Images, lock: ImageLock) -> str | None:
    """Of the job that holds it: gone if it is not known any more; None if no job holds it."""
    if not _is_jobs(lock):
        return None
    try:
        return images.engine.store.job(lock.locked_by.removeprefix("job:")).state
    except NotFound:
        return "gone"


def _data(images: Images, lock: ImageLock) -> dict[str, Any]:
    return {**msgspec.structs.asdict(lock), "state": _state(images, lock)}


def _row(data: Mapping[str, Any]) -> tuple[object, ...]:
    return (data["image_id"], data["locked_by"], f"{data['age']} s", data["state"])
