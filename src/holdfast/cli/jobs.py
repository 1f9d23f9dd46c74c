"""`holdfast jobs`: what there is."""

from __future__ import annotations

import click

from holdfast.cli.command import Command
from holdfast.cli.opening import opened
from holdfast.cli.output import note, print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState

COLUMNS = ("job", "flow", "state", "queue", "key", "attempt", "created", "updated")


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
    show(settings, {"jobs": shown, "more": more}, lambda: print_table(COLUMNS, map(_row, shown)))
    if more:
        note(settings, f"there are more than {limit} jobs; see them with --limit")


def _row(job: JobRecord) -> tuple[object, ...]:
    return (
        job.job_id,
        job.flow,
        job.state,
        job.queue,
        job.key,
        job.attempt,
        time_of(job.created_at),
        time_of(job.updated_at),
    )
