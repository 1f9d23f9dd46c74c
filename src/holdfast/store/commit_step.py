"""The commit step inside the transaction of its write: its effect, what ends it, and errors that will pass."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from typing import Any

from holdfast.core.step import TryFailed
from holdfast.errors import BadInput, StoreError, StoreReadOnly, StoreUnavailable
from holdfast.store.commands import Commit, NewJob, Submitted
from holdfast.store.session import ResultRows, Session
from holdfast.store.submit import submit

PASSING_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ENOBUFS})


def is_passing(error: BaseException) -> bool:
    """Does waiting help? A place that is wrong, damaged or not ours to write stays so."""
    if isinstance(error, StoreUnavailable):
        return True
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in PASSING_ERRNOS:
            return True
        cause = cause.__cause__
    # SQLite says only that it cannot open the file, not why.
    return isinstance(error, StoreReadOnly) and _has_no_descriptors()


def _has_no_descriptors() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in PASSING_ERRNOS
    return False


# --- What a commit step writes through: inside the transaction of its batch, and never outside of it ----


class EffectEndedTransaction(Exception):
    """An effect made the database give up the whole transaction, and the batch with it."""

    def __init__(self, write: Commit, error: Exception, cause: BaseException) -> None:
        super().__init__(str(error))
        self.write = write
        self.error = error
        self.cause = cause


class EffectRows:
    """The answer of a statement of an effect. The connection behind it is out of reach, and it ends with the effect."""

    __slots__ = ("_rows", "_transaction")

    def __init__(self, transaction: EffectTransaction, rows: ResultRows) -> None:
        self._transaction = transaction
        self._rows = rows

    @property
    def description(self) -> Any:
        """The columns, each beginning with its name."""
        return self._rows.description

    @property
    def rowcount(self) -> int:
        """How many rows the statement has changed, or returned."""
        return int(self._rows.rowcount)

    @property
    def lastrowid(self) -> Any:
        """The id of the row inserted last, where the database has one."""
        return getattr(self._rows, "lastrowid", None)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    def fetchone(self) -> Any:
        """The next row, or None."""
        # A row that is computed while it is fetched may meet a full disk, too.
        with self._transaction.watched():
            return self._rows.fetchone()

    def fetchmany(self, size: int = 1) -> list[Any]:
        """The next rows, at most so many."""
        with self._transaction.watched():
            return self._rows.fetchmany(size)

    def fetchall(self) -> list[Any]:
        """All rows that are left."""
        with self._transaction.watched():
            return self._rows.fetchall()

    def close(self) -> None:
        """Read no more of them."""
        self._rows.close()


class _Watched:
    """One use of the transaction. Notices that the database has ended it, whoever catches the error."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: EffectTransaction) -> None:
        self._transaction = transaction

    def __enter__(self) -> None:
        self._transaction.lock.acquire()
        try:
            self._transaction.refuse_if_over()
        except BaseException:
            self._transaction.lock.release()
            raise

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._transaction.look(error)
        finally:
            self._transaction.lock.release()


class EffectTransaction:
    """What a commit step writes through. A savepoint is set at its first use, so unused ones cost nothing."""

    def __init__(self, session: Session, write: Commit, actor: str) -> None:
        self._session = session
        self.dialect = session.dialect
        self._write = write
        self._actor = actor
        self._savepoint = False
        self._over = False
        self._ended_by: BaseException | None = None
        self._postponed_by: Exception | None = None
        self._rows: list[ResultRows] = []
        # A step may have threads of its own, and leave one behind: it is inside the transaction, or it is refused.
        self.lock = threading.RLock()
        self._journal_mark = session.journal_mark()

    # --- for the commit step ---

    def execute(self, sql: str, parameters: Any = ()) -> EffectRows:
        """Run one statement."""
        with self.watched():
            self._prepare(sql)
            return self._kept(self._session.execute_effect(sql, parameters))

    def execute_own(self, sql: str, parameters: Any = ()) -> EffectRows:
        """Run one statement about tables that are beside the engine's."""
        with self.watched():
            self._prepare(sql)
            return self._kept(self._session.execute_own_effect(sql, parameters))

    def executemany(self, sql: str, parameters: Any) -> EffectRows | None:
        """Run one statement for each set of parameters; the rows are those of the last."""
        with self.watched():
            self._prepare(sql)
            rows = self._session.execute_effect_many(sql, parameters)
            return None if rows is None else self._kept(rows)

    def submit_job(self, job: NewJob) -> Submitted:
        """Submit a job that exists only if this transaction commits."""
        with self.watched():
            self._prepare("")
            try:
                return self._session.submit_in_effect(lambda: submit(self._session, [job], actor=self._actor)[0])
            except Exception as error:
                # A lock that somebody holds on a table of the engine's is no fault of the step, whatever it catches.
                self._postponed_by = self._postponed_by or self._session.passing_in_submit(error)
                raise

    # --- for the engine ---

    def watched(self) -> _Watched:
        """Inside, the database may end the transaction: from then on nothing more is run."""
        return _Watched(self)

    def refuse_if_over(self) -> None:
        """Raise unless what is run now is run inside the transaction."""
        if self._over:
            raise BadInput("this transaction has ended", hint="use tx only inside the commit step that it was given to")
        self.look(None)
        if self._ended_by is not None:
            raise _ended(self._ended_by) from self._ended_by

    def look(self, error: BaseException | None) -> None:
        """Remember that the transaction is gone, and what ended it: what was begun anew would be another one."""
        if self._ended_by is not None:
            return
        if error is not None:
            self._postponed_by = self._postponed_by or self._session.passing(error)
        if not self._session.is_open() or (error is not None and self._session.is_lost_connection(error)):
            self._ended_by = error or _ended("by a statement of the commit step")

    def conclude(self, error: Exception | None) -> Exception | None:
        """Keep what the effect wrote, or take it back if it failed; the answer to its commit.

        EffectEndedTransaction if neither can be done, because the batch is gone.
        """
        with self.lock:
            # Not kept in a variable: this frame is one of those that the error holds, and would hold the error.
            self.look(error.error if isinstance(error, TryFailed) else error)
            if self._ended_by is None:
                self._ended_by = self._session.said_goodbye()
            self._over = True
        # A statement that is still being read keeps a savepoint from being released, and the next transaction from
        # being begun, for as long as somebody remembers it: the traceback of an error, say.
        for rows in self._rows:
            rows.close()
        if self._ended_by is not None:
            raise EffectEndedTransaction(
                self._write, error or _ended(self._ended_by), self._ended_by
            ) from self._ended_by
        if not self._savepoint:
            return error
        try:
            if error is None and self._postponed_by is None:
                self._session.keep_effect()
            else:
                self._session.undo_effect()
                self._session.drop_journal_after(self._journal_mark)
        except Exception as failure:
            raise EffectEndedTransaction(self._write, error or failure, failure) from failure
        return self._postponed_by or error

    # --- inside ---

    def _kept(self, rows: ResultRows) -> EffectRows:
        self._rows.append(rows)
        return EffectRows(self, rows)

    def _prepare(self, sql: str) -> None:
        if (word := self._session.refused_word(sql)) is not None:
            raise BadInput(
                f"a commit step may not run {word.upper()!r}", hint="the engine commits: effect and job together"
            )
        if not self._savepoint:
            self._session.begin_effect()
            self._savepoint = True


def _ended(why: object) -> StoreError:
    return StoreError(
        f"the database ended the transaction of the commit step: {why}",
        hint="avoid OR ROLLBACK and RAISE(ROLLBACK): a plain failure can be caught; do slow work in a step before",
    )
