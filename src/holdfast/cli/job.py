"""`holdfast job …`: one job, looked at and steered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from holdfast.cli.command import CommandSettings, ExitCode, Group
from holdfast.cli.context import load_flows, opened, opened_client
from holdfast.cli.output import (
    cell,
    job_data,
    note,
    print_fields,
    print_indented,
    print_table,
    raw,
    show,
    step_of,
    time_of,
)
from holdfast.client import Client
from holdfast.core.flow import Flow
from holdfast.core.progress import CurrentStep
from holdfast.core.records import ErrorRecord, ExecutionRecord, JobRecord, JobResult, JournalEntry, StepRecord
from holdfast.core.states import JobState
from holdfast.core.values import label_of
from holdfast.errors import BadInput, SettingsError
from holdfast.store.journal import result_of
from holdfast.store.protocol import Store

JOURNAL_TAIL = 10

job_argument = click.argument("job_id", metavar="JOB")
"""An id, or as much of its beginning as no other job has."""
reason_option = click.option("--reason", required=True, metavar="TEXT", help="Why; it goes into the journal.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Show the state it would be in, and change nothing.")


@click.group(cls=Group)
def job() -> None:
    """Look at one job, and steer it."""


# --- looking ---------------------------------------------------------------------------------------------


@job.command("show")
@job_argument
@click.option(
    "--journal",
    "entries",
    type=click.IntRange(0),
    default=JOURNAL_TAIL,
    show_default=True,
    metavar="N",
    help="How many of the last journal entries to show.",
)
@click.pass_obj
def show_job(settings: CommandSettings, job_id: str, entries: int) -> None:
    """Show a job: request, response, steps, executions, children, the end of its journal."""
    with opened(settings, read_only=True) as store:
        record = store.job(store.full_job_id(job_id))
        data = _everything(store, record, entries)
    show(settings, data, lambda: _print_everything(record, data))


@job.command()
@job_argument
@click.pass_obj
def explain(settings: CommandSettings, job_id: str) -> None:
    """Say why a job is where it is: a stable code, and a sentence.

    With --app it also knows how many tries a step is allowed.
    """
    with opened_client(settings, read_only=True, flows=_flows_if_possible(settings)) as client:
        explanation = client.explain(client.store.full_job_id(job_id))
    show(settings, explanation, lambda: print(f"{explanation.code}: {cell(explanation.sentence)}"))


@job.command()
@job_argument
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Wait no longer than this.")
@click.pass_obj
def wait(settings: CommandSettings, job_id: str, timeout: float | None) -> int:
    """Wait for the end of a job and print its response; fail if it did not succeed."""
    with opened_client(settings, read_only=True) as client:
        result = client.wait(client.store.full_job_id(job_id), timeout)
    show(settings, result_data(result), lambda: print_result(settings, result))
    return ExitCode.OK if result.state is JobState.SUCCEEDED else ExitCode.FAILURE


# --- steering --------------------------------------------------------------------------------------------


@job.command()
@job_argument
@reason_option
@dry_run_option
@click.pass_obj
def retry(settings: CommandSettings, job_id: str, reason: str, dry_run: bool) -> None:
    """Try a failed job again, with a fresh budget of attempts."""
    _act(settings, job_id, Client.retry, reason=reason, dry_run=dry_run)


@job.command()
@job_argument
@reason_option
@click.option("--keep-children", is_flag=True, help="Let its unfinished children go on.")
@dry_run_option
@click.pass_obj
def cancel(settings: CommandSettings, job_id: str, reason: str, keep_children: bool, dry_run: bool) -> None:
    """End a job as failed, after its cleanup, and its unfinished children with it.

    A job that runs is ended by its worker as soon as its step reaches a safe point.
    """
    _act(settings, job_id, Client.cancel, reason=reason, children=not keep_children, dry_run=dry_run)


@job.command()
@job_argument
@reason_option
@dry_run_option
@click.pass_obj
def release(settings: CommandSettings, job_id: str, reason: str, dry_run: bool) -> None:
    """Let a quarantined job go on, with a fresh budget of attempts."""
    _act(settings, job_id, Client.release, reason=reason, dry_run=dry_run)


@job.command()
@job_argument
@reason_option
@click.option(
    "--delay", type=click.FloatRange(0), metavar="SECONDS", help="Start no earlier than in so long; 0 is now."
)
@click.option("--priority", type=int, metavar="N", help="Higher goes first.")
@click.option("--queue", metavar="NAME", help="Another queue; - is the queue without a name.")
@click.pass_obj
def reschedule(
    settings: CommandSettings, job_id: str, reason: str, delay: float | None, priority: int | None, queue: str | None
) -> None:
    """Give a pending job another start, priority or queue; what is not given stays as it is."""
    if delay is None and priority is None and queue is None:
        raise BadInput("nothing is given to be changed", hint="give --delay, --priority or --queue")
    with opened_client(settings) as client:
        job_id = client.store.full_job_id(job_id)
        name = "" if queue == "-" else queue
        client.reschedule(job_id, reason=reason, delay=delay, priority=priority, queue=name)
        record = client.store.job(job_id)
    show(settings, {"job": job_data(record)}, lambda: _print_place(record))


@job.command()
@job_argument
@click.argument("state_name", metavar="STATE", type=click.Choice([state.value for state in JobState]))
@reason_option
@click.option("--dry-run", is_flag=True, help="Show the way through the states, and change nothing.")
@click.pass_obj
def force(settings: CommandSettings, job_id: str, state_name: str, reason: str, dry_run: bool) -> None:
    """Put a job into another state, at once and without cleanup, through legal transitions only.

    Success cannot be forced: only a commit makes a job succeed.
    """
    with opened_client(settings) as client:
        job_id = client.store.full_job_id(job_id)
        path = client.force(job_id, JobState(state_name), reason=reason, dry_run=dry_run)
    data = {"job_id": job_id, "path": path, "dry_run": dry_run}
    show(settings, data, lambda: print(" → ".join(path)))
    if dry_run:
        note(settings, "nothing was changed")


def _flows_if_possible(settings: CommandSettings) -> list[Flow[Any, Any]]:
    try:
        return load_flows(settings.app) if settings.app else []
    except SettingsError as error:
        note(settings, f"going on without the app: {error}")
        return []


# --- shared ----------------------------------------------------------------------------------------------


def result_data(result: JobResult) -> dict[str, Any]:
    """A result as JSON; the response is part of it, not a text in it."""
    return {**msgspec.structs.asdict(result), "response": raw(result.response)}


def print_result(settings: CommandSettings, result: JobResult) -> None:
    """The response on stdout; how else it ended on stderr."""
    if result.state is JobState.SUCCEEDED:
        print(result.response)
    else:
        note(settings, f"job {result.job_id} is {result.state}: {result.reason or 'no reason recorded'}")
        if result.error is not None and result.error.hint is not None:
            note(settings, f"hint: {result.error.hint}")


def _act(
    settings: CommandSettings, job_id: str, act: Callable[..., JobState], *, dry_run: bool, **given: object
) -> None:
    with opened_client(settings) as client:
        job_id = client.store.full_job_id(job_id)
        planned = act(client, job_id, dry_run=dry_run, **given)
        record = client.store.job(job_id)
    state = planned if dry_run else record.state
    data = {"job_id": job_id, "state": state, "cancel_reason": record.cancel_reason, "dry_run": dry_run}
    show(settings, data, lambda: print(state))
    if dry_run:
        note(settings, "nothing was changed")
    elif record.cancel_reason is not None:
        note(settings, "it will be ended as soon as a worker has run its cleanup")


def _print_place(record: JobRecord) -> None:
    fields = [
        ("queue", record.queue or "-"),
        ("priority", record.priority),
        ("not before", time_of(record.not_before)),
        ("waits for", record.waits_for),
    ]
    print_fields(fields)


def _everything(store: Store, record: JobRecord, entries: int) -> dict[str, Any]:
    job_id = record.job_id
    journal = list(store.journal(job_id))
    return {
        "job": job_data(record),
        "request": raw(store.request(job_id)),
        "result": result_data(result_of(store, job_id)),
        "steps": [{**msgspec.structs.asdict(step), "response": raw(step.response)} for step in store.steps(job_id)],
        "current": next(iter(store.running([job_id])), None),
        "executions": [_execution_data(execution) for execution in store.executions(job_id)],
        "children": store.children(job_id),
        "journal": journal[-entries:] if entries else [],
        "journal_entries": len(journal),
    }


def _execution_data(execution: ExecutionRecord) -> dict[str, Any]:
    """An execution as JSON; what its step reported and its error are part of it, not texts in it."""
    data = {"progress": raw(execution.progress), "failure": raw(execution.failure)}
    return {**msgspec.structs.asdict(execution), **data}


def _print_everything(record: JobRecord, data: dict[str, Any]) -> None:
    current: CurrentStep | None = data["current"]
    error: ErrorRecord | None = data["result"]["error"]
    print_fields(
        [
            ("job", record.job_id),
            ("flow", f"{record.flow} ({record.fingerprint})"),
            ("state", record.state),
            ("key", record.key),
            ("queue", record.queue or "-"),
            ("priority", record.priority or None),
            ("parent", record.parent),
            ("run after", record.run_after),
            ("waits for", record.waits_for),
            ("not before", time_of(record.not_before)),
            ("step", step_of(current)),
            ("in it since", time_of(current.since) if current else None),
            ("worker", label_of(current.worker) if current else None),
            ("attempts", record.attempts),
            ("failures", f"{record.failures - record.failures_forgiven} of {record.failure_limit}"),
            ("crashes", f"{record.crashes - record.crashes_forgiven} of {record.crash_limit}"),
            ("created", time_of(record.created_at)),
            ("updated", time_of(record.updated_at)),
            ("to be cancelled", record.cancel_reason),
            ("reason", data["result"]["reason"]),
            ("hint", error.hint if error else None),
            ("request", _text(data["request"])),
            ("response", _text(data["result"]["response"])),
        ]
    )
    _section("steps", ("#", "step", "tries", "finished", "seconds"), map(_step_row, data["steps"]))
    columns = ("#", "status", "means", "owner", "code", "error")
    _section("executions", columns, map(_execution_row, data["executions"]))
    _print_traceback(data["executions"])
    children = ((child.name, child.job_id, child.flow, child.state) for child in data["children"])
    _section("children", ("name", "job", "flow", "state"), children)
    title = f"journal (the last {len(data['journal'])} of {data['journal_entries']} entries)"
    _section(title, JOURNAL_COLUMNS, map(journal_row, data["journal"]))


def _print_traceback(executions: list[dict[str, Any]]) -> None:
    """Of the last execution that left one; --json has them all."""
    traced = [execution for execution in executions if execution["traceback"]]
    if traced:
        print(f"\ntraceback (of execution {traced[-1]['attempt']})")
        print_indented(traced[-1]["traceback"])


def _section(title: str, columns: tuple[str, ...], rows: Any) -> None:
    listed = list(rows)
    if listed:
        print(f"\n{title}")
        print_table(columns, listed)


def _text(value: msgspec.Raw | str | None) -> str | None:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else value


def _step_row(step: dict[str, Any]) -> tuple[object, ...]:
    record = msgspec.convert({**step, "response": ""}, StepRecord)
    seconds = (record.finished_at - record.started_at) / 1000
    return (record.position + 1, record.step, record.tries, time_of(record.finished_at), f"{seconds:.3f}")


def _execution_row(execution: dict[str, Any]) -> tuple[object, ...]:
    names = ("attempt", "status", "disposition", "lease_owner", "code", "error")
    number, status, means, owner, code, error = (execution[name] for name in names)
    return (number, status, means, label_of(owner), code, error)


JOURNAL_COLUMNS = ("#", "at", "who", "job", "execution", "step", "reason")


def journal_row(entry: JournalEntry) -> tuple[object, ...]:
    """An entry of the journal as a row of a table."""
    changed = f"{entry.exec_from or ''} → {entry.exec_to}" if entry.exec_to else None
    return (
        entry.seq,
        time_of(entry.at),
        label_of(entry.actor),
        f"{entry.job_from or ''} → {entry.job_to}".lstrip(),
        changed.lstrip() if changed else None,
        entry.step,
        entry.reason,
    )
