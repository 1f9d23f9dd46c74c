"""`holdfast submit`: one new job."""

from __future__ import annotations

import os
import sys

import click
import msgspec

from holdfast.cli.command import Command
from holdfast.cli.exits import ExitCode
from holdfast.cli.job import print_result, result_data
from holdfast.cli.opening import app_flows, opened, unknown_flow
from holdfast.cli.output import note, print_json
from holdfast.cli.settings import Settings
from holdfast.client import Client
from holdfast.core.codec import WRITING_ERRORS
from holdfast.core.flow import Flow
from holdfast.core.records import JobResult
from holdfast.core.states import JobState
from holdfast.errors import BadInput, RequestTooLargeError
from holdfast.store.messages import Submitted
from holdfast.store.preparing import REQUEST_LIMIT, invalid_request


class Options(msgspec.Struct, frozen=True, kw_only=True):
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
    settings: Settings, /, flow: str, request_json: str, is_waiting: bool, timeout: float | None, **given: object
) -> int:
    """Add a job.

    Needs --app. The request is JSON of the flow's request type; - reads it from stdin. Prints the id of the job;
    with --wait also its response, and fails if the job does.
    """
    if timeout is not None and not is_waiting:
        raise BadInput("--timeout is given without --wait", hint="give both, or neither")
    options = msgspec.convert(given, Options)
    flows = {each.name: each for each in app_flows(settings)}
    if flow not in flows:
        raise unknown_flow(settings, flow, flows)
    request = _decode(flows[flow], _read(request_json))
    with opened(settings, create=True) as store:
        client = Client(store, flows.values(), actor=settings.actor)
        submitted = _submit(client, flows[flow], request, options)
        if not submitted.created:
            other = "" if submitted.same_request else ", with another request"
            note(settings, f"job {submitted.job_id} has the key {options.key!r} already{other}; no new job was added")
        if not settings.json:
            # At once, so that whoever ends the waiting knows the job.
            print(submitted.job_id, flush=True)
        result = client.wait(submitted.job_id, timeout) if is_waiting else None
    return _show(settings, submitted, result)


def _show(settings: Settings, submitted: Submitted, result: JobResult | None) -> int:
    data = {"job_id": submitted.job_id, "created": submitted.created, "same_request": submitted.same_request}
    if settings.json:
        print_json(data if result is None else {**data, **result_data(result)})
    elif result is not None:
        print_result(settings, result)
    return ExitCode.OK if result is None or result.state is JobState.SUCCEEDED else ExitCode.FAILURE


def _submit(client: Client, flow: Flow[object, object], request: object, options: Options) -> Submitted:
    return client.submit_or_find(
        flow,
        request,
        key=options.key,
        queue=options.queue,
        priority=options.priority,
        delay=options.delay,
        run_after=options.run_after,
    )


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
