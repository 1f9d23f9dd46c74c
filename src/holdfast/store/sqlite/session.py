"""One open transaction, as the store's verbs use it: named statements, one time, one batch of journal entries."""

from __future__ import annotations

import sqlite3
from typing import Any

import msgspec

from holdfast.core.chain import GENESIS, entry_hash
from holdfast.core.states import JobState
from holdfast.store.messages import Journaled
from holdfast.store.statements import load_statements

SQL = load_statements("holdfast.store.sqlite")

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> str:
    """A batch as SQLite's JSON functions want it."""
    return _encode(value).decode()


class Session:
    """A write transaction of the store. Entries given to `journal` are appended, in order, when it ends."""

    __slots__ = ("_entries", "changed_work", "connection", "now")

    def __init__(self, connection: sqlite3.Connection, now: int) -> None:
        self.connection = connection
        self.now = now
        self.changed_work = False
        self._entries: list[Journaled] = []

    def run(self, statement: str, **parameters: Any) -> sqlite3.Cursor:
        """Execute a statement of queries.sql by its name."""
        return self.connection.execute(SQL[statement], parameters)

    def first(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or None; the statement is run to its end."""
        rows = self.run(statement, **parameters).fetchall()
        return rows[0][0] if rows else None

    def journal(self, entry: Journaled) -> None:
        """Have this change journaled in the transaction that makes it."""
        self._entries.append(entry)

    def journal_mark(self) -> int:
        """Where the journal of this transaction stands, for drop_journal_after."""
        return len(self._entries)

    def drop_journal_after(self, mark: int) -> None:
        """Forget the entries of changes that were taken back."""
        del self._entries[mark:]

    def flush_journal(self) -> None:
        """Chain the entries to what is there: one statement reads the heads, one adds the rows."""
        if not self._entries:
            return
        # A job that became pending or ended is news to workers and waiters.
        self.changed_work |= any(entry.job_to != JobState.RUNNING for entry in self._entries)
        jobs = list({entry.job_id for entry in self._entries})
        heads: dict[str, tuple[int, str]] = {
            job_id: (seq, head) for job_id, seq, head in self.run("journal_heads", batch=to_json(jobs))
        }
        rows = []
        for e in self._entries:
            seq, prev_hash = heads.get(e.job_id, (0, GENESIS))
            seq += 1
            content = (
                e.job_id, seq, self.now, e.actor, e.exec_id, e.job_from, e.job_to, e.exec_from, e.exec_to,
                e.step, e.reason, e.metadata,
            )  # fmt: skip
            new_hash = entry_hash(prev_hash, *content)
            heads[e.job_id] = (seq, new_hash)
            rows.append((*content, prev_hash, new_hash))
        self.run("insert_journal", batch=to_json(rows))
        self._entries.clear()
