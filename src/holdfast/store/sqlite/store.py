"""The SQLite store: jobs in one file, which several processes of one machine may use."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from holdfast.core.facts import Finding
from holdfast.errors import BadInput, StoreError
from holdfast.sql_files import load_migrations, load_statements, pending
from holdfast.store.changes import Changes
from holdfast.store.session import Session
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import checking
from holdfast.store.sqlite.backup import backup
from holdfast.store.sqlite.connection import APPLICATION_ID, run_script
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.session import SqliteSession, passing_in_effect
from holdfast.store.sqlite.wakeup import FifoListener, FifoNotifier
from holdfast.store.verbs.checking import repeated_executions, tables
from holdfast.store.verbs.effects import EffectEndedTransaction

PACKAGE = "holdfast.store"


def wall_clock() -> int:
    """Milliseconds since 1970. All users of a SQLite file are on one machine, so this is the database's clock."""
    return time.time_ns() // 1_000_000


class SqliteStore(SqlStore):
    """Jobs in one SQLite file."""

    one_machine = True

    def __init__(
        self, path: Path, *, synchronous: str = "FULL", clock: Callable[[], int] = wall_clock, read_only: bool = False
    ) -> None:
        super().__init__()
        self.url = f"sqlite:///{path.absolute()}"
        self.path = path
        self.now = clock
        self.changes = Changes(self.flows_of)
        self._sql = load_statements(PACKAGE, "sqlite")
        self._database = Database(path, synchronous=synchronous, read_only=read_only)
        self._wake_directory = path.with_name(path.name + ".wake")
        self._notifier = FifoNotifier(self._wake_directory)
        try:
            if read_only:
                self._refuse_other_schema()
            else:
                self._migrate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._notifier.close()
        self._database.close()

    @contextmanager
    def writing(self, verb: str) -> Iterator[Session]:
        with self._database.transaction(verb) as connection:
            session = SqliteSession(connection, self._sql, self.now())
            yield session
            session.flush_journal()
        if session.changed_work:
            self._notifier.notify()
        self.changes.tell(session.journaled)

    @contextmanager
    def reading(self, *, consistent: bool = False) -> Iterator[Session]:
        look = self._database.snapshot if consistent else self._database.reading
        with look() as connection:
            yield SqliteSession(connection, self._sql, self.now())

    def listen(self) -> FifoListener:
        return FifoListener(self._wake_directory)

    def backup(self, target: Path, *, schemas: Sequence[str] = ()) -> None:
        if schemas:
            raise BadInput("a SQLite database has no schemas to choose from", hint="a backup of it has all tables")
        with self._database.snapshot() as connection:
            backup(connection, target)

    @contextmanager
    def looking(self) -> Iterator[Session]:
        with self._database.snapshot() as connection:
            yield SqliteSession(connection, self._sql, self.now())

    def damage(self, *, most_bytes: int | None) -> list[Finding]:
        with self._database.snapshot() as connection:
            return list(checking.damage(connection, deep=False, most_bytes=most_bytes))

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        with self.looking() as session:
            connection = cast(sqlite3.Connection, session.connection)
            findings = [*checking.damage(connection, deep=deep), *checking.missing_rules(connection)]
            findings += tables(session, with_pruned=True)
            findings += repeated_executions(session)
        return iter(findings)

    def missing_rules(self) -> Iterator[Finding]:
        with self._database.reading() as connection:
            return iter(list(checking.missing_rules(connection)))

    def refuse_passing(self, ended: EffectEndedTransaction) -> None:
        passing = passing_in_effect(ended.cause)
        if passing is not None:
            raise passing from ended.cause

    def _refuse_other_schema(self) -> None:
        with self._database.reading() as reader:
            if pending(load_migrations(PACKAGE, "sqlite"), _schema_version(reader), str(self.path)):
                raise StoreError(
                    f"{self.path} has an older schema than this Holdfast", hint="start a worker once: it migrates it"
                )

    def _migrate(self) -> None:
        migrations = load_migrations(PACKAGE, "sqlite")
        with self._database.reading() as reader:
            if not pending(migrations, _schema_version(reader), str(self.path)):
                return
        with self._database.transaction("migrate") as connection:
            connection.execute(checking.MIGRATIONS)
            # Asked again under the lock: several processes may open a new database at once.
            for migration in pending(migrations, _schema_version(connection), str(self.path)):
                run_script(connection, migration.sql)
                connection.execute(
                    "INSERT INTO holdfast_migrations (version, name, applied_at) VALUES (?, ?, ?)",
                    (migration.version, migration.name, self.now()),
                )
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        os.chmod(self.path, 0o600)


def _schema_version(connection: sqlite3.Connection) -> int:
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_migrations'").fetchone()
    if known is None:
        return 0
    return int(connection.execute("SELECT coalesce(max(version), 0) FROM holdfast_migrations").fetchone()[0])
