"""A file that is there whole and on the disk under its name, or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.store.place import database_path, is_postgres, not_installed, postgres_place
from holdfast.store.protocol import Store

PARTIAL = ".partial"


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A private file to write to, which gets the name of `target` in the end.

    Of two that make one name at once, the first to finish has it and the other is refused: nothing is overwritten.
    Crash: a file `.NAME.….partial` is left, which the next one of that name removes.
    """
    target = target.absolute()  # it takes a while, and a step may change the directory
    _refuse_existing(target)
    if not target.parent.is_dir():
        raise SettingsError(f"there is no directory {target.parent}", hint="make it first")
    _remove_abandoned(target)
    with _private_file(target) as partial:
        yield partial
        sync(partial)
        _name(partial, target)
        sync(target.parent)


def sync(path: Path) -> None:
    """See that the file, or what the directory lists, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _private_file(target: Path) -> Iterator[Path]:
    """A new empty file beside `target`, under a name that nobody else has or gets; removed at the end if still there.

    It is locked as long as it is used: one that is not is left over from a process that was killed.
    """
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=PARTIAL, dir=target.parent)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(descriptor, name):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # taken for a leftover in the moment before it was locked
    try:
        yield Path(name)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
        os.close(descriptor)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        raise SettingsError(f"{target} exists already", hint="give a new name; a backup never overwrites")


def _name(partial: Path, target: Path) -> None:
    """Give the whole file its name, unless that has been taken meanwhile."""
    try:
        os.link(partial, target)
    except FileExistsError:
        _refuse_existing(target)
        raise
    except OSError:
        # No hard links on this file system. A rename cannot be told to replace nothing: of two backups that end in
        # the same moment the later one stays, and it is whole.
        _refuse_existing(target)
        partial.rename(target)


def _remove_abandoned(target: Path) -> None:
    for entry in os.scandir(target.parent):
        if not (entry.name.startswith(f".{target.name}.") and entry.name.endswith(PARTIAL)):
            continue
        with suppress(OSError):  # somebody else's, or in use: left alone
            descriptor = os.open(entry.path, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still(descriptor, entry.path):
                    os.unlink(entry.path)
            finally:
                os.close(descriptor)


def _is_still(descriptor: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name))
    except FileNotFoundError:
        return False


# --- From a URL or a directory to a store. The concrete store is imported only when it is asked for -----


def open_store(
    place: str | Path, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
) -> Store:
    """Open the store at `place`: a state directory, a `.db` file, or a `sqlite:///` or `postgresql://` URL."""
    if is_postgres(place):
        return _open_postgres(str(place), synchronous=synchronous, clock=clock, read_only=read_only)
    from holdfast.store.sqlite.store import SqliteStore, wall_clock

    path = database_path(place)
    return SqliteStore(path, synchronous=synchronous, clock=clock or wall_clock, read_only=read_only)


def restore_store(place: str | Path, source: Path, *, verify: Callable[[Store], None]) -> Path | None:
    """Make the database at `place` what the backup `source` is; returns where what was there before is kept.

    `verify` is given a store on a copy of the backup, and raises if it is not to be used.
    Refused while workers are alive. Crash: the database is the old one or the restored one.
    On PostgreSQL the schema must be empty or missing, nothing is kept, and `verify` is given the restored store.
    """
    if is_postgres(place):
        _restore_postgres(str(place), source, verify)
        return None
    from holdfast.store.sqlite.store import SqliteStore, restore, wall_clock

    def verify_copy(path: Path) -> None:
        # Opening it also brings it up to the schema of this version, so that a failing migration fails here.
        with closing(SqliteStore(path)) as store:
            verify(store)

    return restore(source, database_path(place), now=wall_clock(), verify=verify_copy)


def _restore_postgres(url: str, source: Path, verify: Callable[[Store], None]) -> None:
    try:
        from holdfast.store.postgres.backup import restore
    except ImportError as error:
        raise not_installed(error) from error
    place = postgres_place(url)

    def verify_restored() -> None:
        # Opening it also brings it up to the schema of this version.
        with closing(open_store(url)) as store:
            verify(store)

    restore(place.url, place.schema, source, verify=verify_restored)


def _open_postgres(url: str, *, synchronous: str, clock: Callable[[], int] | None, read_only: bool) -> Store:
    try:
        from holdfast.store.postgres.store import PostgresStore
    except ImportError as error:
        raise not_installed(error) from error
    place = postgres_place(url)

    return PostgresStore(
        place.url,
        schema=place.schema,
        synchronous=synchronous,
        clock=clock,
        connections=place.connections,
        read_only=read_only,
    )
