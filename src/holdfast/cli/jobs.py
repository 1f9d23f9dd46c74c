"""`holdfast jobs` and `submit`: what there is, and one more of it."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from holdfast.cli.command import Command, CommandSettings, ExitCode
from holdfast.cli.context import app_flows, opened, unknown_flow
from holdfast.cli.job import print_result, result_data
from holdfast.cli.output import job_data, note, print_json, print_table, show, step_of, time_of
from holdfast.client import Client
from holdfast.core.flow import Flow
from holdfast.core.progress import CurrentStep
from holdfast.core.records import JobRecord, JobResult, unreadable_of
from holdfast.core.states import JobState
from holdfast.core.values import WRITING_ERRORS, label_of
from holdfast.errors import BadInput, RequestTooLargeError
from holdfast.store.commands import Submitted
from holdfast.store.submit import REQUEST_LIMIT, invalid_request

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
    settings: CommandSettings, state: JobState | None, flow: str | None, queue: str | None, key: str | None, limit: int
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


# --- `holdfast submit`: one new job ---------------------------------------------------------------------


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that go with the job."""

    key: str | None
    queue: str | None
    priority: int
    delay: float
    run_after: str | None


@click.command(cls=Command)
@click.argument("flow")
@click.argument("request_json", metavar="REQUEST_JSON|-")
@click.option(
    "--key",
    metavar="KEY",
    help="What the job is known by; a key that is in use gives the job that has it.",
)
@click.option("--queue", metavar="NAME", help="Another queue than the flow's own.")
@click.option("--priority", type=int, default=0, show_default=True, metavar="N", help="Higher goes first.")
@click.option("--delay", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="Start no earlier than this.")
@click.option("--run-after", metavar="JOB", help="Start only when this job has succeeded.")
@click.option("--wait", "is_waiting", is_flag=True, help="Wait for the end of the job, and print its response.")
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer than this.")
@click.pass_obj
def submit(
    settings: CommandSettings, /, flow: str, request_json: str, is_waiting: bool, timeout: float | None, **given: object
) -> int:
    """Add a job.

    Needs --app. The request is JSON of the flow's request type; - reads it from stdin. Prints the id of the job;
    with --wait also its response, and fails if the job does.
    """
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout is given without --wait", hint="give both, or neither")
    options = msgspec.convert(given, SubmitOptions)
    flows = {each.name: each for each in app_flows(settings)}
    if flow not in flows:
        raise unknown_flow(settings, flow, flows)
    request = _decode(flows[flow], _read(request_json))
    with opened(settings, create=True) as store:
        client = Client(store, flows.values(), actor=settings.actor)
        submitted = client.submit_or_find(flows[flow], request, **msgspec.structs.asdict(options))
        if not submitted.created:
            other = "" if submitted.same_request else ", with another request"
            note(settings, f"job {submitted.job_id} has the key {options.key!r} already{other}; no new job was added")
        if not settings.json:
            # At once, so that whoever ends the waiting knows the job.
            print(submitted.job_id, flush=True)
        result = client.wait(submitted.job_id, timeout) if is_waiting else None
    return _show(settings, submitted, result)


def _show(settings: CommandSettings, submitted: Submitted, result: JobResult | None) -> int:
    data = {"job_id": submitted.job_id, "created": submitted.created, "same_request": submitted.same_request}
    if settings.json:
        print_json(data if result is None else {**data, **result_data(result)})
    elif result is not None:
        print_result(settings, result)
    return ExitCode.OK if result is None or result.state is JobState.SUCCEEDED else ExitCode.FAILURE


def _read(argument: str) -> bytes:
    # One byte more than allowed is enough to know; nobody has to hold gigabytes for it.
    content = sys.stdin.buffer.read(REQUEST_LIMIT + 1) if argument == "-" else os.fsencode(argument)
    if len(content) > REQUEST_LIMIT:
        raise RequestTooLargeError(
            f"the request has more than {REQUEST_LIMIT:,} bytes",
            hint="put large data in a file or a bucket and send its address",
        )
    return content


def _decode(flow: Flow[object, object], content: bytes) -> object:
    try:
        return flow.request_codec.decode(content)
    except WRITING_ERRORS as error:
        raise invalid_request(flow, error, hint='quote it for the shell: \'{"name": "value"}\'') from None
