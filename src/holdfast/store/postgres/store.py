"""The PostgreSQL store: the verbs are the same, the statements are in its dialect, and its clock is the server's."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg import errors as pg
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from holdfast.core.facts import Finding
from holdfast.crash_points import crash_point
from holdfast.errors import (
    BadInput,
    SettingsError,
    StateTransitionRaceError,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsafe,
)
from holdfast.store import lease
from holdfast.store.commands import Changes, Claim, NewJob, Submitted, Write
from holdfast.store.commit import is_durable, jobs_of
from holdfast.store.commit_step import EffectEndedTransaction
from holdfast.store.integrity import repeated_executions, tables
from holdfast.store.liveness import refuse_fork
from holdfast.store.place import DEFAULT_SCHEMA
from holdfast.store.postgres.backup import SCHEMA_NAME, backup
from holdfast.store.postgres.connection import (
    GREETING,
    OF_CLIENTS,
    OF_EFFECTS,
    OF_LONG_READS,
    OF_READS,
    OF_WORKERS,
    SUSPICION,
    BoundedConnection,
    PostgresListener,
    TimeLimits,
    is_lock_timeout,
    is_lost_race,
    translate,
    translated_errors,
    write_in_parts,
)
from holdfast.store.postgres.schema import damage, migrate, missing_rules
from holdfast.store.postgres.session import PLANNING, Connection, PostgresSession, Surroundings, setting
from holdfast.store.session import Session, to_json
from holdfast.store.sql_store import SqlStore

log = logging.getLogger("holdfast.postgres")

CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
# Said outright: a server or role may have another default, and the statements count on seeing what others committed.
BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
END_TRANSACTION = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND xact_start = %s::timestamptz
"""
RACES = 10
VERBS_OF_WORKERS = frozenset({"claim", "extend-leases", "recover", "settle", "evidence", "announce", "retire"})
LOST_IN_EFFECT = 3
QUEUE_PAUSES = (0.005, 0.02, 0.05, 0.1)
SECRET_OPTIONS = ("password", "sslpassword")

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
        if not SCHEMA_NAME.fullmatch(schema):
            raise SettingsError(f"{schema!r} cannot be the name of a schema", hint="lower-case letters, digits and '_'")
        super().__init__()
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
        self._hung_at = 0.0
        self._lost_in: Counter[str] = Counter()
        self._process = os.getpid()
        self.changes = Changes(self.flows_of)
        with translated_errors():
            migrate(url, schema, where=self.url, timeout=timeout, read_only=read_only)
            self._pool = ConnectionPool(
                url,
                connection_class=BoundedConnection,
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
        if os.getpid() == self._process:  # or the connections are the parent's
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
        limits = _limits_of(verb)
        settings = setting({**limits.settings, **PLANNING}, local=True)
        begin = f"{BEGIN}; SELECT {CLOCK}, pg_backend_pid(), now()::text, {settings}"
        with translated_errors(), self._connected(begin, limits) as (connection, now):
            session = PostgresSession(connection, now, self._surroundings, limits)
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
        self.changes.tell(session.journaled)

    @contextmanager
    def reading(self, *, consistent: bool = False) -> Iterator[Session]:
        limits = OF_LONG_READS if consistent else OF_READS
        greeting = f"SELECT {CLOCK}"
        if consistent:
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
            greeting = f"{begin}; {greeting}, {setting(limits.settings, local=True)}"
        with translated_errors(), self._connected(greeting, limits) as (connection, now):
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
            if limit < 1 or not self._has_ready(flows):
                break
            try:
                return self.claim_ready(worker_id=worker_id, flows=flows, limit=limit, lease_ms=lease_ms)
            except lease.QueuesBusy:
                # Another worker is done with counting in no time. For a shell that forgot its lock nobody waits long.
                time.sleep(pause)
        return []

    def claim_once(self, chosen: lease.Chosen, *, promote: bool = True, **request: Any) -> list[Claim]:
        try:
            return super().claim_once(chosen, promote=promote, **request)
        except StoreUnavailable:
            # They may be ours: the next call finds out, or they would lie idle until their leases run out.
            self._unanswered += chosen.claims
            raise

    def write(
        self, batch: Sequence[Write], *, worker_id: str, lease_ms: int, renew: Callable[[], Sequence[str]] = tuple
    ) -> list[Exception | None]:
        def attempt(part: Sequence[Write]) -> list[Exception | None]:
            return super(PostgresStore, self).write(part, worker_id=worker_id, lease_ms=lease_ms, renew=renew)

        try:
            return attempt(batch)
        except StoreUnavailable as error:
            if len(batch) == 1 or not is_lock_timeout(error):
                raise
            return write_in_parts(batch, attempt, error)

    def evidence(self, batch: Sequence[Write]) -> list[bool | None]:
        # The lock waits for a COMMIT that the server may still be working on, though its connection is gone.
        with self.writing("evidence") as session:
            held = self._held_by_others(session, list(jobs_of(batch)))
            answers = [None if held.intersection(jobs_of([one])) else is_durable(session, one) for one in batch]
        self.changes.resolve(answers)
        return answers

    def _claimed_unanswered(self, worker_id: str) -> list[Claim]:
        with self.writing("evidence") as session:
            doubtful = self._held_by_others(session, [claim.job.job_id for claim in self._unanswered])
            held = {row[0] for row in session.run("held", worker=worker_id, now=session.now).fetchall()}
        known = [claim for claim in self._unanswered if claim.job.job_id not in doubtful]
        self._unanswered = [claim for claim in self._unanswered if claim.job.job_id in doubtful]
        return [claim for claim in known if claim.exec_id in held]

    def _held_by_others(self, session: Session, job_ids: Sequence[str]) -> set[str]:
        """Lock these jobs; those that somebody else has locked, and of which nothing can be said yet."""
        batch = to_json(sorted(set(job_ids)))
        free = {row[0] for row in session.run("lock_free_jobs", batch=batch).fetchall()}
        missing = set(job_ids) - free
        if not missing:
            return missing
        return {row[0] for row in session.run("known_jobs", batch=to_json(sorted(missing))).fetchall()}

    def listen(self) -> PostgresListener:
        return PostgresListener(self._conninfo, self._channel, CONNECTING)

    def backup(self, target: Path, *, schemas: Sequence[str] = ()) -> None:
        with self._connected(f"SELECT {CLOCK}", OF_READS) as (connection, _):
            server = connection.info.server_version // 10_000
        backup(self._conninfo, self._schema, target, server=server, others=schemas)

    @contextmanager
    def looking(self) -> Iterator[Session]:
        with self.reading(consistent=True) as session:
            yield session

    def damage(self, *, most_bytes: int | None) -> list[Finding]:  # noqa: ARG002 - nothing is read for it
        return []  # the server looks at every page that it reads, and says so then

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        with self.looking() as session:
            findings = list(damage(session)) if deep else []
            findings += missing_rules(session)
            findings += tables(session, with_pruned=True)
            findings += repeated_executions(session)
        return iter(findings)

    def missing_rules(self) -> Iterator[Finding]:
        with self.reading() as session:
            return iter(list(missing_rules(session)))

    def refuse_passing(self, ended: EffectEndedTransaction) -> None:
        cause = ended.cause
        passing = translate(cause) if isinstance(cause, psycopg.Error) else None
        # A commit step that kept the server waiting would do so next time, and the time after that.
        if passing is None or not passing.passing or isinstance(cause, pg.IdleInTransactionSessionTimeout):
            return
        # So would one that makes the connection end; a server that goes away in the midst of the same one three times
        # in a row, and of no other, is unlikely.
        self._lost_in[ended.write.exec_id] += 1
        if self._lost_in[ended.write.exec_id] < LOST_IN_EFFECT:
            raise passing from cause
        del self._lost_in[ended.write.exec_id]

    # --- inside ---

    @contextmanager
    def _connected(self, greeting: str, limits: TimeLimits) -> Iterator[tuple[Connection, int]]:
        """A connection that has just answered, and the server's time. Dead ones of the pool are passed over."""
        connection, now = self._greeted(greeting)
        connection.answer_limit = limits.answer
        try:
            yield connection, now
        finally:
            hung = connection.on_server if connection.is_given_up else None
            is_clean = connection.info.transaction_status is TransactionStatus.IDLE and not connection.keeps_locks
            if not connection.closed and not is_clean:
                connection.close()  # the pool makes a new one
            self._pool.putconn(connection)
            if hung is not None:
                self._hung_at = time.monotonic()
                self._end_on_server(*hung)

    def _end_on_server(self, process: int, began: str) -> None:
        """End a transaction that nobody can reach any more: in the midst of a message, the server waits for ever."""
        try:
            with self._connected(f"SELECT {CLOCK}", OF_WORKERS) as (connection, _):
                connection.execute(END_TRANSACTION, (process, began))
        except (psycopg.Error, PoolTimeout) as error:
            log.warning("the transaction of a hung connection could not be ended: %s", error)

    def _greeted(self, greeting: str) -> tuple[Connection, int]:
        refuse_fork(self._process)
        for remaining in range(self._connections, -1, -1):
            connection = self._pool.getconn()
            connection.answer_limit = GREETING if connection.answered_at > self._hung_at else SUSPICION
            try:
                answer = connection.execute(greeting.encode())
                while answer.nextset():
                    pass
                row = answer.fetchone()
                assert row is not None
                server = int(row[0])
                connection.on_server = (row[1], row[2]) if greeting.startswith(BEGIN) else None
            except BaseException as error:
                if connection.is_given_up:
                    self._hung_at = time.monotonic()
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
        connection.answer_limit = OF_READS.answer
        synchronous = "on" if self._synchronous == "FULL" else "off"
        self._surroundings = Surroundings(connection, self._schema, synchronous=synchronous)
        connection.execute(self._surroundings.set_for_session)

    def _check_durability(self) -> None:
        if self._synchronous != "FULL":
            return
        with self._connected(f"SELECT {CLOCK}", OF_READS) as (connection, _):
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                row = connection.execute(f"SHOW {setting}".encode()).fetchone()
                if row is None or row[0] == "off":
                    raise StoreUnsafe(
                        f"the server has {setting} = off: an acknowledged commit may be lost",
                        hint="turn it on, or accept that with synchronous NORMAL",
                    )


def _limits_of(verb: str) -> TimeLimits:
    if verb not in VERBS_OF_WORKERS and not verb.startswith("write."):
        return OF_CLIENTS
    return OF_WORKERS._replace(idle=OF_EFFECTS.idle) if "Commit" in verb else OF_WORKERS


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    address, _, query = url.partition("?")
    scheme, slashes, rest = address.partition("://")
    credentials, at, host = rest.rpartition("@")
    shown = [option for option in query.split("&") if unquote(option.partition("=")[0]) not in SECRET_OPTIONS]
    return "?".join(filter(None, [f"{scheme}{slashes}{credentials.partition(':')[0]}{at}{host}", "&".join(shown)]))
