"""Putting a backup in the place of the database: verified first, then whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from holdfast.core.worker_id import label_of
from holdfast.errors import SettingsError, StateError, StoreBusy, StoreCorrupt, StoreForeign
from holdfast.store.new_file import sync
from holdfast.store.processes import is_dead, is_running_here
from holdfast.store.sqlite.backup import backup, copy_whole
from holdfast.store.sqlite.connection import APPLICATION_ID, translated_errors
from holdfast.store.sqlite.place import refuse_network

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
