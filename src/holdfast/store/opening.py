"""From a URL or a directory to a store. The concrete store is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from holdfast.store.place import database_path, is_postgres, not_installed, postgres_place
from holdfast.store.protocol import Store


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
    from holdfast.store.sqlite.restore import restore
    from holdfast.store.sqlite.store import SqliteStore, wall_clock

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
