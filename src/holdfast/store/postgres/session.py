"""A transaction on PostgreSQL: statements in its dialect, and the user's own search path during an effect."""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg.pq import TransactionStatus

from holdfast.core.hash_chain import DIGEST_LENGTH
from holdfast.errors import BadInput
from holdfast.sql_files import Dialect, load_statements, to_pyformat
from holdfast.store.postgres.connection import (
    OF_EFFECTS,
    OF_READS,
    BoundedConnection,
    TimeLimits,
    is_disk_fault,
    translate,
)
from holdfast.store.session import (
    POSTGRES_COMMENTS,
    TRANSACTION_CONTROL,
    ResultRows,
    Session,
    leading_words,
    storable_texts,
    to_json,
)

PACKAGE = "holdfast.store"
KEY_RACES = 10

T = TypeVar("T")
Connection = BoundedConnection

GOODBYE = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.CannotConnectNow,
    pg.IdleInTransactionSessionTimeout,
    psycopg.InterfaceError,
)

# A plan is made once, and kept for the life of a connection, also when the tables have grown a thousandfold since: the
# statements of the engine look rows up by index from the first one on. (Without jit, because a kind of plan that is
# switched off and taken all the same, for want of another, counts as costly enough to be compiled.)
PLANNING = {
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# What would end the transaction, or outlive it on a connection that is used again.
_SESSION_CONTROL = TRANSACTION_CONTROL | {"start", "abort", "prepare", "deallocate", "discard", "reset", "set", "copy"}
_FOR_THIS_TRANSACTION = ("local", "constraints")
# Rows that go through the connection itself leave it in a state in which it takes no statements any more.
_THROUGH_CONNECTION = re.compile(r"\b(stdin|stdout)\b", re.IGNORECASE)
# The one kind of lock that neither a COMMIT nor a ROLLBACK gives back.
_LOCK_OF_SESSION = re.compile(r"\bpg_(?:try_)?advisory_lock", re.IGNORECASE)

_KEEP_PATH = "set_config('holdfast.search_path', current_setting('search_path'), true)"
_RESTORE_PATH = "SELECT set_config('search_path', current_setting('holdfast.search_path'), true)"


@cache
def statements() -> Mapping[str, str]:
    """Every statement of the store, ready for psycopg."""
    return {name: to_pyformat(statement) for name, statement in load_statements(PACKAGE, "postgres").items()}


def sql_literal(text: str) -> str:
    """The text as SQL."""
    return sql.Literal(text).as_string(None)


def setting(settings: Mapping[str, str], *, local: bool) -> str:
    """Expressions that set all of these, for the transaction or for the session."""
    return ", ".join(
        f"set_config('{name}', {sql_literal(value)}, {str(local).lower()})" for name, value in settings.items()
    )


class Surroundings:
    """The settings of a connection as the engine's statements need them, and as the user's would find them."""

    def __init__(self, connection: Connection, schema: str, *, synchronous: str) -> None:
        names = ("search_path", "lock_timeout", "statement_timeout", *PLANNING)
        asked = ", ".join(f"current_setting({name!r})" for name in (*names, "synchronous_commit"))
        values = connection.execute(f"SELECT {asked}").fetchone()
        assert values is not None
        *own, synchronous_commit = values
        limits = OF_EFFECTS.settings
        of_user = dict(zip(names, own, strict=True))
        # A user who has set no limit gets one: everybody else waits for a commit step.
        of_user = {name: limits[name] if name in limits and value == "0" else value for name, value in of_user.items()}
        # Temporary tables last: what an effect has left there must not hide the engine's.
        self.path = f"{sql.Identifier(schema).as_string(None)}, pg_temp"
        self.of_session = {
            "search_path": self.path,
            "client_min_messages": "warning",
            **OF_READS.settings,
        }
        # A server configured for more than 'on' (remote_apply) is left at it.
        if synchronous == "off" or synchronous_commit in ("off", "local"):
            self.of_session["synchronous_commit"] = synchronous
        self.set_for_session = f"SELECT {setting(self.of_session, local=False)}"
        self.set_for_user = f"SELECT {setting(of_user, local=True)}"


class PendingResult:
    """The rows of a statement that has not been sent yet: the first look at them sends it, and waits."""

    __slots__ = ("_send", "cursor")

    def __init__(self, send: Callable[[], None]) -> None:
        self.cursor: psycopg.Cursor[tuple[Any, ...]] | None = None
        self._send = send

    @property
    def description(self) -> Any:
        return self._arrived().description

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def fetchone(self) -> Any:
        return self._arrived().fetchone()

    def fetchall(self) -> list[Any]:
        return self._arrived().fetchall()

    def fetchmany(self, size: int = 1, /) -> list[Any]:
        return self._arrived().fetchmany(size)

    @property
    def rowcount(self) -> int:
        return self._arrived().rowcount

    def close(self) -> None:
        self._arrived().close()

    def _arrived(self) -> psycopg.Cursor[tuple[Any, ...]]:
        if self.cursor is None:
            self._send()
        assert self.cursor is not None
        return self.cursor


class PostgresSession(Session):
    """A transaction of the store on PostgreSQL."""

    dialect: Dialect = "postgres"

    def __init__(
        self, connection: Connection, now: int, surroundings: Surroundings, limits: TimeLimits = OF_READS
    ) -> None:
        # psycopg's connection has another way to say that it is in a transaction: is_open below.
        super().__init__(cast(Any, connection), statements(), now)
        self._psycopg = connection
        self._surroundings = surroundings
        self._limits = limits
        self._in_statement = False
        self._gathering = False
        self._after_effects = False
        self._pipelines = ExitStack()
        self._pipeline: psycopg.Pipeline | None = None
        self._unsent: list[tuple[str, Mapping[str, Any], PendingResult]] = []
        self._expected: set[str] = set()
        self._heads: Iterable[tuple[str, int, str]] = ()

    def run(self, statement: str, **parameters: Any) -> ResultRows:
        if not self._gathering:
            self._gathering = self._after_effects
            return cast(ResultRows, self._execute(statement, parameters))
        answer = PendingResult(self.send)
        self._unsent.append((statement, parameters, answer))
        return answer

    @contextmanager
    def pipelined(self) -> Iterator[None]:
        """Inside, statements are sent together, as soon as an answer is looked at; those of an effect one by one.

        The pipeline stays open: leaving it sends a flush, after which the server does not take the transaction for
        idle, and would let a client that hangs there keep its locks.
        """
        with self._pipelines:
            self._gathering = True
            yield

    def send(self) -> None:
        """Send what has gathered, in one round trip, and wait for all of it; nothing stays in the air."""
        if not self._unsent:
            return
        pipeline = self._entered()
        try:
            self._send_unsent()
        except psycopg.Error:
            with suppress(psycopg.Error):
                pipeline.sync()  # past what the server has skipped after the error
            raise
        pipeline.sync()

    def commit(self) -> None:
        """COMMIT, alone: cut off in the midst of statements, the server would not be idle, and keep their locks."""
        if self._gathering:
            self._entered()
        self._psycopg.execute("COMMIT", prepare=False)
        self._leave()

    def _send_unsent(self) -> None:
        unsent, self._unsent = self._unsent, []
        for statement, parameters, answer in unsent:
            answer.cursor = self._execute(statement, parameters)

    def _entered(self) -> psycopg.Pipeline:
        if self._pipeline is None:
            self._pipeline = self._pipelines.enter_context(self._psycopg.pipeline())
        return self._pipeline

    def _leave(self) -> None:
        """Send what has gathered, and wait for all that was sent."""
        if self._unsent:
            self._entered()
            self._send_unsent()
        self._pipeline = None
        self._pipelines.close()

    def _execute(self, statement: str, parameters: Mapping[str, Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        if any(isinstance(value, str) and "\0" in value for value in parameters.values()):
            parameters = storable_texts(parameters)
        # Prepared at once: there are few of them, and they will be used again.
        try:
            return self._psycopg.execute(self._sql[statement], parameters, prepare=True)
        except UnicodeEncodeError:
            # Raised before anything is sent.
            return self._psycopg.execute(self._sql[statement], storable_texts(parameters), prepare=True)

    def release_waiting(self, job_ids: Sequence[str], limit: int) -> None:
        # The statement itself keeps what is left: nobody has to wait for its answer.
        self.run("release_waiting", batch=to_json(job_ids), now=self.now, limit=limit)

    def expect_journal(self, job_ids: Iterable[str]) -> None:
        self._expected = set(job_ids)
        if self._expected:
            self._heads = self.run("journal_heads", batch=to_json(sorted(self._expected)))

    def journal_heads(self, job_ids: Sequence[str]) -> Iterable[tuple[str, int, str]]:
        unexpected = sorted(set(job_ids) - self._expected)
        heads = [*self._heads]
        return [*heads, *super().journal_heads(unexpected)] if unexpected else heads

    def run_planned(self, sql: str, parameters: Mapping[str, Any]) -> ResultRows:
        # What is prepared is planned once, for values of which there are as many as of others on average.
        return self._psycopg.execute(to_pyformat(sql).encode(), parameters, prepare=False)

    def in_dialect(self, sql: str) -> str:
        return to_pyformat(sql)

    def digest_of(self, column: str) -> str:
        return f"left(encode(sha256(convert_to({column}, 'UTF8')), 'hex'), {DIGEST_LENGTH})"

    def attempt(self, sql: str, parameters: Mapping[str, Any]) -> tuple[list[Any], str | None]:
        self._leave()  # what this look is to see may not have been sent yet
        self._simple("SAVEPOINT look")
        try:
            rows = self._psycopg.execute(to_pyformat(sql).encode(), parameters).fetchall()
        except psycopg.Error as error:
            if not self.is_open() or self.is_lost_connection(error):
                raise
            self._simple("ROLLBACK TO look")
            return [], " ".join(str(error).split())
        self._simple("RELEASE look")
        return rows, None

    def is_open(self) -> bool:
        return self._psycopg.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def is_lost_connection(self, _error: BaseException) -> bool:
        # The server says goodbye before it closes the connection: for a moment the transaction looks alive.
        return isinstance(_error, GOODBYE) or (isinstance(_error, psycopg.OperationalError) and not _error.sqlstate)

    # --- effects ---

    def refused_word(self, sql: str) -> str | None:
        words = leading_words(sql, 2, POSTGRES_COMMENTS)
        if not words or words[0] not in _SESSION_CONTROL:
            return None
        if words[0] == "set" and words[-1] in _FOR_THIS_TRANSACTION:
            return None
        if words[0] == "copy" and not _THROUGH_CONNECTION.search(sql):
            return None
        return words[0]

    def said_goodbye(self) -> BaseException | None:
        # The server speaks unasked if it was kept waiting for too long, or is shut down.
        poll = select.poll()
        poll.register(self._psycopg.pgconn.socket, select.POLLIN)
        if not poll.poll(0):
            return None
        try:
            self._simple("SELECT 1")
        except psycopg.Error as error:
            return error
        return None

    def passing(self, error: BaseException) -> Exception | None:
        return translate(error) if isinstance(error, psycopg.Error) and is_disk_fault(error) else None

    def passing_in_submit(self, error: BaseException) -> Exception | None:
        ours = translate(error) if isinstance(error, psycopg.Error) else None
        return ours if ours is not None and ours.passing else None

    @contextmanager
    def running_effects(self) -> Iterator[None]:
        """Inside, and for the first statement behind it, be it COMMIT, there is no pipeline.

        In one, the reason that the server gives for having ended a transaction that kept it waiting would be lost. And
        it has to know that it is kept waiting, which it does after any statement outside: look at the fence in here.
        """
        self._leave()
        self._gathering = self._after_effects = False
        yield
        self._after_effects = True

    def begin_effect(self) -> None:
        # The user's statements find the user's tables, as they would on a connection of their own.
        self._simple(f"SAVEPOINT effect; {self._surroundings.set_for_user}")
        self._psycopg.answer_limit = OF_EFFECTS.answer
        self._in_statement = False

    def keep_effect(self) -> None:
        # Whatever the effect has left as settings of the session or the transaction, by a function even, ends here.
        own = f"{setting(self._surroundings.of_session, local=False)}, {setting(self._local_settings(), local=True)}"
        self._psycopg.answer_limit = self._limits.answer
        self._simple(
            "RELEASE effect; CLOSE ALL; UNLISTEN *; DISCARD TEMP; RESET ALL; RESET SESSION AUTHORIZATION; RESET ROLE;"
            f"SELECT {own}"
        )

    def undo_effect(self) -> None:
        self._psycopg.answer_limit = self._limits.answer
        self._simple("ROLLBACK TO effect; RELEASE effect")

    def _local_settings(self) -> dict[str, str]:
        return {**self._limits.settings, **PLANNING}

    def execute_effect(self, sql: str, parameters: Any) -> ResultRows:
        self._psycopg.keeps_locks |= _LOCK_OF_SESSION.search(sql) is not None
        # Without parameters a % is a %, and not the beginning of one.
        rows: ResultRows = self._as_statement(lambda: self._psycopg.execute(sql.encode(), parameters or None))
        return rows

    def execute_own_effect(self, sql: str, parameters: Any) -> ResultRows:
        # The user's own path is put aside for this statement, whatever the step has made of it; if the statement fails,
        # the savepoint has it.
        path = sql_literal(self._surroundings.path)

        def execute() -> Any:
            self._psycopg.execute(f"SELECT {_KEEP_PATH}, set_config('search_path', {path}, true)".encode())
            rows = self._psycopg.execute(sql.encode(), parameters or None)
            self._psycopg.execute(_RESTORE_PATH)
            return rows

        self._psycopg.keeps_locks |= _LOCK_OF_SESSION.search(sql) is not None
        rows: ResultRows = self._as_statement(execute)
        return rows

    def execute_effect_many(self, sql: str, parameters: Any) -> ResultRows | None:
        self._psycopg.keeps_locks |= _LOCK_OF_SESSION.search(sql) is not None
        cursor = self._psycopg.cursor()
        self._as_statement(lambda: cursor.executemany(sql.encode(), parameters))
        return cast(ResultRows, cursor)

    def submit_in_effect(self, submit: Callable[[], T]) -> T:
        own = {"search_path": self._surroundings.path, **self._local_settings()}
        self._simple(f"SELECT {setting(own, local=True)}")
        mark = self.journal_mark()
        for _ in range(KEY_RACES):
            self._simple("SAVEPOINT submitting")
            try:
                answer = submit()
            except (pg.UniqueViolation, pg.ForeignKeyViolation):
                # Somebody else has just submitted a job with this key: it is there now, and the answer. Or has just
                # forgotten the queue.
                self._simple("ROLLBACK TO submitting")
                self.drop_journal_after(mark)
                continue
            self._simple(f"RELEASE submitting; {self._surroundings.set_for_user}")
            return answer
        raise BadInput("a key is being taken and given up by others all the time", hint="try again later")

    def _as_statement(self, execute: Callable[[], Any]) -> Any:
        """Run one statement of the user's, alone, so that its failure can be caught as on any other database.

        Inside a pipeline the server takes one statement at a time: nothing can hide behind a semicolon.
        """
        try:
            with self._psycopg.pipeline():
                if self._in_statement:
                    self._psycopg.execute("RELEASE statement")
                self._psycopg.execute("SAVEPOINT statement")
                self._in_statement = True
                rows = execute()
        except psycopg.Error:
            if self._psycopg.info.transaction_status is TransactionStatus.INERROR:
                self._simple("ROLLBACK TO statement")
            raise
        return rows

    def _simple(self, statement: str) -> None:
        """Several statements in one round trip."""
        self._psycopg.execute(statement.encode())
