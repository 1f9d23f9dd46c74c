"""`holdfast host …`: whose files and devices these are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import click
import msgspec

from holdfast.cli.command import Command, CommandSettings, ExitCode, Group
from holdfast.cli.maintenance import show_findings
from holdfast.cli.output import note, print_fields, print_table, show
from holdfast_images.administration import DEFAULT_NAME, STALE_AFTER, HeldLock, PoolReport
from holdfast_images.cli.session import data_option, image_manager, opened
from holdfast_images.errors import InvalidName
from holdfast_images.host import HostReport


@click.group(cls=Group)
def host() -> None:
    """See whose files and devices these are, or take them over."""


@host.command("show")
@data_option
@click.pass_obj
def show_host(settings: CommandSettings, /, **flags: Any) -> int:
    """Show what this host is called, and whose its data directory is.

    Nothing is changed.
    """
    with opened(settings, **flags) as images:
        report = images.host()
    show(settings, report, lambda: _print(report))
    return ExitCode.OK


@host.command()
@data_option
@click.pass_obj
def adopt(settings: CommandSettings, /, **flags: Any) -> int:
    """Take the data directory, and the name of this host, over for this machine.

    For a machine that has taken the place of another, or a directory that has been moved to it. Whoever had them must
    not use them any more: what it has made is in the rows of this host. Refused while a worker of this host is live.
    """
    with opened(settings, **flags) as images:
        done = images.adopt()
    marked = done.marked
    show(settings, done, lambda: _print(HostReport(asking=marked, marked=marked, known=None)))
    note(settings, f"{marked.directory} is this machine's now")
    return ExitCode.OK


def _print(report: HostReport) -> None:
    asking, marked, known = report.asking, report.marked, report.known
    print_fields(
        [
            ("host", asking.host or None),
            ("machine", asking.machine or None),
            ("store", asking.store),
            ("directory", asking.directory),
            ("marked for host", marked.host or None if marked else None),
            ("marked for store", marked.store if marked else None),
            ("the host's machine", known.machine or None if known else None),
            ("the host's directory", known.directory if known else None),
        ]
    )


# --- `holdfast locks …`: who works on which image, and locks that nobody holds any more -----------------

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
def list_locks(settings: CommandSettings) -> None:
    """List all locks of images, newest first.

    A lock is held by a job for as long as that is unfinished, whatever becomes of its worker.
    """
    with opened(settings) as images:
        held = images.locks.held()
    _show(settings, held)


@locks.command()
@seconds_option
@click.pass_obj
def stale(settings: CommandSettings, older_than: int) -> int:
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
def release(
    settings: CommandSettings, image_ids: tuple[str, ...], are_stale: bool, force: bool, older_than: int
) -> int:
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


def _show(settings: CommandSettings, locks: Iterable[HeldLock]) -> None:
    rows = [(lock.image_id, lock.locked_by, f"{lock.age} s", lock.state) for lock in locks]
    show(settings, {"locks": [_data(lock) for lock in locks]}, lambda: print_table(COLUMNS, rows))


def _data(lock: HeldLock) -> dict[str, Any]:
    return msgspec.structs.asdict(lock)


# --- `holdfast pool …`: the thin pool that the devices of the device mapper are made in -----------------

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType[int]):
    """Bytes, with K, M, G or T for powers of 1024."""

    name = "size"

    def convert(self, value: Any, _param: click.Parameter | None, _ctx: click.Context | None) -> int:
        """Raises InvalidName for what is no size."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+)([KMGT]?)(?:i?B)?", value, re.IGNORECASE)
        if match is None:
            raise InvalidName(f"{value!r} is no size", hint="bytes, or a number and K, M, G or T: 20G")
        return int(match[1]) * UNITS[match[2].upper()]


@click.group(cls=Group)
def pool() -> None:
    """Make, watch, extend and check the thin pool."""


@pool.command()
@click.option("--size", type=Size(), default=0, help="Make it on files of this size below the data directory.")
@click.option("--metadata", metavar="DEVICE", help="Make it on block devices: this one for its metadata,")
@click.option("--data-device", metavar="DEVICE", help="and this one for its data.")
@click.option("--name", default=DEFAULT_NAME, show_default=True, help="Its name in the device mapper.")
@click.option("--low-water", type=Size(), help="Warn with less than this left; a tenth if nothing is said.")
@click.option("--force", is_flag=True, help="Destroy what the block devices hold.")
@data_option
@click.pass_obj
def create(
    settings: CommandSettings,
    /,
    size: int,
    metadata: str | None,
    data_device: str | None,
    name: str,
    low_water: int | None,
    force: bool,
    **flags: Any,
) -> int:
    """Make the pool.

    Killed in the midst of it, the same command goes on. Devices that hold anything are refused without --force.
    """
    with image_manager(settings, **flags) as images:
        report = images.pool.create(
            size=size, metadata=metadata, data=data_device, name=name, low_water=low_water, force=force
        )
    _show_pool(settings, report)
    return ExitCode.OK


@pool.command()
@data_option
@click.pass_obj
def status(settings: CommandSettings, /, **flags: Any) -> int:
    """Say how much room there is. Ends with 7 if the pool is nearly full, full, or not usable."""
    with image_manager(settings, **flags) as images:
        report = images.pool.status()
    _show_pool(settings, report)
    return ExitCode.OK if report.is_well else ExitCode.FINDINGS


@pool.command()
@click.option("--size", type=Size(), help="How large its file shall be; a block device must have grown before.")
@data_option
@click.pass_obj
def extend(settings: CommandSettings, /, size: int | None, **flags: Any) -> int:
    """Give the pool more room, while it is used.

    Metadata that are nearly full are doubled, too; without --size a pool on files gets only that.
    """
    with image_manager(settings, **flags) as images:
        _show_pool(settings, images.pool.extend(size))
    return ExitCode.OK


@pool.command()
@click.option("--repair", is_flag=True, help="Clear the mark that it must be checked, if nothing is wrong.")
@click.option("--offline", is_flag=True, help="Read all its metadata: nothing of it may be active.")
@data_option
@click.pass_obj
def check(settings: CommandSettings, /, repair: bool, offline: bool, **flags: Any) -> int:
    """Hold pool, records, device mapper, mounts and loop devices against each other. Ends with 7 if they differ."""
    with image_manager(settings, **flags) as images:
        if repair or offline:
            images.pool.check_metadata(repair=repair)
            note(settings, "thin_check found nothing wrong")
        found = images.pool.check()
    return show_findings(settings, found)


def _show_pool(settings: CommandSettings, report: PoolReport) -> None:
    """Of a pool that cannot be used only what is known."""
    fields = {name: value for name, value in msgspec.structs.asdict(report).items() if value is not None}
    show(settings, fields, lambda: print_fields(fields.items()))


# --- `holdfast gc` and `verify-system`: looking after everything there is -------------------------------

DAY = 86_400.0


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.option(
    "--refusals-older-than",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Forget refusals of that age, too: such an image is fetched and judged again.",
)
@data_option
@click.pass_obj
def gc(settings: CommandSettings, /, dry_run: bool, refusals_older_than: float | None, **flags: Any) -> int:
    """Remove what crashes have left and nobody needs.

    Partial files whose writer is dead, files, devices and snapshots that are in no row, ids and locks of jobs that
    have ended, and what is half-made, mounted or shown for a process that is gone. Rows that break a rule of the
    catalog, or name paths of before a move, are put right. What an unfinished job may need, or is in use, stays. Ends
    with 1 if something could not be removed.
    """
    seconds = None if refusals_older_than is None else refusals_older_than * DAY
    with opened(settings, **flags) as images:
        done = images.collect(dry_run=dry_run, refusals_older_than=seconds)
    data = {"actions": done.actions, "removed": len(done.removed), "kept": done.kept, "dry_run": dry_run}
    rows = [(each.kind, each.subject, each.bytes, each.why) for each in (done.actions if dry_run else done.removed)]
    show(settings, data, lambda: print_table(("kind", "what", "bytes", "why"), rows) if rows else None)
    for each in done.kept:
        note(settings, f"{each.action.kind} {each.action.subject} stays: {each.reason or 'it is gone already'}")
    note(settings, f"{len(rows)} leftover(s)" + (": nothing was changed" if dry_run else " removed"))
    return ExitCode.FAILURE if done.kept else ExitCode.OK


@click.command("verify-system", cls=Command)
@click.option("--deep", is_flag=True, help="Read every file, every device and every page of the database as well.")
@data_option
@click.pass_obj
def verify_system(settings: CommandSettings, /, deep: bool, **flags: Any) -> int:
    """Check jobs, catalog, files and devices.

    Every invariant of the engine, the rules of the catalog, every recorded file, device and snapshot, the room that is
    left, and what gc would remove. Nothing is changed. Ends with 7 if anything was found.
    """
    with opened(settings, **flags) as images:
        findings = images.verify(deep=deep)
    return show_findings(settings, findings)
