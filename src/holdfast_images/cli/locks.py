"""`holdfast locks …`: who works on which image, and locks that nobody holds any more."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.session import opened
from holdfast_images.locks import STALE_AFTER, HeldLock

COLUMNS = ("image", "held by", "for", "state")

seconds_option = click.option(
    "--older-than",
    type=click.IntRange(0),
    default=STALE_AFTER,
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
    with opened(settings) as images:
        held = images.locks.held()
    _show(settings, held)


@locks.command()
@seconds_option
@click.pass_obj
def stale(settings: Settings, older_than: int) -> int:
    """List locks that were held for long, or whose job has ended.

    Nothing is changed. Ends with 7 if there are any. A lock whose job has ended is taken over by whoever needs the
    image, and collected by gc; an old lock of a job that goes on is no fault.
    """
    with opened(settings) as images:
        found = images.locks.stale(older_than=older_than)
    _show(settings, found)
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
    with opened(settings) as images:
        if are_stale:
            released = images.locks.release_stale(older_than=older_than)
        else:
            released = images.locks.release(image_ids, force=force)
    show(
        settings,
        {"released": [{name: value for name, value in _data(lock).items() if name != "state"} for lock in released]},
        lambda: print(*(lock.image_id for lock in released), sep="\n") if released else None,
    )
    note(settings, f"{len(released)} lock(s) released")
    return ExitCode.OK


def _show(settings: Settings, locks: Iterable[HeldLock]) -> None:
    rows = [(lock.image_id, lock.locked_by, f"{lock.age} s", lock.state) for lock in locks]
    show(settings, {"locks": [_data(lock) for lock in locks]}, lambda: print_table(COLUMNS, rows))


def _data(lock: HeldLock) -> dict[str, Any]:
    return msgspec.structs.asdict(lock)
