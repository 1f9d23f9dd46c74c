"""The SQLite store: each verb opens its transaction here and is spelled out in the module named after it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.invariants import Finding, JobFacts
from holdfast.core.records import (
    Child,
    ExecutionRecord,
    JobRecord,
    JournalEntry,
    QueueRecord,
    StepRecord,
    WorkerRecord,
)
from holdfast.core.states import JobState
from holdfast.errors import JobNotFoundError, QueueNotFoundError, StoreError
from holdfast.store.messages import Claim, Held, NewJob, Recovered, Submitted, Write
from holdfast.store.migrating import load_migrations, pending
from holdfast.store.sqlite import checking, claiming, operating, retention, submitting, writing
from holdfast.store.sqlite.database import APPLICATION_ID, Database, translated_errors
from holdfast.store.sqlite.evidence import is_durable
from holdfast.store.sqlite.rows import executions_of, job_of, jobs_of, journal_of, queues_of, record_of, steps_of
from holdfast.store.sqlite.session import SQL, Session, to_json
from holdfast.store.sqlite.wakeup import FifoListener, FifoNotifier

PACKAGE = "holdfast.store.sqlite"


def wall_clock() -> int:
    """Milliseconds since 1970. All users of a SQLite file are on one machine, so this is the database's clock."""
    return time.time_ns() // 1_000_000


class SqliteStore:
    """Jobs in one SQLite file."""

    def __init__(
        self, path: Path, *, synchronous: str = "FULL", clock: Callable[[], int] = wall_clock, read_only: bool = False
    ) -> None:
        self.url = f"sqlite:///{path.absolute()}"
        self.path = path
        self.now = clock
        self._database = Database(path, synchronous=synchronous, read_only=read_only)
        self._renewed = 0
        self._wake_directory = path.with_name(path.name + ".wake")
        self._notifier = FifoNotifier(self._wake_directory)
        if not read_only:
            self._migrate()

    def close(self) -> None:
        self._notifier.close()
        self._database.close()

    # --- clients and workers ---

    def submit(self, jobs: Sequence[NewJob], *, actor: str) -> list[Submitted]:
        with self._session("submit") as session:
            return submitting.submit(session, jobs, actor=actor)

    def claim(self, *, worker_id: str, flows: Mapping[str, str], limit: int, lease_ms: int) -> list[Claim]:
        # Looking first keeps an idle worker from taking the write lock, and from waiting for it.
        if limit < 1 or not self._has_ready():
            return []
        with self._session("claim") as session:
            return claiming.claim(session, worker_id=worker_id, flows=flows, limit=limit, lease_ms=lease_ms)

    def write(self, batch: Sequence[Write], *, worker_id: str, lease_ms: int) -> list[Exception | None]:
        with self._session("write." + "+".join(sorted({type(one).__name__ for one in batch}))) as session:
            answers = writing.write(session, batch, worker_id=worker_id)
            # A slow commit step keeps the lease thread waiting for this very lock, so renew here as well.
            now = self.now()
            if now - self._renewed > lease_ms // 3:
                session.run("extend_leases", worker=worker_id, expires=now + lease_ms, now=session.now)
                self._renewed = now
        return answers

    def evidence(self, batch: Sequence[Write]) -> list[bool]:
        with self._database.snapshot() as connection:
            return [is_durable(connection, one) for one in batch]

    def extend_leases(self, *, worker_id: str, lease_ms: int) -> list[Held]:
        with self._session("extend-leases") as session:
            held = claiming.extend_leases(session, worker_id=worker_id, lease_ms=lease_ms)
            self._renewed = session.now
        return held

    def recover(self, *, is_dead: Callable[[str], bool], actor: str) -> list[Recovered]:
        owners = dict(self._read("owners").fetchall())
        dead = claiming.dead_owners(owners, is_dead)
        if not dead and not any(expires <= self.now() for expires in owners.values()):
            return []
        recovered: list[Recovered] = []
        while True:
            with self._session("recover") as session:
                batch = claiming.recover(session, dead=dead, actor=actor)
            recovered += batch
            if len(batch) < claiming.RECOVERY_BATCH:
                return recovered

    def announce(self, *, worker_id: str, flows: Sequence[str]) -> None:
        with self._session("announce") as session:
            session.run("announce", worker=worker_id, flows=to_json(list(flows)), now=session.now)

    def retire(self, *, worker_id: str) -> None:
        with self._session("retire") as session:
            session.run("retire", worker=worker_id)

    def next_due(self) -> int | None:
        due: int | None = self._read("next_due").fetchone()[0]
        return due

    def listen(self) -> FifoListener:
        return FifoListener(self._wake_directory)

    # --- operators ---

    def cancel(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self._session("cancel") as session:
            session.changed_work = True  # whoever runs the job has to hear of it
            return operating.cancel(session, job_id, actor=actor, reason=reason)

    def retry(self, job_id: str, *, actor: str, reason: str, from_state: JobState) -> None:
        with self._session("retry") as session:
            operating.retry(session, job_id, actor=actor, reason=reason, from_state=from_state)

    def fail(self, job_id: str, *, actor: str, reason: str, quarantine: bool) -> None:
        with self._session("fail") as session:
            operating.fail(session, job_id, actor=actor, reason=reason, quarantine=quarantine)

    def stop_stalled(self, exec_id: str, *, actor: str, not_before: int) -> bool:
        with self._session("stop-stalled") as session:
            return operating.stop_stalled(session, exec_id, actor=actor, not_before=not_before)

    def set_queue(self, name: str, *, max_running: int | None, actor: str | None) -> None:
        with self._session("set-queue") as session:
            session.changed_work = True
            if actor is None:
                session.run("default_limit", name=name, max_running=max_running)
                return
            if session.first("set_limit", name=name, max_running=max_running, actor=actor) is None:
                raise QueueNotFoundError(name)

    def pause_queue(self, name: str, *, actor: str, reason: str) -> None:
        with self._session("pause-queue") as session:
            if session.first("pause_queue", name=name, actor=actor, reason=reason, now=session.now) is None:
                raise QueueNotFoundError(name)

    def resume_queue(self, name: str) -> None:
        with self._session("resume-queue") as session:
            session.changed_work = True
            if session.first("resume_queue", name=name) is None:
                raise QueueNotFoundError(name)

    def prune(self, *, before: int, limit: int, actor: str, dry_run: bool) -> list[str]:
        if dry_run:
            return [job.job_id for job in jobs_of(self._read("prunable", before=before, limit=limit))]
        with self._session("prune") as session:
            return retention.prune(session, before=before, limit=limit, actor=actor)

    def backup(self, target: Path) -> None:
        retention.backup(self._database.reader(), target)

    # --- looking ---

    def job(self, job_id: str) -> JobRecord:
        row = self._read("job", job_id=job_id).fetchone()
        if row is None:
            raise JobNotFoundError(job_id)
        return job_of(row)

    def jobs(
        self,
        *,
        state: JobState | None = None,
        flow: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        parent: str | None = None,
        limit: int = 100,
    ) -> list[JobRecord]:
        wanted = {"state": state, "flow": flow, "queue": queue, "key": key, "parent": parent}
        given = {name: value for name, value in wanted.items() if value is not None}
        if state is not None and state is not JobState.SUCCEEDED:
            given["state"] = state.value
        where = " AND ".join(f"{name} = :{name}" for name in given) or "true"
        if state is not None and state is not JobState.SUCCEEDED:
            where += " AND state <> 'succeeded'"  # lets SQLite use the index of unsettled jobs
        statement = f"SELECT * FROM jobs WHERE {where} ORDER BY job_id DESC LIMIT :limit"
        with translated_errors(self.path):
            return jobs_of(self._database.reader().execute(statement, {**given, "limit": limit}))

    def request(self, job_id: str) -> str:
        row = self._read("request", job_id=job_id).fetchone()
        if row is None:
            raise JobNotFoundError(job_id)
        return str(row[0])

    def executions(self, job_id: str) -> list[ExecutionRecord]:
        return executions_of(self._read("executions", job_id=job_id))

    def steps(self, job_id: str) -> list[StepRecord]:
        return steps_of(self._read("steps", job_id=job_id))

    def journal(self, job_id: str | None = None) -> Iterator[JournalEntry]:
        cursor = self._read("journal_all") if job_id is None else self._read("journal_of", job_id=job_id)
        return (journal_of(cursor, row) for row in cursor)

    def children(self, job_id: str) -> list[Child]:
        cursor = self._read("children", parent=job_id)
        return [record_of(Child, cursor, row) for row in cursor]

    def under_way(self) -> list[ExecutionRecord]:
        return executions_of(self._read("under_way"))

    def last_progress(self, exec_id: str) -> int | None:
        row = self._read("last_progress", exec_id=exec_id).fetchone()
        return int(row[0]) if row else None

    def queues(self) -> list[QueueRecord]:
        return queues_of(self._read("queues"))

    def workers(self) -> list[WorkerRecord]:
        return [
            WorkerRecord(worker_id=w, flows=tuple(msgspec.json.decode(f)), started_at=started, seen_at=seen)
            for w, f, started, seen in self._read("workers")
        ]

    def definitions(self) -> Mapping[str, str]:
        return dict(self._read("definitions").fetchall())

    def counts(self) -> Mapping[tuple[str, str], int]:
        return {(flow, state): count for flow, state, count in self._read("counts")}

    # --- the guard ---

    def facts(self, *, unsettled_only: bool) -> Iterator[JobFacts | Finding]:
        with self._database.snapshot() as connection:
            yield from checking.facts(connection, unsettled_only=unsettled_only)

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        with translated_errors(self.path):
            yield from checking.integrity(self._database.reader(), expected_schema(), deep=deep)

    def missing_rules(self) -> Iterator[Finding]:
        with translated_errors(self.path):
            yield from checking.missing_rules(self._database.reader(), expected_schema())

    def reproject(self, job_id: str, *, actor: str, reason: str) -> JobState:
        with self._session("reproject") as session:
            return operating.reproject(session, job_id, actor=actor, reason=reason)

    def pruned_heads(self) -> Mapping[str, str]:
        return dict(self._read("pruned_heads").fetchall())

    # --- inside ---

    @contextmanager
    def _session(self, verb: str) -> Iterator[Session]:
        with self._database.transaction(verb) as connection:
            session = Session(connection, self.now())
            yield session
            session.flush_journal()
            changed = session.changed_work
        if changed:
            self._notifier.notify()

    def _read(self, statement: str, **parameters: Any) -> sqlite3.Cursor:
        with translated_errors(self.path):
            return self._database.reader().execute(SQL[statement], parameters)

    def _has_ready(self) -> bool:
        return bool(self._read("has_ready", now=self.now()).fetchone()[0])

    def _migrate(self) -> None:
        migrations = load_migrations(PACKAGE)
        if not pending(migrations, self._schema_version(), str(self.path)):
            return
        with self._database.transaction("migrate") as connection:
            # Asked again under the lock: several processes may open a new database at once.
            for migration in pending(migrations, self._schema_version(connection), str(self.path)):
                run_script(connection, migration.sql)
                connection.execute(
                    "INSERT INTO holdfast_migrations (version, name, applied_at) VALUES (?, ?, ?)",
                    (migration.version, migration.name, self.now()),
                )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        os.chmod(self.path, 0o600)

    def _schema_version(self, connection: sqlite3.Connection | None = None) -> int:
        with translated_errors(self.path):
            reader = connection or self._database.reader()
            if connection is not None:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS holdfast_migrations "
                    "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)"
                )
            known = reader.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_migrations'").fetchone()
            if known is None:
                return 0
            return int(reader.execute("SELECT coalesce(max(version), 0) FROM holdfast_migrations").fetchone()[0])


@cache
def expected_schema() -> dict[str, str]:
    """name → SQL of everything the migrations make."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        for migration in load_migrations(PACKAGE):
            fresh.executescript(migration.sql)
        return checking.schema_of(fresh)


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """The statements of a script, one by one, inside the transaction that is open."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    if statement.strip() and not all(line.startswith("--") for line in statement.strip().splitlines()):
        raise StoreError(f"incomplete statement at the end of a migration: {statement[:80]!r}")
