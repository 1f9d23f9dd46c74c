"""`holdfast flows …`: what is registered, how it looks, and what a deploy would do to the jobs under way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
import msgspec

from holdfast.cli.command import CommandSettings, ExitCode, Group
from holdfast.cli.context import app_flows, database_file, opened, unknown_flow
from holdfast.cli.output import note, print_table, show, time_of
from holdfast.core import diagram
from holdfast.core.diagram import DiagramFormat
from holdfast.core.flow import Definition, Flow
from holdfast.core.records import QueueRecord, WorkerRecord
from holdfast.core.states import UNFINISHED_STATES
from holdfast.errors import BadInput, QueueNotFoundError, ReasonRequiredError
from holdfast.store.protocol import Store
from holdfast.views.deploy import doomed as doomed_jobs

UNLIMITED = 1 << 40


class ListedFlow(msgspec.Struct, frozen=True):
    """A flow, and who knows it."""

    flow: str
    version: str
    fingerprint: str
    steps: tuple[str, ...]
    in_app: bool
    workers: int


@click.group(cls=Group)
def flows() -> None:
    """List, draw and compare flows."""


@flows.command("list")
@click.pass_obj
def list_flows(settings: CommandSettings) -> None:
    """List the flows of the app, and those that jobs in the store are pinned to."""
    known = app_flows(settings) if settings.app or settings.default_app else []
    listed = _listed(settings, known)
    rows = [
        (
            each.flow,
            each.version,
            each.fingerprint,
            "yes" if each.in_app else "no",
            each.workers,
            " → ".join(each.steps),
        )
        for each in listed
    ]
    columns = ("flow", "version", "fingerprint", "in app", "workers", "steps")
    show(settings, {"flows": listed}, lambda: print_table(columns, rows))


@flows.command()
@click.argument("flow", required=False)
@click.option(
    "--format",
    "format_name",
    type=click.Choice([each.value for each in DiagramFormat]),
    default="text",
    show_default=True,
    help="How to draw.",
)
@click.option("--executions", is_flag=True, help="Without a flow: draw the life of an execution, not of a job.")
@click.pass_obj
def graph(settings: CommandSettings, flow: str | None, format_name: str, executions: bool) -> None:
    """Draw a flow, or without one the life of a job.

    A flow needs --app.
    """
    if flow is not None and executions:
        raise BadInput("a flow and --executions are both given", hint="give one of them")
    kind = DiagramFormat(format_name)
    if flow is not None:
        drawing = diagram.flow_graph(_chosen(settings, app_flows(settings), flow), kind)
    else:
        drawing = diagram.executions(kind) if executions else diagram.lifecycle(kind)
    data = {"flow": flow, "format": format_name, "diagram": drawing}
    show(settings, data, lambda: print(drawing, end=""))


@flows.command()
@click.pass_obj
def plan(settings: CommandSettings) -> int:
    """List unfinished jobs that the flows of the app would quarantine.

    Needs --app. Run it with the new code before a deploy; nothing is changed. Ends with 7 if there are such jobs.
    """
    registered = {flow.name: flow for flow in app_flows(settings)}
    with opened(settings, read_only=True) as store:
        unfinished = store.jobs(states=UNFINISHED_STATES, limit=UNLIMITED)
        doomed = list(doomed_jobs(store, registered, unfinished))
    strangers = sorted({job.flow for job in unfinished} - set(registered))
    data = {"unfinished": len(unfinished), "would_quarantine": doomed, "unregistered_flows": strangers}
    rows = [(each.job_id, each.flow, each.state, each.reason) for each in doomed]
    show(settings, data, lambda: print_table(("job", "flow", "state", "reason"), rows) if rows else None)
    note(settings, f"{len(doomed)} of {len(unfinished)} unfinished job(s) would be quarantined")
    for name in strangers:
        note(settings, f"flow {name} has unfinished jobs and is not in the app: they wait for a worker that has it")
    return ExitCode.FINDINGS if doomed else ExitCode.OK


def _listed(settings: CommandSettings, known: Sequence[Flow[Any, Any]]) -> list[ListedFlow]:
    definitions, workers = _stored(settings, is_needed=not known)
    for flow in known:
        definitions[flow.fingerprint] = flow.definition
    in_app = {flow.fingerprint for flow in known}
    listed = [
        ListedFlow(
            flow=each.flow,
            version=each.version,
            fingerprint=fingerprint,
            steps=each.steps,
            in_app=fingerprint in in_app,
            workers=sum(each.flow in worker.flows for worker in workers),
        )
        for fingerprint, each in definitions.items()
    ]
    return sorted(listed, key=lambda each: (each.flow, not each.in_app, each.fingerprint))


def _stored(settings: CommandSettings, *, is_needed: bool) -> tuple[dict[str, Definition], list[WorkerRecord]]:
    """What the store knows of flows; a store that is not there yet is no obstacle if the app is."""
    path = database_file(settings)
    if not is_needed and path is not None and not path.exists():
        return {}, []
    with opened(settings, read_only=True) as store:
        encoded = store.definitions()
        return {key: msgspec.json.decode(text, type=Definition) for key, text in encoded.items()}, store.workers()


def _chosen(settings: CommandSettings, known: Sequence[Flow[Any, Any]], name: str) -> Flow[Any, Any]:
    for flow in known:
        if flow.name == name:
            return flow
    raise unknown_flow(settings, name, [flow.name for flow in known])


# --- `holdfast queues …`: how full they are, and who may start ------------------------------------------

COLUMNS = ("queue", "running", "limit", "pending", "paused", "by", "reason")

name_argument = click.argument("name", metavar="NAME")


@click.group(cls=Group)
def queues() -> None:
    """List, pause, resume and limit queues, and see who did.

    The queue without a name, where jobs of flows without a queue are, is shown and given as -.
    """


@queues.command("list")
@click.pass_obj
def list_queues(settings: CommandSettings) -> None:
    """List all queues: how many jobs run and wait, the limit, who paused it and why."""
    with opened(settings, read_only=True) as store:
        found = store.queues()
    show(settings, {"queues": found}, lambda: print_table(COLUMNS, map(_row, found)))


@queues.command()
@name_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown to everybody who asks why nothing starts.")
@click.pass_obj
def pause(settings: CommandSettings, name: str, reason: str) -> None:
    """Start nothing more from a queue; what runs goes on."""
    if not reason.strip():
        raise ReasonRequiredError("pausing a queue needs a reason", hint="say why: others will ask")
    with opened(settings) as store:
        store.pause_queue(_stored_queue(name), actor=settings.actor, reason=reason.strip())
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.pass_obj
def resume(settings: CommandSettings, name: str) -> None:
    """Start jobs from a queue again."""
    with opened(settings) as store:
        store.resume_queue(_stored_queue(name), actor=settings.actor)
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.argument("limit", metavar="N|none")
@click.pass_obj
def limit(settings: CommandSettings, name: str, limit: str) -> None:
    """Set how many jobs of a queue may run at once, over all processes; none lifts the limit.

    It holds from now on, and above what workers are started with. What runs is not stopped.
    """
    if not limit.isdecimal() and limit != "none":
        raise BadInput(f"{limit!r} is not a limit", hint="give a whole number from 0 on, or none")
    with opened(settings) as store:
        store.set_queue(_stored_queue(name), max_running=None if limit == "none" else int(limit), actor=settings.actor)
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@click.pass_obj
def history(settings: CommandSettings, name: str, limit: int) -> None:
    """Show who has paused, resumed or limited a queue, newest first."""
    with opened(settings, read_only=True) as store:
        events = store.queue_history(_stored_queue(name), limit=limit)
    columns = ("at", "who", "what", "from", "to", "reason")
    rows = [(time_of(e.at), e.actor, e.action, e.before, e.after, e.reason) for e in events]
    show(settings, {"queue": _stored_queue(name), "events": events}, lambda: print_table(columns, rows))


def _stored_queue(name: str) -> str:
    """A name can begin only with a letter or digit, so that - is free to stand for none."""
    return "" if name == "-" else name


def _show_one(settings: CommandSettings, store: Store, name: str) -> None:
    found = next((queue for queue in store.queues() if queue.name == _stored_queue(name)), None)
    if found is None:
        raise QueueNotFoundError(name)
    show(settings, {"queue": found}, lambda: print_table(COLUMNS, [_row(found)]))


def _row(queue: QueueRecord) -> tuple[object, ...]:
    limit = "none" if queue.max_running is None else queue.max_running
    paused = time_of(queue.paused_at)
    return (queue.name or "-", queue.running, limit, queue.pending, paused, queue.paused_by, queue.paused_reason)
