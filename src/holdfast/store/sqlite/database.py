"""The file of a database: a place for it, its schema and what is damaged, its connections, and who is woken by it."""

from __future__ import annotations

import errno
import logging
import os
import re
import select
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path

from holdfast import errors
from holdfast.core.facts import Finding, error, warning
from holdfast.core.hash_chain import digest
from holdfast.crash_points import crash_point
from holdfast.errors import StoreReadOnly, StoreUnsafe
from holdfast.sql_files import load_migrations
from holdfast.store.liveness import refuse_fork
from holdfast.store.sqlite.connection import checked_synchronous, connect, translated_errors

NETWORK_FILE_SYSTEMS = frozenset(
    "9p afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs nfs nfs4 "
    "ocfs2 gfs2 orangefs smb3 smbfs vboxsf virtiofs".split()
)


def prepare_file(path: Path) -> None:
    """Make the directory (0700) and an empty file (0600) if they are not there; refuse a network file system."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = Path(os.path.realpath(path))
        refuse_network(target.parent)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if not target.exists():
            _make_empty(target)
    except PermissionError as error:
        raise StoreReadOnly(
            f"cannot write in {path.parent}: {error.strerror}",
            hint="choose another directory with --state, or fix its owner",
        ) from error
    except (NotADirectoryError, FileExistsError) as error:
        raise StoreReadOnly(f"{path.parent} is not a directory", hint="choose another with --state") from error
    except OSError as error:
        raise StoreReadOnly(
            f"cannot make {path}: {error.strerror or error}", hint="see the message; nothing was changed"
        ) from error


def _make_empty(path: Path) -> None:
    """An empty file with mode 0600, made aside and linked into place.

    Nobody else can have it open when our descriptor is closed: closing one drops all locks a process has on a file.
    """
    import tempfile  # noqa: PLC0415 - half of an interpreter's start, for a file that is made once

    descriptor, aside = tempfile.mkstemp(prefix=".", suffix=".new", dir=path.parent)
    os.close(descriptor)
    try:
        os.link(aside, path)
    except FileExistsError:
        pass  # another process was faster
    finally:
        os.unlink(aside)


def refuse_network(directory: Path) -> None:
    """Raise StoreUnsafe on a file system whose locks and shared memory cannot be trusted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return
    kind = file_system_of(os.path.realpath(directory), mounts)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(
            f"{directory} is on a network file system ({kind}), where SQLite can lose or corrupt data",
            hint="put the state on a local disk, or share it through PostgreSQL: --store postgresql://…",
        )


def file_system_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that holds `path`, by the text of /proc/self/mountinfo."""
    best, best_kind = "", None
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        mount = fields[4].replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
        holds = path == mount or path.startswith(mount.rstrip("/") + "/")
        # The last of two mounts on one place is the visible one.
        if holds and len(mount) >= len(best):
            best, best_kind = mount, after.split()[0]
    return best_kind


# --- Faults of the file and of its schema ---------------------------------------------------------------

PACKAGE = "holdfast.store"
MIGRATIONS = (
    "CREATE TABLE IF NOT EXISTS holdfast_migrations "
    "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL)"
)
MOST_LINES = 100
"""What SQLite says of a damaged file, at most."""

_CONSTRAINT = re.compile(r"(?:CHECK constraint failed in|NULL value in|non-\w+ value in) (?P<table>\w+)")


def prepare(connection: sqlite3.Connection) -> None:
    """Give a connection what statements about facts use."""
    connection.create_function("digest", 1, _digest, deterministic=True)


def _digest(text: object) -> str | None:
    # What is no text is found when it is None; a text that cannot be encoded has no digest that anything else has.
    return digest(text.encode("utf-8", "replace").decode()) if isinstance(text, str) else None


def damage(connection: sqlite3.Connection, *, deep: bool, most_bytes: int | None = None) -> Iterator[Finding]:
    """What SQLite's own check finds, unless the file is larger than that; `deep` compares every index as well."""
    pragma = "integrity_check" if deep else "quick_check"
    try:
        (pages,), (size,) = (connection.execute(f"PRAGMA {one}").fetchone() for one in ("page_count", "page_size"))
        if most_bytes is not None and pages * size > most_bytes:
            return
        for (line,) in connection.execute(f"PRAGMA {pragma}({MOST_LINES})"):
            broken = _CONSTRAINT.match(line)
            if broken is not None:
                # Not the disk: somebody has switched the checks off. The job or queue itself is found by its values.
                yield error("check-failed", f"table {broken['table']}", line)
            elif line != "ok":
                yield error("sqlite-damaged", "database", line)
    except sqlite3.DatabaseError as fault:
        yield error("sqlite-damaged", "database", f"it cannot be read to its end: {fault}")


def missing_rules(connection: sqlite3.Connection) -> Iterator[Finding]:
    """What the migrations made and somebody has dropped or changed, and what was added to it."""
    try:
        present = _schema_of(connection)
    except sqlite3.DatabaseError as fault:
        yield error("sqlite-damaged", "schema", f"cannot be read: {fault}")
        return
    expected = expected_schema()
    for name, (_, _, sql) in expected.items():
        if name not in present:
            yield error("rule-missing", f"schema {name}", "is gone: somebody has dropped it")
        elif present[name][2] != sql:
            yield error("rule-changed", f"schema {name}", "is not what the migrations made")
    tables = {name for name, (kind, _, _) in expected.items() if kind == "table"}
    for name, (kind, table, _) in present.items():
        if name not in expected and table in tables:
            say = error if kind == "trigger" else warning
            yield say("rule-added", f"schema {name}", f"somebody has added this {kind} to {table}")
    yield from _migrations(connection)


def _migrations(connection: sqlite3.Connection) -> Iterator[Finding]:
    try:
        applied = connection.execute("SELECT version, name FROM holdfast_migrations ORDER BY version").fetchall()
    except sqlite3.DatabaseError as fault:
        yield error("migrations-changed", "schema holdfast_migrations", f"cannot be read: {fault}")
        return
    if applied != [(migration.version, migration.name) for migration in load_migrations(PACKAGE, "sqlite")]:
        yield error("migrations-changed", "schema holdfast_migrations", "does not list what was applied")


@cache
def expected_schema() -> dict[str, tuple[str, str, str]]:
    """name → kind, table and SQL of everything the migrations make."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.execute(MIGRATIONS)
        for migration in load_migrations(PACKAGE, "sqlite"):
            fresh.executescript(migration.sql)
        return _schema_of(fresh)


def _schema_of(connection: sqlite3.Connection) -> dict[str, tuple[str, str, str]]:
    """name → kind, table and SQL of every index, trigger, view and table; white space does not count."""
    rows = connection.execute("SELECT name, type, tbl_name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    return {
        name: (kind, table, " ".join(sql.split())) for name, kind, table, sql in rows if not name.startswith("sqlite_")
    }


# --- One SQLite file: opened with the promised settings, written by one thread at a time, read by any ---

MINIMUM_SQLITE = (3, 37, 0)
AS_TEXT = partial(str, encoding="utf-8", errors="backslashreplace")
"""A text of the engine's that is not UTF-8 is shown as what it is, and does not keep anybody from reading the rest."""
TURN = 10.0
"""Seconds that a thread waits for another one's transaction, which may be waiting for that very thread."""


class Database:
    """Connections to one database file. Crash: an open transaction is rolled back by the next opener."""

    def __init__(self, path: Path, *, synchronous: str = "FULL", read_only: bool = False) -> None:
        if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
            raise errors.StoreUnsafe(f"SQLite {sqlite3.sqlite_version} is too old; 3.37 or newer is needed")
        self.path = path
        self._synchronous = checked_synchronous(synchronous)
        self._read_only = read_only
        self._write_lock = threading.RLock()
        self._local = threading.local()
        self._readers: dict[threading.Thread, sqlite3.Connection] = {}
        self._readers_lock = threading.Lock()
        self._process = os.getpid()
        if not read_only:
            prepare_file(path)
        if not path.exists():
            raise errors.StoreError(f"{path} does not exist", hint="submit something first, or check --state")
        self._writer = self._connect()

    @contextmanager
    def transaction(self, verb: str) -> Iterator[sqlite3.Connection]:
        """A write transaction: committed at the end, or rolled back whole. Other threads wait their turn."""
        refuse_fork(self._process)
        with self._turn(), translated_errors(self.path):
            connection = self._writer
            if _is_open(connection):
                raise errors.BadInput(
                    f"{verb} was called inside a commit step, which has a transaction open already",
                    hint="use the tx it was given: tx.execute(...), tx.submit(...)",
                )
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                crash_point(verb, "before-commit")
                connection.execute("COMMIT")
            except BaseException:
                # A full disk makes SQLite roll back on its own.
                if _is_open(connection):
                    connection.execute("ROLLBACK")
                raise
        crash_point(verb, "after-commit")

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._write_lock.acquire(timeout=TURN):
            raise errors.StoreBusy(
                f"{self.path}: another thread of this process has had a transaction open for {TURN:.0f} s",
                hint="a commit step that waits for it has to use its own transaction: tx.execute(...), tx.submit(...)",
            )
        try:
            yield
        finally:
            self._write_lock.release()

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection of its own on which all reads see one state of the database, however long they take."""
        refuse_fork(self._process)
        with translated_errors(self.path):
            connection = self._connect()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For single reads."""
        refuse_fork(self._process)
        with translated_errors(self.path):
            yield self.reader()

    def reader(self) -> sqlite3.Connection:
        """This thread's own connection for reading."""
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            with self._readers_lock:
                for thread in [thread for thread in self._readers if not thread.is_alive()]:
                    self._readers.pop(thread).close()
                self._readers[threading.current_thread()] = connection
        return connection

    def close(self) -> None:
        """Close every connection."""
        if os.getpid() != self._process:
            return  # they are the parent's
        with self._write_lock:
            for connection in [*self._readers.values(), self._writer]:
                connection.close()
            self._readers.clear()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path, synchronous=self._synchronous, read_only=self._read_only)
        connection.text_factory = AS_TEXT
        prepare(connection)
        return connection


def _is_open(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction


# --- Wake-up without polling: every listener has a FIFO beside the database, a change writes a byte into each ---

log = logging.getLogger("holdfast.wakeup")


class FifoListener:
    """Waits for somebody to notify. A listener that died leaves a FIFO without a reader, which is removed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{os.urandom(5).hex()}"
        self._path = directory / name
        # Opened under a hidden name: notifiers remove a FIFO that nobody reads, and this one would be, for a moment.
        hidden = directory / f".{name}"
        os.mkfifo(hidden, 0o600)
        # Read and write, so that the FIFO never reports the end of file when the last notifier closes it.
        self._descriptor = os.open(hidden, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        hidden.rename(self._path)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._watched: set[int] = set()
        self._woken = False
        self._process = os.getpid()

    def wait(self, timeout: float | None) -> bool:
        """Sleep until notified, a watched descriptor is ready, or the time is up; True unless it was the time."""
        ready = self._poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
        if any(descriptor == self._descriptor for descriptor, _ in ready):
            try:
                os.read(self._descriptor, 4096)
            except BlockingIOError:
                pass
            # After reading, or the byte that was read could be taken for one that is still there. Whoever relied on it
            # until now has changed what the caller looks at next.
            self._woken = False
        return bool(ready)

    def watch(self, descriptors: set[int]) -> None:
        """Also wake when one of these descriptors (of processes, say) becomes readable."""
        for gone in self._watched - descriptors:
            self._poll.unregister(gone)
        for new in descriptors - self._watched:
            self._poll.register(new, select.POLLIN)
        self._watched = set(descriptors)

    def wake(self) -> None:
        """Make wait() return."""
        if self._woken:
            return  # a byte is there already, and one is enough
        self._woken = True
        try:
            os.write(self._descriptor, b".")
        except (BlockingIOError, OSError):
            pass  # full: it will wake anyway

    def close(self) -> None:
        """Stop listening."""
        if os.getpid() == self._process:
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


class FifoNotifier:
    """Notifies all listeners of a directory; their FIFOs are kept open from one time to the next."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def notify(self) -> None:
        """Wake every listener, in this process and in others."""
        with self._lock:
            try:
                self._refresh()
            except OSError as error:
                # What was written is durable all the same, and listeners look by themselves now and then.
                log.warning("cannot look for listeners: %s", error)
            for name, descriptor in list(self._open.items()):
                try:
                    os.write(descriptor, b".")
                except BlockingIOError:
                    pass  # full: it will wake anyway
                except OSError:
                    self._forget(name, gone=True)

    def close(self) -> None:
        """Let go of all listeners."""
        with self._lock:
            for name in list(self._open):
                self._forget(name, gone=False)

    def _refresh(self) -> None:
        try:
            names = {name for name in os.listdir(self._directory) if not name.startswith(".")}
        except FileNotFoundError:
            return
        for name in set(self._open) - names:
            self._forget(name, gone=False)
        for name in names - set(self._open):
            try:
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
                self._open[name] = os.open(self._directory / name, flags)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    (self._directory / name).unlink(missing_ok=True)

    def _forget(self, name: str, *, gone: bool) -> None:
        os.close(self._open.pop(name))
        if gone:
            (self._directory / name).unlink(missing_ok=True)
