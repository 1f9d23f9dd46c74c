"""`holdfast backup`, `restore`, `prune` and `stats`: looking after a database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.cli.command import Command
from holdfast.cli.opening import database_file, opened
from holdfast.cli.output import note, print_fields, print_lines, print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast.core.facts import Severity
from holdfast.core.states import JobState
from holdfast.core.worker_id import label_of
from holdfast.errors import StoreCorrupt
from holdfast.guard.check import check
from holdfast.guard.retention import ended_before, remove_ended
from holdfast.store.opening import restore_store
from holdfast.store.protocol import Store

UNLIMITED = 1 << 40


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--with-schema", "schemas", multiple=True, metavar="NAME", help="Also this schema (PostgreSQL only).")
@click.pass_obj
def backup(settings: Settings, file: Path, schemas: tuple[str, ...]) -> None:
    """Copy the database while others work.

    The copy is consistent, complete in itself and there whole or not at all. It never overwrites a file. Of PostgreSQL
    it is the schema of the store, made by pg_dump, which must be installed; name those of your effects, too.
    """
    with opened(settings, read_only=True) as store:
        store.backup(file, schemas=schemas)
    size = file.stat().st_size
    show(settings, {"file": str(file), "bytes": size}, lambda: print(file))
    note(settings, f"copied {size:,} bytes")


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def restore(settings: Settings, file: Path) -> None:
    """Put a backup in the place of the database.

    Refused while workers are alive. The backup is verified first, as by check --deep; then the database is replaced as
    a whole. What was there before is kept beside it, under the name that is printed.

    On PostgreSQL the schema must be empty or missing. It is filled by pg_restore, whole or not at all, and then
    verified; a schema that was made for a backup that is not sound is removed again.
    """
    kept = restore_store(settings.place, file, verify=lambda store: _refuse_findings(store, file))
    data = {"file": str(file), "kept": str(kept) if kept else None}
    show(settings, data, lambda: print(kept) if kept else None)
    note(settings, f"restored; what was there before is {kept}" if kept else "restored")


def _refuse_findings(store: Store, file: Path) -> None:
    wrong = [finding for finding in check(store, deep=True) if finding.severity is Severity.ERROR]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise StoreCorrupt(
            f"{file} is not sound: {wrong[0].subject}: {wrong[0].message}{more}",
            hint="take another backup; nothing was changed",
        )


@click.command(cls=Command)
@click.option(
    "--older-than", type=click.FloatRange(0), required=True, metavar="DAYS", help="Only jobs that ended so long ago."
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, and change nothing.")
@click.pass_obj
def prune(settings: Settings, older_than: float, dry_run: bool) -> None:
    """Remove jobs that ended long ago.

    The head of each journal stays on record. Jobs that an unfinished one refers to are kept.
    """
    with opened(settings, read_only=dry_run) as store:
        if dry_run:
            removed = store.prune(
                before=ended_before(store, older_than), limit=UNLIMITED, actor=settings.actor, dry_run=True
            )
        else:
            removed = remove_ended(store, days=older_than, actor=settings.actor)
    data = {"jobs": removed, "dry_run": dry_run}
    show(settings, data, lambda: print_lines(removed))
    note(settings, f"{len(removed)} job(s) {'would be removed; nothing was changed' if dry_run else 'removed'}")


@click.command(cls=Command)
@click.pass_obj
def stats(settings: Settings) -> None:
    """Count jobs, queues and workers."""
    with opened(settings, read_only=True) as store:
        data = _stats(store, settings)
    show(settings, data, lambda: _print_stats(data))


def _stats(store: Store, settings: Settings) -> dict[str, Any]:
    path = database_file(settings)
    jobs: dict[str, dict[str, int]] = {}
    for (flow, state), count in sorted(store.counts().items()):
        jobs.setdefault(flow, {})[state] = count
    return {
        "store": store.url,
        "bytes": path.stat().st_size if path else None,
        "jobs": jobs,
        "under_way": len(store.under_way()),
        "queues": store.queues(),
        "workers": store.workers(),
        "pruned": len(store.pruned_heads()),
    }


def _print_stats(data: Mapping[str, Any]) -> None:
    size = data["bytes"]
    print_fields(
        [
            ("store", data["store"]),
            ("bytes", None if size is None else f"{size:,}"),
            ("under way", data["under_way"]),
            ("queues", len(data["queues"])),
            ("workers", len(data["workers"])),
            ("pruned jobs", data["pruned"]),
        ]
    )
    states = [state.value for state in JobState]
    if data["jobs"]:
        print("\njobs")
        print_table(("flow", *states), [(f, *(counts.get(s, 0) for s in states)) for f, counts in data["jobs"].items()])
    if data["workers"]:
        print("\nworkers")
        rows = [(label_of(w.worker_id), time_of(w.started_at), ", ".join(w.flows)) for w in data["workers"]]
        print_table(("worker", "started", "flows"), rows)
