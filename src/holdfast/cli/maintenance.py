"""`holdfast check`, `repair`, `stalled`, `prune`, `backup` and `restore`: looking after a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from holdfast import guard
from holdfast.cli.command import Command, CommandSettings, ExitCode
from holdfast.cli.context import RowRepair, database_file, opened, own_app
from holdfast.cli.output import Counter, note, print_fields, print_lines, print_table, show, time_of
from holdfast.core.facts import Finding, Severity
from holdfast.core.progress import StallVerdict
from holdfast.core.records import ExecutionRecord
from holdfast.core.repair import RepairAction
from holdfast.core.states import JobState
from holdfast.core.values import label_of
from holdfast.errors import BadInput, HoldfastError, ReasonRequiredError, StoreCorrupt
from holdfast.guard import check as check_store
from holdfast.guard import ended_before, remove_ended
from holdfast.store.open import restore_store
from holdfast.store.protocol import Store

OWN_ROWS = "the application's own rows"


def show_findings(settings: CommandSettings, findings: Sequence[Finding]) -> int:
    """Show all of them, and say by the exit code whether there are any."""
    rows = [(finding.severity, finding.code, finding.subject, finding.message) for finding in findings]
    show(
        settings,
        {"findings": findings},
        lambda: print_table(("severity", "code", "subject", "message"), rows) if rows else None,
    )
    note(settings, f"{len(findings)} finding(s)" if findings else "nothing is wrong")
    return ExitCode.FINDINGS if findings else ExitCode.OK


# --- `holdfast check`, `repair` and `stalled`: the guard, on command ------------------------------------


@click.command(cls=Command)
@click.option("--deep", is_flag=True, help="Read every page of the database as well.")
@click.pass_obj
def check(settings: CommandSettings, deep: bool) -> int:
    """Check every invariant and report every finding.

    Nothing is changed. Ends with 7 if anything was found.
    """
    with opened(settings, read_only=True) as store, Counter(settings, "jobs checked") as counter:
        findings = [*check_store(store, deep=deep, progress=counter), *_own_findings(settings)]
    _note_left_out(settings)
    return show_findings(settings, findings)


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.pass_obj
def repair(settings: CommandSettings, dry_run: bool) -> int:
    """Repair what can be repaired.

    By legal transitions, and by what executions and journal know; rows of images by what files and devices tell.

    Says what it cannot repair, and then ends with 7. With --dry-run it ends with 7 if there is anything to do.
    """
    with opened(settings, read_only=dry_run) as store:
        with Counter(settings, "jobs checked") as counter:
            actions = guard.plan(store, progress=counter)
        done = [] if dry_run else guard.apply(store, actions, actor=settings.actor)
    rows = _own_repairs(settings, dry_run=dry_run)
    lines = [one.line for one in done] + [f"{row.subject}: {row.why}" for row in rows if row.is_done]
    data = {"actions": actions, "rows": [row._asdict() for row in rows], "done": lines, "dry_run": dry_run}
    show(settings, data, lambda: _print_plan(actions, rows) if dry_run else print_lines(lines))
    count = len(actions) + len(rows)
    _note_left_out(settings)
    note(settings, "nothing was changed" if dry_run and count else f"{count} action(s)")
    is_left = bool(dry_run and count) or not (all(one.is_done for one in done) and all(row.is_done for row in rows))
    return ExitCode.FINDINGS if is_left else ExitCode.OK


@click.command(cls=Command)
@click.argument("job_ids", metavar="[JOB_ID]...", nargs=-1)
@click.option("--recover", is_flag=True, help="Stop the stalled ones, and let their jobs try again.")
@click.option("--reason", metavar="TEXT", help="Why; needed with --recover, and goes into the journal.")
@click.pass_obj
def stalled(settings: CommandSettings, job_ids: tuple[str, ...], recover: bool, reason: str | None) -> int:
    """List running jobs without progress; recover them, or only those that are named.

    Slow ones have used up half of their patience, stalled ones all of it. Ends with 7 if there are stalled ones left.
    """
    if reason is not None and not recover:
        raise BadInput("--reason is given without --recover", hint="give both, or neither")
    if recover and not (reason or "").strip():
        raise ReasonRequiredError("--recover needs --reason", hint="say why: it goes into the journal")
    with opened(settings, read_only=not recover) as store:
        job_ids = tuple(map(store.full_job_id, job_ids))
        for job_id in job_ids:
            store.job(job_id)  # one that does not exist is an error, and not just not stalled
        found = [
            (one, verdict, store.last_progress(one.exec_id))
            for one, verdict in guard.stalled(store)
            if not job_ids or one.job_id in job_ids
        ]
        recovered = _recover(settings, store, job_ids, str(reason).strip()) if recover else []
    data = {"stalled": [_data(*each) for each in found], "recovered": recovered}
    rows = [_row(*each) for each in found]
    show(settings, data, lambda: print_table(("job", "verdict", "owner", "last progress", "progress"), rows))
    for job_id in recovered:
        note(settings, f"recovered job {job_id}")
    left = {e.job_id for e, verdict, _ in found if verdict is StallVerdict.STALLED} - set(recovered)
    return ExitCode.FINDINGS if left else ExitCode.OK


def _recover(settings: CommandSettings, store: Store, job_ids: tuple[str, ...], reason: str) -> list[str]:
    return guard.stop_stalled(store, actor=settings.actor, reason=reason, only=job_ids or None)


def _note_left_out(settings: CommandSettings) -> None:
    if settings.default_app is not None and settings.app is not None:
        note(settings, f"with --app {settings.app}, the rows of images are left out; for them, run it without --app")


def _own_findings(settings: CommandSettings) -> list[Finding]:
    """What the application finds in its own rows. That it cannot look hides nothing that the engine has found."""
    try:
        return list(own_app(settings).check())
    except (HoldfastError, OSError) as error:
        return [Finding(code="not-checked", severity=Severity.ERROR, subject=OWN_ROWS, message=str(error))]


def _own_repairs(settings: CommandSettings, *, dry_run: bool) -> Sequence[RowRepair]:
    try:
        return own_app(settings).repair(dry_run)
    except (HoldfastError, OSError) as error:
        return [RowRepair(OWN_ROWS, f"could not be looked at: {error}", is_done=False)]


def _print_plan(actions: Sequence[RepairAction], rows: Sequence[RowRepair]) -> None:
    planned = [(action.kind, action.job_id, action.from_state, action.to_state, action.why) for action in actions]
    if planned:
        print_table(("action", "job", "from", "to", "why"), planned)
    if rows:
        print_table(("row", "why"), [(row.subject, row.why) for row in rows])


def _data(execution: ExecutionRecord, verdict: StallVerdict, progressed_at: int | None) -> dict[str, object]:
    return {
        "job_id": execution.job_id,
        "exec_id": execution.exec_id,
        "verdict": verdict,
        "owner": label_of(execution.lease_owner),
        "progressed_at": progressed_at,
    }


def _row(execution: ExecutionRecord, verdict: StallVerdict, progressed_at: int | None) -> tuple[object, ...]:
    owner = label_of(execution.lease_owner)
    return (execution.job_id, verdict, owner, time_of(progressed_at), execution.progress)


# --- `holdfast backup`, `restore`, `prune` and `stats`: looking after a database ------------------------

UNLIMITED = 1 << 40


@click.command(cls=Command)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--with-schema", "schemas", multiple=True, metavar="NAME", help="Also this schema (PostgreSQL only).")
@click.pass_obj
def backup(settings: CommandSettings, file: Path, schemas: tuple[str, ...]) -> None:
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
def restore(settings: CommandSettings, file: Path) -> None:
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
    wrong = [finding for finding in check_store(store, deep=True) if finding.severity is Severity.ERROR]
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
def prune(settings: CommandSettings, older_than: float, dry_run: bool) -> None:
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
def stats(settings: CommandSettings) -> None:
    """Count jobs, queues and workers."""
    with opened(settings, read_only=True) as store:
        data = _stats(store, settings)
    show(settings, data, lambda: _print_stats(data))


def _stats(store: Store, settings: CommandSettings) -> dict[str, Any]:
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
