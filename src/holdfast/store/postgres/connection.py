"""psycopg's errors as ours: the class says what the caller can do."""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg import sql
from psycopg_pool import PoolClosed, PoolTimeout

from holdfast import errors
from holdfast.errors import StoreUnavailable
from holdfast.store.commands import Write

RULE_BROKEN = "HF001"
"""The SQLSTATE of the triggers that keep the rules."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise our error in the place of one of psycopg's."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        raise translate(error) from error


def translate(error: Exception) -> errors.HoldfastError:
    """Our error for one of psycopg's: by its SQLSTATE, then by the class of it, which is its first two characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    if state == RULE_BROKEN or isinstance(error, psycopg.IntegrityError):
        return errors.StateTransitionRaceError(text, hint="the database refused the change; look at the job again")
    kind, hint = MEANING.get(state) or MEANING.get(state[:2]) or (errors.StoreError, None)
    if isinstance(error, PoolTimeout):
        kind, hint = BUSY
    elif isinstance(error, PoolClosed):
        kind, hint = errors.StoreError, "the store was closed"
    elif not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        kind, hint = AWAY
    return kind(text, hint=hint)


BUSY = (errors.StoreBusy, "all connections or locks are in use; it will be tried again")
AWAY = (errors.StoreUnavailable, "the server is away, restarting, or cut the connection")
FULL = (errors.StoreFull, "free some space on the server; nothing was changed")
DAMAGED = (errors.StoreCorrupt, "keep a copy of the server's files, look at its log, and restore a backup")

MEANING: dict[str, tuple[type[errors.StoreError], str]] = {
    "08": AWAY,  # connection exception
    "25006": (errors.StoreUnavailable, "connected to a read-only server; point the URL at the primary"),
    # A worker that was frozen in the midst of a transaction. Rolled back, as by the limits of class 57.
    "25P03": (errors.StoreUnavailable, "the server ended a transaction that kept it waiting"),
    "25P04": (errors.StoreUnavailable, "the server ended a transaction that took too long"),
    "40": (errors.StoreBusy, "others came first; it will be tried again"),  # deadlock, serialization failure
    "40003": AWAY,  # statement completion unknown
    "42501": (errors.StoreReadOnly, "grant the role what docs/how-to/run-a-fleet.md lists"),
    "53": BUSY,  # insufficient resources
    "53100": FULL,
    "53200": FULL,
    "55": BUSY,  # a lock that is not available, an object in use
    "57": AWAY,  # operator intervention: shutdown, crash, starting up
    "57014": BUSY,  # cancelled, by a time limit for one
    "58": (errors.StoreUnavailable, "check the disk of the server"),
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}


def is_disk_fault(error: Exception) -> bool:
    """Is it the server's disk that is full or sick?"""
    state = getattr(error, "sqlstate", None) or ""
    return MEANING.get(state) in (FULL, DAMAGED) or state.startswith("58")


def is_lock_timeout(error: BaseException) -> bool:
    """Was it a lock that somebody else holds? Then nothing was changed, and what needs no such lock can be done."""
    return isinstance(error.__cause__, pg.LockNotAvailable | pg.DeadlockDetected)


def is_lost_race(error: Exception) -> bool:
    """Was the transaction rolled back only because another came first? Then the same call may succeed at once."""
    # A queue may be forgotten between the look at it and the job that names it.
    races = pg.UniqueViolation | pg.ForeignKeyViolation | pg.DeadlockDetected | pg.SerializationFailure
    return isinstance(error.__cause__, races)


# --- How long the server may take for what: it ends what takes longer, and whoever waits knows when to give up ---


class TimeLimits(NamedTuple):
    """Seconds after which the server ends a statement, a wait for one lock, a transaction whose client is silent."""

    statement: float
    lock: float
    idle: float | None

    @property
    def settings(self) -> dict[str, str]:
        """As settings of a transaction."""
        of_statements = {"statement_timeout": milliseconds(self.statement), "lock_timeout": milliseconds(self.lock)}
        if self.idle is None:
            return of_statements
        return {**of_statements, "idle_in_transaction_session_timeout": milliseconds(self.idle)}

    @property
    def answer(self) -> float:
        """After so long without an answer nobody is there to give one."""
        return self.statement + ANSWER_MARGIN


def milliseconds(seconds: float) -> str:
    """The value of a setting."""
    return f"{round(seconds * 1000)}ms"


ANSWER_MARGIN = 10.0
GREETING = 5.0
"""For the first answer over a connection, before anything was done."""
SUSPICION = 1.0
"""The same, after another connection of the pool was found to be hanging."""

OF_WORKERS = TimeLimits(statement=20.0, lock=0.1, idle=10.0)
"""Writes, claims, renewals. Nobody waits long for a lock: what it keeps back is tried again, and the rest goes on."""
OF_CLIENTS = TimeLimits(statement=120.0, lock=15.0, idle=10.0)
"""Submits and what operators do: longer than one who is gone may hold a lock."""
OF_READS = TimeLimits(statement=30.0, lock=15.0, idle=None)
OF_LONG_READS = TimeLimits(statement=600.0, lock=15.0, idle=None)
"""Checks of everything."""
OF_EFFECTS = TimeLimits(statement=120.0, lock=15.0, idle=120.0)
"""Statements of a commit step, and the time between them: ample, but not endless, because all others wait for it."""


# --- A connection that does not wait for ever: one that has not answered for its time limit is given up ---

log = logging.getLogger("holdfast.postgres")

T = TypeVar("T")


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Raises OperationalError, as for a connection that was cut, once nothing has arrived for `answer_limit` seconds.

    TCP notices a peer that is gone, but not one whose kernel acknowledges while nobody answers: a pooler that hangs, a
    frozen server. The limit has to be longer than the server takes to end a statement by itself.
    """

    answer_limit = 40.0
    answered_at = 0.0
    is_given_up = False
    keeps_locks = False
    """May it hold locks that outlast a transaction? Then nobody else may get it."""
    on_server: tuple[int, str] | None = None
    """The server's process and when the transaction began there, for as long as one may be open."""

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for an answer, but not for longer than the limit without a sign of one."""
        answer = super().wait(self._bounded(gen), *arguments, **options)
        self.answered_at = time.monotonic()
        return answer

    def _bounded(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard_at = time.monotonic()
        ready: Any = None
        while True:
            try:
                wanted = waiting.send(ready)
            except StopIteration as stop:
                answer: T = stop.value
                return answer
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard_at = now
            elif now - heard_at > self.answer_limit:
                heard_at = now
                self._give_up()

    def _give_up(self) -> None:
        """Close the way in both directions: what waits for an answer finds the end of it, as if it had been cut."""
        self.is_given_up = True
        log.warning("no answer for %.0f s, connection given up", self.answer_limit)
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)


# --- A write that cannot be made keeps no other of its group back: the group is halved until that one stands alone ---

FAILURES = 14
"""After so many in a row nothing can be written at the moment: a whole group down to one write, and a few more."""

Answer = Exception | None


def write_in_parts(
    batch: Sequence[Write], attempt: Callable[[Sequence[Write]], list[Answer]], error: StoreUnavailable
) -> list[Answer]:
    """Make each write that can be made; the others are answered by the error that kept them back, which passes.

    `error` is what the whole of it has met. Writes of one execution stay in their order: behind one that was kept back
    none is made.
    """
    answers: list[Answer] = [error] * len(batch)
    kept_back: set[str] = set()
    parts = _halves(range(len(batch)))
    failures = 0
    while parts and failures < FAILURES:
        part = [index for index in parts.pop() if batch[index].exec_id not in kept_back]
        if not part:
            continue
        try:
            made = attempt([batch[index] for index in part])
        except Exception as failed:
            failures += 1
            if len(part) > 1 and (is_lock_timeout(failed) or not isinstance(failed, StoreUnavailable)):
                parts += _halves(part)
                continue
            made = [failed] * len(part)
            if isinstance(failed, StoreUnavailable) and not is_lock_timeout(failed):
                parts.clear()  # nobody is there to ask
        else:
            failures = 0
        for index, answer in zip(part, made, strict=True):
            answers[index] = answer
            if isinstance(answer, StoreUnavailable):
                kept_back.add(batch[index].exec_id)
    return answers


def _halves(part: Sequence[int]) -> list[Sequence[int]]:
    """The first half last, because that is where it is taken from."""
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


# --- Wake-up by LISTEN and NOTIFY, with the worker's own slow look as the safety net --------------------


RECONNECT_PAUSE = 1.0
HEARTBEAT = 30.0
"""A connection over which nothing was heard for so long is asked whether it is still there."""


class PostgresListener:
    """Waits on a connection of its own; a lost one is replaced, and until then the time-out wakes."""

    def __init__(self, conninfo: str, channel: str, connecting: Mapping[str, Any]) -> None:
        self._conninfo = conninfo
        self._connecting = connecting
        self._channel = channel
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: set[int] = set()
        self._tried_at = -RECONNECT_PAUSE
        self._connection: BoundedConnection | None = None
        self._connect()

    def wait(self, timeout: float | None) -> bool:
        """Until notified, woken, or a watched descriptor is ready, or the time is up; True unless it was the time."""
        if self._connection is None:
            self._connect()
        elif time.monotonic() - self._connection.answered_at > HEARTBEAT:
            self._ask()
            return True  # what arrived meanwhile, or would have over a connection that was none, is not known
        descriptors = [self._read, *self._watched]
        if self._connection is not None:
            if self._drain():
                return True
            descriptors.append(self._connection.fileno())
        elif timeout is None or timeout > RECONNECT_PAUSE:
            timeout = RECONNECT_PAUSE
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)}
        if self._read in ready:
            os.read(self._read, 4096)
        if self._connection is not None and self._connection.fileno() in ready:
            self._drain()
        return bool(ready)

    def watch(self, descriptors: set[int]) -> None:
        """Also wake when one of these descriptors becomes readable."""
        self._watched = set(descriptors)

    def wake(self) -> None:
        """Make wait() return."""
        try:
            os.write(self._write, b".")
        except OSError:
            pass  # full: it will wake anyway

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            self._connection.close()
        os.close(self._read)
        os.close(self._write)

    def _drain(self) -> bool:
        """Take what has arrived; True if there was something, or if the connection is lost and all may have changed."""
        assert self._connection is not None
        try:
            return any(True for _ in self._connection.notifies(timeout=0))
        except psycopg.Error as error:
            self._drop(error)
            return True

    def _ask(self) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        assert self._connection is not None
        log.warning("listening connection lost: %s", error)
        self._connection.close()
        self._connection = None

    def _connect(self) -> None:
        if time.monotonic() - self._tried_at < RECONNECT_PAUSE:
            return
        self._tried_at = time.monotonic()
        try:
            self._connection = BoundedConnection.connect(self._conninfo, **{**self._connecting, "connect_timeout": 5})
            self._connection.answer_limit = GREETING
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error as error:
            log.warning("cannot listen, looking now and then instead: %s", error)
            self._connection = None
