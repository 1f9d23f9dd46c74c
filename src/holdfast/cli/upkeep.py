"""`holdfast backup`, `prune` and `stats`: looking after a database."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from holdfast.cli.command import Command
from holdfast.cli.opening import database_file, opened
from holdfast.cli.output import note, print_fields, print_lines, print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast.core.states import JobState
from holdfast.core.worker_id import label_of
from holdfast.guard.retention import DAY_MS, remove_ended
from holdfast.store.protocol import Store

UNLIMITED = 1 << 40


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def backup(settings: Settings, file: Path) -> None:
    """Copy the database while others work.

    The copy is consistent, complete in itself and there whole or not at all. It never overwrites a file.
    """
    with opened(settings, read_only=True) as store:
        store.backup(file)
    size = file.stat().st_size
    show(settings, {"file": str(file), "bytes": size}, lambda: print(file))
    note(settings, f"copied {size:,} bytes")


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
            before = store.now() - round(older_than * DAY_MS)
            removed = store.prune(before=before, limit=UNLIMITED, actor=settings.actor, dry_run=True)
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
