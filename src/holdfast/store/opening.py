"""From a URL or a directory to a store. The concrete store is imported only when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

from holdfast.errors import SettingsError
from holdfast.store.protocol import Store

DATABASE_NAME = "holdfast.db"
FILE_OPTIONS = ("passfile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert")


def open_store(
    place: str | Path, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
) -> Store:
    """Open the store at `place`: a state directory, a `.db` file, or a `sqlite:///` or `postgresql://` URL."""
    if str(place).startswith(("postgresql://", "postgres://")):
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
    if str(place).startswith(("postgresql://", "postgres://")):
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
    place = _postgres_place(url)
    from holdfast.store.postgres.backup import restore

    def verify_restored() -> None:
        # Opening it also brings it up to the schema of this version.
        with closing(open_store(url)) as store:
            verify(store)

    restore(place.url, place.schema, source, verify=verify_restored)


def _open_postgres(url: str, *, synchronous: str, clock: Callable[[], int] | None, read_only: bool) -> Store:
    place = _postgres_place(url)
    from holdfast.store.postgres.store import PostgresStore

    return PostgresStore(
        place.url,
        schema=place.schema,
        synchronous=synchronous,
        clock=clock,
        connections=place.connections,
        read_only=read_only,
    )


class _PostgresPlace(NamedTuple):
    url: str
    schema: str
    connections: int


def _postgres_place(url: str) -> _PostgresPlace:
    try:
        from holdfast.store.postgres.store import DEFAULT_SCHEMA
    except ImportError as error:
        raise SettingsError(
            f"PostgreSQL needs packages that are not installed: {error}", hint="pip install 'holdfast[postgres]'"
        ) from error
    # libpq refuses parameters that it does not know, so ours are taken out.
    address, _, query = url.partition("?")
    # To libpq a plus sign is a plus sign.
    options = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    schema = options.pop("holdfast_schema", DEFAULT_SCHEMA)
    connections = options.pop("holdfast_connections", "10")
    if not connections.isdecimal() or int(connections) < 1:
        raise SettingsError(f"holdfast_connections={connections} in the URL is not a number of connections")
    # libpq reads these anew for each connection, and a step may have changed the directory since.
    options |= {name: _absolute(options[name]) for name in FILE_OPTIONS if options.get(name)}
    # Spaces in `options` must be %20: libpq does not take a plus sign for one.
    plain = "?".join(filter(None, [address, urlencode(options, quote_via=quote)]))
    return _PostgresPlace(plain, schema, int(connections))


def _absolute(file: str) -> str:
    # "system" is no file, but stands for the certificates that the system trusts.
    return file if file == "system" else str(Path(file).expanduser().absolute())


def database_path(place: str | Path) -> Path:
    """Where the database file of a place is, from wherever it is asked for later: a step may change the directory."""
    if not isinstance(place, str | os.PathLike):
        # As text it would name a directory all the same: that of a setting which is not set is None.
        raise SettingsError(f"{place!r} is not the place of a store", hint="give a directory or a URL")
    text = str(place)
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme != "sqlite":
            raise SettingsError(
                f"no store for {scheme}:// URLs", hint="give a directory, or sqlite:///path/to/holdfast.db"
            )
        # sqlite:///relative/path has three slashes, sqlite:////absolute/path has four.
        text = rest.removeprefix("/")
    if not text:
        raise SettingsError("the state directory is empty", hint="pass --state DIR or set HOLDFAST_STATE")
    path = Path(text).expanduser().absolute()
    return path if path.suffix == ".db" else path / DATABASE_NAME
