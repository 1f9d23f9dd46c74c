"""`holdfast gc` and `verify-system`: looking after everything there is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from holdfast import Finding
from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.output import note, print_table, show
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.settings import data_option
from holdfast_images.devices.protocol import COLLECTED
from holdfast_images.errors import ImageError
from holdfast_images.upkeep.collecting import DAY, Collected, collect, plan, plan_rows
from holdfast_images.upkeep.facts import gather
from holdfast_images.upkeep.verifying import (
    check_pool,
    checked,
    error,
    leftovers,
    verify_catalog,
    verify_image,
    verify_rows,
    with_hint,
)


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
    with opened_images(settings, read_only=dry_run, **flags) as images:
        # What is left over is told by the rows: they are put right first.
        rows = plan_rows(images)
        done = collect(images, rows) if rows and not dry_run else []
        rest = plan(gather(images), refusals_older_than=seconds)
        done += [] if dry_run else collect(images, rest)
        actions = [*rows, *rest]
    removed = [each.action for each in done if each.removed]
    kept = [each for each in done if not each.removed]
    data = {"actions": actions, "removed": len(removed), "kept": kept, "dry_run": dry_run}
    lines = [(each.kind, each.subject, each.bytes, each.why) for each in (actions if dry_run else removed)]
    show(settings, data, lambda: print_table(("kind", "what", "bytes", "why"), lines) if lines else None)
    _tell_kept(settings, kept)
    note(settings, f"{len(lines)} leftover(s)" + (": nothing was changed" if dry_run else " removed"))
    return ExitCode.FAILURE if kept else ExitCode.OK


@click.command("verify-system", cls=Command)
@click.option("--deep", is_flag=True, help="Read every file, every device and every page of the database as well.")
@data_option
@click.pass_obj
def verify_system(settings: Settings, /, deep: bool, **flags: Any) -> int:
    """Check jobs, catalog, files and devices.

    Every invariant of the engine, the rules of the catalog, every recorded file, device and snapshot, the room that is
    left, and what gc would remove. Nothing is changed. Ends with 7 if anything was found.
    """
    with opened_images(settings, read_only=True, **flags) as images:
        findings = [*images.engine.check(deep=deep), *_findings(images, deep=deep)]
    return show_findings(settings, findings)


def _findings(images: Images, *, deep: bool) -> Iterator[Finding]:
    yield from verify_rows(images)
    yield from verify_catalog(images.catalog)
    yield from _pool(images)
    yield from checked("the catalog", _images(images, deep=deep))
    yield from checked("the backend", _left_over(images))


def _images(images: Images, *, deep: bool) -> Iterator[Finding]:
    for image in images.catalog.list_images():
        yield from checked(f"image {image.image_id}", verify_image(images, image, deep=deep))


def _pool(images: Images) -> Iterator[Finding]:
    """Where it cannot be asked at all, all the rest is told nevertheless."""
    try:
        yield from check_pool(images.devices.pool())
    except (ImageError, OSError) as failure:
        yield error("pool-unusable", "pool", with_hint(failure))


def _left_over(images: Images) -> Iterator[Finding]:
    facts = gather(images)
    yield from (each for each in facts.disagreements if each.code not in COLLECTED)
    yield from leftovers(plan(facts))


def _tell_kept(settings: Settings, kept: Sequence[Collected]) -> None:
    for each in kept:
        note(settings, f"{each.action.kind} {each.action.subject} stays: {each.reason or 'it is gone already'}")
