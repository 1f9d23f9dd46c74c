"""A transaction on SQLite: rows go into a statement as they are, many at a time."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, cast

from holdfast.core.facts import Finding
from holdfast.core.values import label_of
from holdfast.errors import BadInput, SettingsError, StateError, StoreBusy, StoreCorrupt, StoreError, StoreForeign
from holdfast.sql_files import load_migrations, load_statements, pending
from holdfast.store.commands import Changes
from holdfast.store.commit_step import EffectEndedTransaction
from holdfast.store.integrity import repeated_executions, tables
from holdfast.store.liveness import is_dead, is_running_here
from holdfast.store.open import new_file, sync
from holdfast.store.session import SQLITE_COMMENTS, Connection, ResultRows, Session, leading_words, storable_values
from holdfast.store.sql_store import SqlStore
from holdfast.store.sqlite import database
from holdfast.store.sqlite.connection import APPLICATION_ID, run_script, translate, translated_errors
from holdfast.store.sqlite.database import Database, FifoListener, FifoNotifier, refuse_network

MOST_ROWS = 64
FEW_ROWS = 16
"""One statement takes 64 rows, a multiple of 16, or what is left over: two for most batches, and few to be prepared."""

TEMPORARY = """
SELECT type, name FROM temp.sqlite_master
WHERE type IN ('trigger', 'view', 'table') AND name NOT LIKE 'sqlite#_%' ESCAPE '#'
ORDER BY type = 'trigger' DESC, type = 'view' DESC, sql LIKE 'CREATE VIRTUAL%' DESC
"""

_ROW = re.compile(r"\bVALUES (\((?:\?, )*\?\))")
_NAME = re.compile(r":([a-z_]+)")


class SqliteSession(Session):
    """Statements for many rows say `VALUES (?, ...)` for one of them, before any named parameter."""

    __slots__ = ("_created",)

    def __init__(self, connection: Connection, sql: Mapping[str, str], now: int) -> None:
        super().__init__(connection, sql, now)
        self._created = False

    def execute_effect(self, sql: str, parameters: Any) -> ResultRows:
        self._created |= leading_words(sql, 1, SQLITE_COMMENTS) == ["create"]
        return super().execute_effect(sql, parameters)

    def passing(self, error: BaseException) -> Exception | None:
        return passing_in_effect(error)

    def keep_effect(self) -> None:
        # Names of temporary tables go before all others on this connection, and would hide the engine's from it.
        if self._created:
            self._created = False
            for kind, name in self.connection.execute(TEMPORARY).fetchall():
                self.connection.execute(f'DROP {kind} IF EXISTS temp."{name.replace(chr(34), chr(34) * 2)}"')
        super().keep_effect()

    @contextmanager
    def running_effects(self) -> Iterator[None]:
        # The user's tables are read as SQLite reads them.
        connection: Any = self.connection
        before, connection.text_factory = connection.text_factory, str
        try:
            yield
        finally:
            connection.text_factory = before

    def digest_of(self, column: str) -> str:
        return f"digest({column})"

    def attempt(self, sql: str, parameters: Mapping[str, Any]) -> tuple[list[Any], str | None]:
        try:
            return self.connection.execute(sql, parameters).fetchall(), None
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            return [], str(error)

    def run_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> None:
        self.fetch_rows(statement, rows, **parameters)

    def fetch_rows(self, statement: str, rows: Sequence[tuple[Any, ...]], **parameters: Any) -> list[Any]:
        answers: list[Any] = []
        done = 0
        while done < len(rows):
            count = min(MOST_ROWS, len(rows) - done)
            if count > FEW_ROWS:
                count -= count % FEW_ROWS
            sql, names = _for_rows(self._sql[statement], count)
            values = [*chain.from_iterable(rows[done : done + count]), *(parameters[name] for name in names)]
            try:
                cursor = self.connection.execute(sql, values)
            except UnicodeEncodeError:
                # Raised before anything is written.
                cursor = self.connection.execute(sql, storable_values(values))
            answers += cursor.fetchall()
            done += count
        return answers


@cache
def _for_rows(sql: str, count: int) -> tuple[str, tuple[str, ...]]:
    """The statement for that many rows, all its parameters positional, and the names of those after the rows."""
    repeated = _ROW.sub(lambda found: f"VALUES {', '.join([found[1]] * count)}", sql, count=1)
    return _NAME.sub("?", repeated), tuple(_NAME.findall(repeated))


def passing_in_effect(error: BaseException) -> Exception | None:
    """Our error for one of the disk's. Inside a transaction nobody else is in the way: there "busy" and "locked" speak
    of a statement of the effect's own that is still being read.
    """
    ours = translate(error, "in a commit step") if isinstance(error, sqlite3.Error) else None
    return ours if ours is not None and ours.passing and not isinstance(ours, StoreBusy) else None


# --- Copying the database while others work -------------------------------------------------------------


def backup(connection: sqlite3.Connection, target: Path) -> None:
    """A consistent copy, durable under its final name or not there at all; nothing is overwritten."""
    with new_file(target) as partial:
        copy_whole(connection, partial)


def copy_whole(connection: sqlite3.Connection, target: Path) -> None:
    """Copy a database into an empty file that nobody else knows."""
    with closing(sqlite3.connect(target)) as copy:
        connection.backup(copy)
        # A single file, complete in itself: no log beside it that could be forgotten.
        copy.execute("PRAGMA journal_mode = DELETE")


# --- The SQLite store: jobs in one file, which several processes of one machine may use -----------------

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
            return list(database.damage(connection, deep=False, most_bytes=most_bytes))

    def integrity(self, *, deep: bool) -> Iterator[Finding]:
        with self.looking() as session:
            connection = cast(sqlite3.Connection, session.connection)
            findings = [*database.damage(connection, deep=deep), *database.missing_rules(connection)]
            findings += tables(session, with_pruned=True)
            findings += repeated_executions(session)
        return iter(findings)

    def missing_rules(self) -> Iterator[Finding]:
        with self._database.reading() as connection:
            return iter(list(database.missing_rules(connection)))

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
            connection.execute(database.MIGRATIONS)
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


# --- Putting a backup in the place of the database: verified first, then whole or not at all ------------

PATIENCE = 30.0
"""How long to wait for somebody who is writing to the database."""

SEEN_WITHIN_MS = 90_000
"""A worker of which nothing can be seen from here says every 30 seconds that it is there."""


def restore(source: Path, target: Path, *, now: int, verify: Callable[[Path], None]) -> Path | None:
    """Make `target` what `source` is; returns where what was there before is kept, None if there was nothing.

    `verify` looks at a private copy, which may be changed by it, and raises if it is not fit to be used.
    Crash: the database is the old one or the restored one.
    """
    if not source.is_file():
        raise SettingsError(f"there is no file {source}", hint="name a file that holdfast backup has made")
    target = Path(os.path.realpath(target))
    if target.exists() and os.path.samefile(source, target):
        raise SettingsError(f"{source} is the database itself", hint="name a file that holdfast backup has made")
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    refuse_network(target.parent)
    with _staging(target) as staged:
        with translated_errors(source), closing(_connect(source, "ro")) as connection:
            _refuse_what_is_no_backup(connection, source)
            _refuse_workers(connection, now)
            copy_whole(connection, staged)
        verify(staged)
        os.chmod(staged, 0o600)
        sync(staged)
        return _put_in_place(staged, target, now)


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A file in a directory of its own beside `target`, for one restore at a time; leftovers are removed."""
    prefix = f".{target.name}.restore-"
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in target.parent.glob(prefix + "*"):
            shutil.rmtree(left, ignore_errors=True)
        directory = tempfile.mkdtemp(prefix=prefix, dir=target.parent)
        try:
            yield Path(directory, target.name)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        raise StoreBusy(f"another restore of {target} is under way", hint="wait for it") from None
    finally:
        os.close(descriptor)


def _put_in_place(staged: Path, target: Path, now: int) -> Path | None:
    if not target.exists() or not target.stat().st_size:
        staged.rename(target)
        sync(target.parent)
        return None
    kept = target.with_name(f"{target.name}.before-restore-{now}")
    try:
        with translated_errors(target), closing(_connect(target, "rw")) as live:
            _refuse_other_applications(live, target)
            _refuse_workers(live, now)
            with closing(_connect(target, "ro")) as old:
                backup(old, kept)
            with closing(_connect(staged, "ro")) as new:
                # Page by page, in one transaction of the database that is there: whoever has it open sees the restored
                # one from then on. A file put in its place would leave others writing to one that is gone.
                new.backup(live, progress=_impatiently())
    except StoreForeign as error:
        if error.__cause__ is None:
            raise
        _replace_unreadable(staged, target, kept)
    except StoreCorrupt:
        kept.unlink(missing_ok=True)
        _replace_unreadable(staged, target, kept)
    return kept


def _replace_unreadable(staged: Path, target: Path, kept: Path) -> None:
    """Nobody can be working with it: it is moved aside, its log first, which must not be taken for the new one's."""
    for suffix in ("-wal", "-shm", ""):
        part = target.with_name(target.name + suffix)
        if part.exists():
            part.rename(kept.with_name(kept.name + suffix))
    staged.rename(target)
    sync(target.parent)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5.0)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _refuse_what_is_no_backup(connection: sqlite3.Connection, source: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreForeign(f"{source} is not a backup of Holdfast", hint="name a file that holdfast backup has made")
    [[found], *_] = connection.execute("PRAGMA integrity_check(1)").fetchall()
    if found != "ok":
        raise StoreCorrupt(f"{source} is damaged: {found}", hint="take another backup; nothing was changed")


def _refuse_other_applications(connection: sqlite3.Connection, target: Path) -> None:
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreForeign(f"{target} is not a database of Holdfast", hint="it was left as it is; choose another place")


def _refuse_workers(connection: sqlite3.Connection, now: int) -> None:
    if connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'workers'").fetchone() is None:
        return
    known = connection.execute("SELECT worker_id, seen_at FROM workers").fetchall()
    alive = [label_of(worker) for worker, seen_at in known if _is_alive(worker, seen_at, now)]
    if alive:
        raise StateError(
            f"workers are alive: {', '.join(alive)}", hint="stop them first: they would go on with what is no more"
        )


def _is_alive(worker: str, seen_at: int, now: int) -> bool:
    return is_running_here(worker) or (not is_dead(worker) and now - seen_at <= SEEN_WITHIN_MS)


def _impatiently() -> Callable[[int, int, int], None]:
    """Python tries for ever to begin a copy into a database that somebody else is writing to."""
    deadline = time.monotonic() + PATIENCE

    def progress(status: int, _remaining: int, _total: int) -> None:
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise StoreBusy("another process holds the database", hint="end it, and try again; nothing was changed")

    return progress
