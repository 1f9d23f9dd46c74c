"""The heads of journals: the last hash of each job, which stands for its whole history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import msgspec

from holdfast.core.records import JournalEntry
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
