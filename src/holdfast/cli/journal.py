"""`holdfast journal …`: the audit trail, shown, proved and taken away to a safe place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import click
import msgspec

from holdfast.cli.command import Group
from holdfast.cli.exits import ExitCode
from holdfast.cli.files import written_whole
from holdfast.cli.heads import Head, compare_heads, heads_of, read_heads
from holdfast.cli.job import JOURNAL_COLUMNS, journal_row
from holdfast.cli.opening import opened
from holdfast.cli.output import note, print_json, print_lines, print_table, show
from holdfast.cli.settings import Settings
from holdfast.core.chain import chain_faults
from holdfast.core.records import JournalEntry
from holdfast.store.protocol import Store


@click.group(cls=Group)
def journal() -> None:
    """Show, verify and export the journal."""


@journal.command("show")
@click.argument("job_id", metavar="JOB")
@click.pass_obj
def show_journal(settings: Settings, job_id: str) -> None:
    """Show every change of a job: who, when, from, to, why."""
    with opened(settings, read_only=True) as store:
        entries = _entries(store, job_id)
    data = {"job_id": job_id, "entries": entries}
    show(settings, data, lambda: print_table(JOURNAL_COLUMNS, map(journal_row, entries)))


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
def verify(settings: Settings, job_id: str | None, heads_file: Path | None) -> int:
    """Verify the hash chain of one job, or of all.

    Nothing is changed. Ends with 7 if an entry was edited, moved or removed.
    """
    exported = read_heads(heads_file) if heads_file else None
    faults: list[str] = []
    current: dict[str, Head] = {}
    entries = 0
    with opened(settings, read_only=True) as store:
        chosen = store.journal() if job_id is None else _entries(store, job_id)
        for each, chain in groupby(chosen, key=lambda entry: entry.job_id):
            listed = list(chain)
            entries += len(listed)
            faults += chain_faults(listed)
            wanted = exported.get(each) if exported else None
            if wanted is not None:
                faults += compare_heads(wanted, listed)
            current[each] = Head.of(listed[-1])
        if exported is not None:
            faults += _gone(store, exported, current, job_id)
    data = {"jobs": len(current), "entries": entries, "faults": faults}
    show(settings, data, lambda: print_lines(faults))
    note(settings, f"{len(faults)} fault(s) in {entries} entries of {len(current)} job(s)")
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
def export(settings: Settings, heads_only: bool, output: Path | None) -> None:
    """Write the journal of all jobs as JSON lines.

    Keep exported heads where nobody who can write the database can write: `journal verify --heads` compares.
    """
    with opened(settings, read_only=True) as store:
        records: Iterator[msgspec.Struct] = heads_of(store) if heads_only else store.journal()
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


def _entries(store: Store, job_id: str) -> list[JournalEntry]:
    entries = list(store.journal(job_id))
    if not entries:
        store.job(job_id)
    return entries


def _gone(store: Store, exported: dict[str, Head], current: dict[str, Head], job_id: str | None) -> Iterator[str]:
    """Jobs that were exported and have no journal any more, and were not pruned either."""
    pruned = store.pruned_heads()
    for each, head in exported.items():
        if each in current or (job_id is not None and each != job_id):
            continue
        if each not in pruned:
            yield f"job {each}: its journal of {head.seq or 'some'} entries is gone"
        elif head.is_final and pruned[each] != head.hash:
            yield f"job {each}: was pruned with another head than was exported"
