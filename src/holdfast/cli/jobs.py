"""`holdfast jobs`: what there is."""

from __future__ import annotations

import click

from holdfast.cli.command import Command
from holdfast.cli.opening import opened
from holdfast.cli.output import job_data, note, print_table, show, step_of, time_of
from holdfast.cli.settings import Settings
from holdfast.core.current_step import CurrentStep
from holdfast.core.records import JobRecord, unreadable_of
from holdfast.core.states import JobState
from holdfast.core.worker_id import label_of

COLUMNS = ("job", "flow", "state", "queue", "key", "attempt", "step", "worker", "created", "updated")


def _checked_state(_context: click.Context, _parameter: click.Parameter, value: str | None) -> JobState | None:
    """A directory given here is a mistake that is easily made, and is told as one."""
    if value is None or value in list(JobState):
        return None if value is None else JobState(value)
    if "/" in value or "." in value:
        raise click.BadParameter(f"{value!r} is not a state of jobs; a directory goes before: --state {value} jobs")
    raise click.BadParameter(f"{value!r} is not a state of jobs: {', '.join(JobState)}")


@click.command(cls=Command)
@click.option("--state", metavar="|".join(JobState), callback=_checked_state, help="Only jobs in this state.")
@click.option("--flow", metavar="NAME", help="Only jobs of this flow.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue; - is the queue without a name.")
@click.option("--key", metavar="KEY", help="Only jobs with this key.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@click.pass_obj
def jobs(
    settings: Settings, state: JobState | None, flow: str | None, queue: str | None, key: str | None, limit: int
) -> None:
    """List jobs, newest first.

    Here --state is a state of jobs: the state directory goes before, as in `holdfast --state DIR jobs`.
    """
    with opened(settings, read_only=True) as store:
        # One more than shown, to know whether there are more.
        found = store.jobs(
            states=[state] if state else [],
            flow=flow,
            queue="" if queue == "-" else queue,
            key=key,
            limit=limit + 1,
        )
        shown, more = found[:limit], len(found) > limit
        running = [job.job_id for job in shown if job.state is JobState.RUNNING]
        current = {one.job_id: one for one in store.running(running)} if running else {}
    listed = [{**job_data(job), "current": current.get(job.job_id)} for job in shown]
    rows = (_row(job, current.get(job.job_id)) for job in shown)
    show(settings, {"jobs": listed, "more": more}, lambda: print_table(COLUMNS, rows))
    for job in shown:
        if (problem := unreadable_of(job)) is not None:
            note(settings, f"{problem}; see: holdfast check")
    if more:
        note(settings, f"there are more than {limit} jobs; see them with --limit")


def _row(job: JobRecord, current: CurrentStep | None) -> tuple[object, ...]:
    return (
        job.job_id,
        job.flow,
        job.state,
        job.queue,
        job.key,
        job.attempts,
        step_of(current),
        label_of(current.worker) if current else None,
        time_of(job.created_at),
        time_of(job.updated_at),
    )
