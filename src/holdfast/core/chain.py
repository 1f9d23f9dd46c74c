"""The journal's hash chain: each entry's hash covers its content and the hash before it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import msgspec

from holdfast.core.records import JournalEntry

GENESIS = ""
"""What the first entry of a job has in the place of a previous hash."""

_encode = msgspec.json.Encoder().encode


def entry_hash(
    prev_hash: str,
    job_id: str,
    seq: int,
    at: int,
    actor: str,
    exec_id: str | None,
    job_from: str | None,
    job_to: str,
    exec_from: str | None,
    exec_to: str | None,
    step: str | None,
    reason: str,
    metadata: str,
) -> str:
    """The hash of one entry with this content."""
    content = _encode(
        (prev_hash, job_id, seq, at, actor, exec_id, job_from, job_to, exec_from, exec_to, step, reason, metadata)
    )
    return hashlib.sha256(content).hexdigest()


def hash_of(entry: JournalEntry) -> str:
    """The hash this entry should carry."""
    return entry_hash(
        entry.prev_hash,
        entry.job_id,
        entry.seq,
        entry.at,
        entry.actor,
        entry.exec_id,
        entry.job_from,
        entry.job_to,
        entry.exec_from,
        entry.exec_to,
        entry.step,
        entry.reason,
        entry.metadata,
    )


def chain_faults(entries: Iterable[JournalEntry]) -> Iterator[str]:
    """Every fault in one job's journal, given in order of seq: edits, gaps, breaks."""
    expected_seq, prev_hash, prev_state = 1, GENESIS, None
    for entry in entries:
        where = f"job {entry.job_id} entry {entry.seq}"
        if entry.seq != expected_seq:
            yield f"{where}: expected entry {expected_seq}, so entries are missing"
        elif entry.prev_hash != prev_hash:
            yield f"{where}: does not follow the entry before it"
        elif entry.job_from != prev_state:
            yield f"{where}: starts from {entry.job_from}, but the job was {prev_state}"
        if entry.hash != hash_of(entry):
            yield f"{where}: its content was changed after it was written"
        expected_seq, prev_hash, prev_state = entry.seq + 1, entry.hash, entry.job_to
