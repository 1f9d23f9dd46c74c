"""One open transaction, as the store's verbs use it: named statements, one time, one batch of journal entries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

import msgspec

from holdfast.core.chain import GENESIS, entry_hash
from holdfast.core.ending import EndCode
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.store.messages import Journaled

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

_PLAIN: dict[str, str] = {member: member.value for kind in (JobState, ExecutionStatus, EndCode) for member in kind}
"""Members of enumerations as plain text: sqlite3 looks for an adapter for all else, and finds none every time."""


def to_json(value: object) -> str:
    """A batch as the JSON functions of the database want it."""
    return _encode(value).decode()


def without_nul(text: str) -> str:
    """The text with NUL characters made visible: no database keeps them in a text."""
    return text.replace("\0", "␀")


class Rows(Protocol):
    """The answer of a statement."""

    @property
    def description(self) -> Any:
        """The columns, each beginning with its name."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The rows that have not been fetched."""
        ...

    def fetchone(self) -> Any:
        """The next row, or None."""
        ...

    def fetchall(self) -> list[Any]:
        """All rows."""
        ...

    def close(self) -> None:
        """Read no more of them."""
        ...


class Connection(Protocol):
    """As much of a database connection as the verbs need."""

    @property
    def in_transaction(self) -> bool:
        """Is a transaction open?"""
        ...

    def execute(self, sql: Any, parameters: Any = ..., /) -> Rows:
        """Run one statement."""
        ...


class Session:
    """A transaction of the store. Entries given to `journal` are appended, in order, when it ends."""

    __slots__ = ("_entries", "_sql", "changed_work", "connection", "now")

    def __init__(self, connection: Connection, sql: Mapping[str, str], now: int) -> None:
        self.connection = connection
        self.now = now
        self._sql = sql
        self.changed_work = False
        self._entries: list[Journaled] = []

    def run(self, statement: str, **parameters: Any) -> Rows:
        """Execute a statement of queries.sql by its name."""
        return self.connection.execute(self._sql[statement], parameters)

    def run_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> None:
        """Execute a statement for all these rows."""
        self.run(statement, batch=to_json(rows), **parameters)

    def fetch_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> list[Any]:
        """The same for a statement that returns something."""
        return self.run(statement, batch=to_json(rows), **parameters).fetchall()

    def first(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or None; the statement is run to its end."""
        rows = self.run(statement, **parameters).fetchall()
        return rows[0][0] if rows else None

    def select_jobs(self, where: Mapping[str, str], states: Collection[JobState], limit: int) -> Rows:
        """Jobs whose columns have these values and that are in one of these states, if any are given, newest first."""
        conditions = [f"{column} = :{column}" for column in where]
        if states:
            quoted = ", ".join(f"'{JobState(state)}'" for state in sorted(states))
            conditions.append(f"state IN ({quoted})")
            if JobState.SUCCEEDED not in states:
                conditions.append("state <> 'succeeded'")  # lets the index of unsettled jobs be used
        sql = f"SELECT * FROM jobs WHERE {' AND '.join(conditions) or 'true'} ORDER BY job_id DESC LIMIT :limit"  # noqa: S608
        return self.connection.execute(self.in_dialect(sql), {**where, "limit": limit})

    def in_dialect(self, sql: str) -> str:
        """A statement with `:name` parameters as this database wants it."""
        return sql

    def lock_jobs(self, job_ids: Iterable[str]) -> None:
        """Keep others from changing these jobs until the end of the transaction, where that is not so anyway."""
        if "lock_jobs" in self._sql:
            self.run("lock_jobs", batch=to_json(sorted(set(job_ids))))

    def lock_queues(self) -> Rows | None:
        """The limited queues whose free slots nobody else counts until the end; None where nobody could anyway."""
        return self.run("lock_queues") if "lock_queues" in self._sql else None

    def is_open(self) -> bool:
        """Is the transaction still there? A statement of the user's may have ended it."""
        return bool(self.connection.in_transaction)

    def is_lost_connection(self, _error: BaseException) -> bool:
        """Does this error of an effect mean that the connection is gone, though it may not show yet?"""
        return False

    def running_effects(self) -> AbstractContextManager[None]:
        """Inside, the user's code runs and may use the transaction."""
        return nullcontext()

    def begin_effect(self) -> None:
        """What the user's code writes from here on can be taken back on its own."""
        self.connection.execute("SAVEPOINT effect")

    def keep_effect(self) -> None:
        """Make it a part of the transaction."""
        self.connection.execute("RELEASE effect")

    def undo_effect(self) -> None:
        """Take it back."""
        self.connection.execute("ROLLBACK TO effect")
        self.connection.execute("RELEASE effect")

    def execute_effect(self, sql: str, parameters: Any) -> Rows:
        """Run one statement of the user's; if it fails, what the effect has done before still stands."""
        return self.connection.execute(sql, parameters)

    def execute_effect_many(self, sql: str, parameters: Any) -> Rows | None:
        """Run one statement of the user's for each set of parameters."""
        rows: Rows | None = None
        for one in parameters:
            rows = self.connection.execute(sql, one)
        return rows

    def submit_in_effect(self, submit: Callable[[], T]) -> T:
        """Run statements of the store's own in the midst of the user's."""
        return submit()

    def journal(self, entry: Journaled) -> None:
        """Have this change journaled in the transaction that makes it."""
        if "\0" in entry.reason:
            entry = msgspec.structs.replace(entry, reason=without_nul(entry.reason))
        self._entries.append(entry)

    def expect_journal(self, job_ids: Iterable[str]) -> None:
        """These jobs, which nobody else can change meanwhile, are going to be journaled; for who can ask ahead."""

    def journal_heads(self, job_ids: Sequence[str]) -> Iterable[tuple[str, int, str]]:
        """The last entry of each job that has one: job, number, hash."""
        return self.run("journal_heads", batch=to_json(job_ids))

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
        # Before the entry that a job begins with there is none.
        new = {entry.job_id for entry in self._entries if entry.job_from is None}
        jobs = list({entry.job_id for entry in self._entries} - new)
        rows_of_heads = self.journal_heads(jobs) if jobs else ()
        heads: dict[str, tuple[int, str]] = {job_id: (seq, head) for job_id, seq, head in rows_of_heads}
        rows = []
        plain: Callable[[Any, Any], Any] = _PLAIN.get
        for e in self._entries:
            seq, prev_hash = heads.get(e.job_id, (0, GENESIS))
            seq += 1
            content = (
                e.job_id, seq, self.now, e.actor, e.exec_id, plain(e.job_from, e.job_from), plain(e.job_to, e.job_to),
                plain(e.exec_from, e.exec_from), plain(e.exec_to, e.exec_to), e.step, plain(e.reason, e.reason),
                e.metadata,
            )  # fmt: skip
            new_hash = entry_hash(prev_hash, *content)
            heads[e.job_id] = (seq, new_hash)
            rows.append((*content, prev_hash, new_hash))
        self.run_rows("insert_journal", rows)
        self._entries.clear()
