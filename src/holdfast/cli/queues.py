"""`holdfast queues …`: how full they are, and who may start."""

from __future__ import annotations

import click

from holdfast.cli.command import Group
from holdfast.cli.opening import opened
from holdfast.cli.output import print_table, show, time_of
from holdfast.cli.settings import Settings
from holdfast.core.records import QueueRecord
from holdfast.errors import BadInput, QueueNotFoundError, ReasonRequiredError
from holdfast.store.protocol import Store

COLUMNS = ("queue", "running", "limit", "pending", "paused", "by", "reason")

name_argument = click.argument("name", metavar="NAME")


@click.group(cls=Group)
def queues() -> None:
    """List, pause, resume and limit queues, and see who did.

    The queue without a name, where jobs of flows without a queue are, is shown and given as -.
    """


@queues.command("list")
@click.pass_obj
def list_queues(settings: Settings) -> None:
    """List all queues: how many jobs run and wait, the limit, who paused it and why."""
    with opened(settings, read_only=True) as store:
        found = store.queues()
    show(settings, {"queues": found}, lambda: print_table(COLUMNS, map(_row, found)))


@queues.command()
@name_argument
@click.option("--reason", required=True, metavar="TEXT", help="Why; shown to everybody who asks why nothing starts.")
@click.pass_obj
def pause(settings: Settings, name: str, reason: str) -> None:
    """Start nothing more from a queue; what runs goes on."""
    if not reason.strip():
        raise ReasonRequiredError("pausing a queue needs a reason", hint="say why: others will ask")
    with opened(settings) as store:
        store.pause_queue(_stored(name), actor=settings.actor, reason=reason.strip())
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.pass_obj
def resume(settings: Settings, name: str) -> None:
    """Start jobs from a queue again."""
    with opened(settings) as store:
        store.resume_queue(_stored(name), actor=settings.actor)
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.argument("limit", metavar="N|none")
@click.pass_obj
def limit(settings: Settings, name: str, limit: str) -> None:
    """Set how many jobs of a queue may run at once, over all processes; none lifts the limit.

    It holds from now on, and above what workers are started with. What runs is not stopped.
    """
    if not limit.isdecimal() and limit != "none":
        raise BadInput(f"{limit!r} is not a limit", hint="give a whole number from 0 on, or none")
    with opened(settings) as store:
        store.set_queue(_stored(name), max_running=None if limit == "none" else int(limit), actor=settings.actor)
        _show_one(settings, store, name)


@queues.command()
@name_argument
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@click.pass_obj
def history(settings: Settings, name: str, limit: int) -> None:
    """Show who has paused, resumed or limited a queue, newest first."""
    with opened(settings, read_only=True) as store:
        events = store.queue_history(_stored(name), limit=limit)
    columns = ("at", "who", "what", "from", "to", "reason")
    rows = [(time_of(e.at), e.actor, e.action, e.before, e.after, e.reason) for e in events]
    show(settings, {"queue": _stored(name), "events": events}, lambda: print_table(columns, rows))


def _stored(name: str) -> str:
    """A name can begin only with a letter or digit, so that - is free to stand for none."""
    return "" if name == "-" else name


def _show_one(settings: Settings, store: Store, name: str) -> None:
    found = next((queue for queue in store.queues() if queue.name == _stored(name)), None)
    if found is None:
        raise QueueNotFoundError(name)
    show(settings, {"queue": found}, lambda: print_table(COLUMNS, [_row(found)]))


def _row(queue: QueueRecord) -> tuple[object, ...]:
    limit = "none" if queue.max_running is None else queue.max_running
    paused = time_of(queue.paused_at)
    return (queue.name or "-", queue.running, limit, queue.pending, paused, queue.paused_by, queue.paused_reason)
