"""`holdfast gc` and `verify-system`: looking after everything there is."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.cli.session import data_option, opened

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
def gc(settings: Settings, /, dry_run: bool, refusals_older_than: float | None, **flags: Any) -> int:
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
def verify_system(settings: Settings, /, deep: bool, **flags: Any) -> int:
    """Check jobs, catalog, files and devices.

    Every invariant of the engine, the rules of the catalog, every recorded file, device and snapshot, the room that is
    left, and what gc would remove. Nothing is changed. Ends with 7 if anything was found.
    """
    with opened(settings, **flags) as images:
        findings = images.verify(deep=deep)
    return show_findings(settings, findings)
