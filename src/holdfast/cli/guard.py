"""`holdfast check`, `repair` and `stalled`: the guard, on command."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.findings import show_findings
from holdfast.cli.opening import RowRepair, opened, own_app
from holdfast.cli.output import Counter, note, print_lines, print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast.core.records import ExecutionRecord
from holdfast.core.repair_plan import RepairAction
from holdfast.core.stall import StallVerdict
from holdfast.core.worker_id import label_of
from holdfast.errors import BadInput, ReasonRequiredError
from holdfast.guard import repair as repairing
from holdfast.guard import watch
from holdfast.guard.check import check as check_store
from holdfast.store.protocol import Store


@click.command(cls=Command)
@click.option("--deep", is_flag=True, help="Read every page of the database as well.")
@click.pass_obj
def check(settings: Settings, deep: bool) -> int:
    """Check every invariant and report every finding.

    Nothing is changed. Ends with 7 if anything was found.
    """
    with opened(settings, read_only=True) as store, Counter(settings, "jobs checked") as counter:
        findings = [*check_store(store, deep=deep, progress=counter), *own_app(settings).check()]
    return show_findings(settings, findings)


@click.command(cls=Command)
@click.option("--dry-run", is_flag=True, help="Show the plan, and change nothing.")
@click.pass_obj
def repair(settings: Settings, dry_run: bool) -> int:
    """Repair what can be repaired.

    By legal transitions, and by what executions and journal know; rows of images by what files and devices tell.

    Says what it cannot repair, and then ends with 7. With --dry-run it ends with 7 if there is anything to do.
    """
    with opened(settings, read_only=dry_run) as store:
        with Counter(settings, "jobs checked") as counter:
            actions = repairing.plan(store, progress=counter)
        done = [] if dry_run else repairing.apply(store, actions, actor=settings.actor)
    rows = own_app(settings).repair(dry_run)
    lines = [one.line for one in done] + [f"{row.subject}: {row.why}" for row in rows if row.is_done]
    data = {"actions": actions, "rows": [row._asdict() for row in rows], "done": lines, "dry_run": dry_run}
    show(settings, data, lambda: _print_plan(actions, rows) if dry_run else print_lines(lines))
    count = len(actions) + len(rows)
    note(settings, "nothing was changed" if dry_run and count else f"{count} action(s)")
    is_left = bool(dry_run and count) or not (all(one.is_done for one in done) and all(row.is_done for row in rows))
    return ExitCode.FINDINGS if is_left else ExitCode.OK


@click.command(cls=Command)
@click.argument("job_ids", metavar="[JOB_ID]...", nargs=-1)
@click.option("--recover", is_flag=True, help="Stop the stalled ones, and let their jobs try again.")
@click.option("--reason", metavar="TEXT", help="Why; needed with --recover, and goes into the journal.")
@click.pass_obj
def stalled(settings: Settings, job_ids: tuple[str, ...], recover: bool, reason: str | None) -> int:
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
            for one, verdict in watch.stalled(store)
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


def _recover(settings: Settings, store: Store, job_ids: tuple[str, ...], reason: str) -> list[str]:
    return watch.stop_stalled(store, actor=settings.actor, reason=reason, only=job_ids or None)


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
