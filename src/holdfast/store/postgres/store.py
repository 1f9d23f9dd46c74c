"""The PostgreSQL store: the verbs are the same, the statements are in its dialect, and its clock is the server's."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool

from holdfast.core.invariants import Finding
from holdfast.crash_points import crash_point
from holdfast.errors import (
    BadInput,
    SettingsError,
    StateTransitionRaceError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsafe,
)
from holdfast.store.messages import Claim, NewJob, Submitted, Write
from holdfast.store.postgres.checking import damage, missing_rules
from holdfast.store.postgres.errors import is_lost_race, translate, translated_errors
from holdfast.store.postgres.migrating import migrate
from holdfast.store.postgres.session import PLAN_BY_INDEX, Connection, PostgresSession, Surroundings
from holdfast.store.postgres.wakeup import PostgresListener
from holdfast.store.session import Session
from holdfast.store.sql_store import SqlStore
from holdfast.store.verbs import claiming
from holdfast.store.verbs.checking import impossible_values, orphans
from holdfast.store.verbs.evidence import is_durable
from holdfast.store.verbs.writing import jobs_of

log = logging.getLogger("holdfast.postgres")

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Said outright: a server or role may have another default, and the statements count on seeing what others committed.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
DEFAULT_SCHEMA = "holdfast"
RACES = 10
QUEUE_PAUSES = (0.005, 0.02, 0.05, 0.1)
SECRET_OPTIONS = ("password", "sslpassword")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# A server or a network that is gone is noticed within about a minute, by both sides.
CONNECTING: Mapping[str, Any] = {
    "autocommit": True,
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "application_name": "holdfast",
}

# A worker that hangs inside a transaction (a frozen host) lets go of its locks: soon, or when a commit step would
# have had ample time between two of its statements.
IDLE_LIMIT = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
IDLE_LIMIT_OF_EFFECTS = "SET LOCAL idle_in_transaction_session_timeout = '120s'"


class PostgresStore(SqlStore):
    """Jobs in one schema of a PostgreSQL database, shared by any number of hosts."""

    one_machine = False

    def __init__(
        self,
        url: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        synchronous: str = "FULL",
        clock: Callable[[], int] | None = None,
        connections: int = 10,
        timeout: float = 10.0,
        read_only: bool = False,
    ) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise SettingsError(f"{schema!r} cannot be the name of a schema", hint="lower-case letters, digits and '_'")
        self.url = without_password(url)
        self._conninfo = url
        self._schema = schema
        self._synchronous = synchronous
        self._clock = clock
        self._offset = 0.0
        self._channel = f"holdfast_{hashlib.sha256(schema.encode()).hexdigest()[:12]}"
        self._surroundings: Surroundings
        self._open = threading.local()
        self._connections = connections
        self._read_only = read_only
        self._unanswered: list[Claim] = []
        with translated_errors():
            migrate(url, schema, where=self.url, timeout=timeout, read_only=read_only)
            self._pool = ConnectionPool(
                url,
                min_size=1,
                max_size=connections,
                timeout=timeout,
                kwargs=dict(CONNECTING),
                configure=self._configure,
                open=False,
            )
            try:
                self._pool.open(wait=True, timeout=timeout)
                self._check_durability()
            except BaseException:
                self._pool.close()
                raise
        self.now = clock or self._estimated_now

    def close(self) -> None:
        self._pool.close()

    @contextmanager
    def writing(self, verb: str) -> Iterator[Session]:
        if getattr(self._open, "verb", None):
            raise BadInput(
                f"{verb} was called inside a commit step, which has a transaction open already",
                hint="use the tx it was given: tx.execute(...), tx.submit(...)",
            )
        if self._read_only:
            raise StoreReadOnly(f"{self.url} was opened for reading", hint="open it for writing to change anything")
        limit = IDLE_LIMIT_OF_EFFECTS if "Commit" in verb else IDLE_LIMIT
        begin = f"{BEGIN}; {limit}; {PLAN_BY_INDEX}; SELECT {CLOCK}"
        with translated_errors(), self._connected(begin) as (connection, now):
            session = PostgresSession(connection, now, self._surroundings)
            self._open.verb = verb
            try:
                with session.pipelined():
                    yield session
                    session.flush_journal()
                    session.send()
                    crash_point(verb, "before-commit")
                    session.commit()
            except BaseException:
                self._roll_back(connection)
                raise
            finally:
                self._open.verb = None
            crash_point(verb, "after-commit")
            if session.changed_work:
                self._notify(connection)

    @contextmanager
    def reading(self, *, consistent: bool = False) -> Iterator[Session]:
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; " if consistent else ""
        with translated_errors(), self._connected(f"{begin}SELECT {CLOCK}") as (connection, now):
            try:
                yield PostgresSession(connection, now, self._surroundings)
            finally:
                if consistent:
                    self._roll_back(connection)

    # --- verbs that many hosts make different ---

    def submit(self, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
        for _ in range(RACES):
            try:
                return super().submit(jobs, actor=actor)
            except (StateTransitionRaceError, StoreUnavailable) as error:
                # Rolled back for sure. A job that has just got one of the keys is there now, and the answer.
                if not is_lost_race(error):
                    raise
        return super().submit(jobs, actor=actor)

    def claim(self, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        if self._unanswered:
            found = self._claimed_unanswered(worker_id)
            if found:
                return found
        for pause in QUEUE_PAUSES:
            if limit < 1 or not self._has_ready():
                break
            try:
                return self._claim(worker_id, flows, limit, lease_ms)
            except claiming.QueuesBusy:
                # Another worker is done with counting in no time. For a shell that forgot its lock nobody waits long.
                time.sleep(pause)
        return []

    def _claim(self, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        claims: list[Claim] = []
        try:
            with self.writing("claim") as session:
                claims = claiming.claim(session, worker_id=worker_id, flows=flows, limit=limit, lease_ms=lease_ms)
        except StoreUnavailable:
            # They may be ours: the next call finds out, or they would lie idle until their leases run out.
            self._unanswered += claims
            raise
        return claims

    def evidence(self, batch: Sequence[Write]) -> list[bool]:
        # The lock waits for a COMMIT that the server may still be working on, though its connection is gone.
        with self.writing("evidence") as session:
            session.lock_jobs(jobs_of(batch))
            return [is_durable(session, one) for one in batch]

    def _claimed_unanswered(self, worker_id: str) -> list[Claim]:
        with self.writing("evidence") as session:
            session.lock_jobs(sorted(claim.job.job_id for claim in self._unanswered))
            held = {row[0] for row in session.run("held", worker=worker_id, now=session.now).fetchall()}
        found = [claim for claim in self._unanswered if claim.exec_id in held]
        self._unanswered = []
        return found

    def listen(self) -> PostgresListener:
        return PostgresListener(self._conninfo, self._channel, CONNECTING)

    def backup(self, target: Path) -> None:
        raise BadInput(
            f"a PostgreSQL database is not copied to {target} from here",
            hint=f"use PostgreSQL's own tools: pg_dump --schema={self._schema}, or a base backup with its archive",
        )

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        with self.reading(consistent=True) as session:
            findings = list(damage(session)) if deep else []
            findings += missing_rules(session)
            findings += impossible_values(session)
            findings += orphans(session)
        return iter(findings)

    def missing_rules(self) -> Iterator[Finding]:
        with self.reading() as session:
            return iter(list(missing_rules(session)))

    def refuse_passing(self, error: BaseException) -> None:
        passing = translate(error) if isinstance(error, psycopg.Error) else None
        if isinstance(passing, StoreUnavailable):
            raise passing from error

    # --- inside ---

    @contextmanager
    def _connected(self, greeting: str) -> Iterator[tuple[Connection, int]]:
        """A connection that has just answered, and the server's time. Dead ones of the pool are passed over."""
        connection, now = self._greeted(greeting)
        try:
            yield connection, now
        finally:
            if not connection.closed and connection.info.transaction_status is not TransactionStatus.IDLE:
                connection.close()  # not known to be clean: the pool makes a new one
            self._pool.putconn(connection)

    def _greeted(self, greeting: str) -> tuple[Connection, int]:
        for remaining in range(self._connections, -1, -1):
            connection = self._pool.getconn()
            try:
                answer = connection.execute(greeting.encode())
                while answer.nextset():
                    pass
                row = answer.fetchone()
                assert row is not None
                server = int(row[0])
            except BaseException as error:
                connection.close()
                self._pool.putconn(connection)
                # Nothing has been done over it yet, so another one may be tried without asking what was.
                if not remaining or not isinstance(error, psycopg.OperationalError):
                    raise
            else:
                # What is asked for between transactions is an estimate; leases are judged by what is asked for here.
                self._offset = server - time.monotonic() * 1000
                return connection, server if self._clock is None else self._clock()
        raise AssertionError("unreachable")

    def _roll_back(self, connection: Connection) -> None:
        if connection.closed or connection.info.transaction_status is TransactionStatus.IDLE:
            return
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error as error:
            log.warning("connection lost in a transaction, which the server rolls back: %s", error)

    def _estimated_now(self) -> int:
        return round(self._offset + time.monotonic() * 1000)

    def _notify(self, connection: Connection) -> None:
        """After the commit and not within it: a NOTIFY inside takes a lock that all commits of the server share.

        Crash: a wake-up is lost, and the slow look of each worker finds what it was about.
        """
        # It leaves nothing behind that would have to reach the disk.
        notify = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {self._channel}; COMMIT"
        try:
            connection.execute(notify.encode())
        except psycopg.Error as error:
            # The work itself is committed: this must not look like its failure.
            log.warning("could not notify: %s", error)

    def _configure(self, connection: Connection) -> None:
        self._surroundings = Surroundings(connection, self._schema)
        synchronous = "on" if self._synchronous == "FULL" else "off"
        connection.execute(
            # Nobody waits for a lock for ever, but longer than one who is gone may hold it (IDLE_LIMIT).
            # A server configured for more than 'on' (remote_apply) is left at it.
            f"{self._surroundings.path}; SET lock_timeout = '15s'; SET client_min_messages = warning".encode()
        )
        setting = connection.execute("SHOW synchronous_commit").fetchone()
        if synchronous == "off" or (setting and setting[0] in ("off", "local")):
            connection.execute(f"SET synchronous_commit = {synchronous}")

    def _check_durability(self) -> None:
        if self._synchronous != "FULL":
            return
        with self._connected(f"SELECT {CLOCK}") as (connection, _):
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                row = connection.execute(f"SHOW {setting}".encode()).fetchone()
                if row is None or row[0] == "off":
                    raise StoreUnsafe(
                        f"the server has {setting} = off: an acknowledged commit may be lost",
                        hint="turn it on, or accept that with synchronous NORMAL",
                    )


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    address, _, query = url.partition("?")
    scheme, slashes, rest = address.partition("://")
    credentials, at, host = rest.rpartition("@")
    shown = [option for option in query.split("&") if unquote(option.partition("=")[0]) not in SECRET_OPTIONS]
    return "?".join(filter(None, [f"{scheme}{slashes}{credentials.partition(':')[0]}{at}{host}", "&".join(shown)]))
