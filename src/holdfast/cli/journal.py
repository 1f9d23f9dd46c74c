"""The heads of journals: the last hash of each job, which stands for its whole history."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from holdfast.cli.command import CommandSettings, ExitCode, Group
from holdfast.cli.context import opened, opened_client
from holdfast.cli.job import JOURNAL_COLUMNS, journal_row
from holdfast.cli.output import cell, note, print_json, print_lines, print_table, show, written_whole
from holdfast.core.hash_chain import chain_faults
from holdfast.core.records import JournalEntry
from holdfast.core.retry import time_given
from holdfast.core.states import JobState
from holdfast.errors import BadInput
from holdfast.store.protocol import Store


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last entry of a job's journal. Of a pruned job only the hash is left."""

    job_id: str
    hash: str
    seq: int | None = None
    at: int | None = None
    state: str | None = None
    pruned: bool = False

    @classmethod
    def of(cls, entry: JournalEntry) -> Head:
        """The head of a journal that ends with this entry."""
        return cls(job_id=entry.job_id, hash=entry.hash, seq=entry.seq, at=entry.at, state=entry.job_to)

    @property
    def is_final(self) -> bool:
        """Can nothing be added after it?"""
        return self.pruned or self.state == JobState.SUCCEEDED


def heads_of(store: Store) -> Iterator[Head]:
    """The heads of all jobs, pruned ones last."""
    for _, chain in groupby(store.journal(), key=lambda entry: entry.job_id):
        *_, last = chain
        yield Head.of(last)
    for job_id, head in store.pruned_heads().items():
        yield Head(job_id=job_id, hash=head, pruned=True)


def read_heads(path: Path) -> dict[str, Head]:
    """Exported heads by job; BadInput if the file is something else."""
    heads = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            head = msgspec.json.decode(line, type=Head)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "it should come from: holdfast journal export --heads"
            raise BadInput(f"{path}, line {number}: not an exported head: {error}", hint=hint) from None
        heads[head.job_id] = head
    return heads


def compare_heads(exported: Head, entries: Sequence[JournalEntry]) -> Iterator[str]:
    """What has happened to a journal since its head was exported, other than growing."""
    where = f"job {exported.job_id}"
    if exported.seq is None:
        yield f"{where}: was pruned when its head was exported, and is there again"
        return
    then = next((entry for entry in entries if entry.seq == exported.seq), None)
    if then is None:
        yield f"{where}: entry {exported.seq} was exported and is gone; {len(entries)} entries are left"
    elif then.hash != exported.hash:
        yield f"{where}: entry {exported.seq} is not the one that was exported"
    elif exported.is_final and len(entries) > exported.seq:
        yield f"{where}: entries were added after it had succeeded"


# --- `holdfast journal …`: the audit trail, shown, proved and taken away to a safe place ----------------

Record = TypeVar("Record")


@click.group(cls=Group)
def journal() -> None:
    """Show, verify and export the journal."""


@journal.command("show")
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option(
    "--since",
    metavar="TIME",
    callback=lambda _context, _parameter, value: None if value is None else time_given(value, "--since"),
    help="Only from then on: 2h, 30m or 7d ago, a date, or a date and a time, which is UTC unless it says otherwise.",
)
@click.option("--actor", metavar="NAME", help="Only what this actor did, named as it is shown or stored.")
@click.option("--flow", metavar="NAME", help="Only changes of jobs of this flow.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new entries as they are committed, until interrupted.")
@click.pass_obj
def show_journal(
    settings: CommandSettings,
    job_id: str | None,
    since: int | datetime | timedelta | None,
    actor: str | None,
    flow: str | None,
    follow: bool,
) -> None:
    """Show every change of a job, or of all: who, when, from, to, why.

    With --follow each entry is one line, with --json one object on a line; without JOB and --since it begins with what
    is new. Ctrl-C ends it, and is no error. Here --actor is whose changes are shown: who looks needs no name.
    """
    with opened_client(settings, read_only=True) as client:
        job_id = client.store.full_job_id(job_id) if job_id else None
        if follow:
            _print_new(settings, client.follow_journal(job_id, since=since, actor=actor, flow=flow))
            return
        entries = client.journal(job_id, since=since, actor=actor, flow=flow)
    data = {"job_id": job_id, "entries": entries}
    columns, row = (JOURNAL_COLUMNS, journal_row) if job_id else (("of job", *JOURNAL_COLUMNS), _row_of_any)
    show(settings, data, lambda: print_table(columns, map(row, entries)))


def _print_new(settings: CommandSettings, entries: Iterator[JournalEntry]) -> None:
    try:
        with _ended(entries):
            for entry in entries:
                if settings.json:
                    print_json(entry)
                else:
                    print("  ".join(map(cell, _row_of_any(entry))))
                sys.stdout.flush()
    except KeyboardInterrupt:
        pass  # the only way to end it


def _row_of_any(entry: JournalEntry) -> tuple[object, ...]:
    return (entry.job_id, *journal_row(entry))


@journal.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option(
    "--heads",
    "heads_file",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Compare with heads exported earlier: finds ends that were cut off, and chains that were written anew.",
)
@click.pass_obj
def verify(settings: CommandSettings, job_id: str | None, heads_file: Path | None) -> int:
    """Verify the hash chain of one job, or of all.

    Nothing is changed. Ends with 7 if an entry was edited, moved or removed.
    """
    exported = read_heads(heads_file) if heads_file else {}
    missing = dict(exported) if job_id is None else {each: head for each, head in exported.items() if each == job_id}
    faults: list[str] = []
    jobs = entries = 0
    with (
        opened(settings, read_only=True) as store,
        _ended(store.journal() if job_id is None else iter(_entries(store, job_id))) as chosen,
    ):
        for each, chain in groupby(chosen, key=lambda entry: entry.job_id):
            listed = list(chain)
            jobs, entries = jobs + 1, entries + len(listed)
            faults += chain_faults(listed)
            head = missing.pop(each, None)
            if head is not None:
                faults += compare_heads(head, listed)
        faults += _gone(store, missing)
    data = {"jobs": jobs, "entries": entries, "faults": faults}
    show(settings, data, lambda: print_lines(faults))
    note(settings, f"{len(faults)} fault(s) in {entries} entries of {jobs} job(s)")
    return ExitCode.FINDINGS if faults else ExitCode.OK


@journal.command()
@click.option("--heads", "heads_only", is_flag=True, help="Only the last hash of each job, also of pruned ones.")
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Into this file, whole or not at all; an older one is replaced.",
)
@click.pass_obj
def export(settings: CommandSettings, heads_only: bool, output: Path | None) -> None:
    """Write the journal of all jobs as JSON lines.

    Keep exported heads where nobody who can write the database can write: `journal verify --heads` compares.
    """
    with (
        opened(settings, read_only=True) as store,
        _ended(heads_of(store) if heads_only else store.journal()) as records,
    ):
        lines = (msgspec.json.encode(record) + b"\n" for record in records)
        if output is None:
            for line in lines:
                print(line.decode(), end="")
            return
        with written_whole(output) as file:
            count = sum(1 for line in lines if file.write(line))
    if settings.json:
        print_json({"output": str(output), "lines": count})
    note(settings, f"wrote {count} lines to {output}")


@contextmanager
def _ended(records: Iterator[Record]) -> Iterator[Iterator[Record]]:
    """Ends the reading when it is broken off, too: before the store is closed, not some time after."""
    try:
        yield records
    finally:
        close = getattr(records, "close", None)
        if close is not None:
            close()


def _entries(store: Store, job_id: str) -> list[JournalEntry]:
    entries = list(store.journal(job_id))
    if not entries:
        store.job(job_id)
    return entries


def _gone(store: Store, missing: Mapping[str, Head]) -> Iterator[str]:
    """Jobs that were exported and have no journal any more, and were not pruned either."""
    pruned = store.pruned_heads() if missing else {}
    for job_id, head in missing.items():
        if job_id not in pruned:
            yield f"job {job_id}: its journal of {head.seq or 'some'} entries is gone"
        elif head.is_final and pruned[job_id] != head.hash:
            yield f"job {job_id}: was pruned with another head than was exported"
