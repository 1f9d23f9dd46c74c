"""From a URL or a directory to a store. The concrete store is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from holdfast.errors import SettingsError
from holdfast.store.protocol import Store

DATABASE_NAME = "holdfast.db"


def open_store(
    place: str | Path, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
) -> Store:
    """Open the store at `place`: a state directory, a `.db` file, or a `sqlite:///` or `postgresql://` URL."""
    if str(place).startswith(("postgresql://", "postgres://")):
        return _open_postgres(str(place), synchronous=synchronous, clock=clock, read_only=read_only)
    from holdfast.store.sqlite.store import SqliteStore, wall_clock

    path = database_path(place)
    return SqliteStore(path, synchronous=synchronous, clock=clock or wall_clock, read_only=read_only)


def _open_postgres(url: str, *, synchronous: str, clock: Callable[[], int] | None, read_only: bool) -> Store:
    try:
        from holdfast.store.postgres.store import DEFAULT_SCHEMA, PostgresStore
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
    # Spaces in `options` must be %20: libpq does not take a plus sign for one.
    plain = "?".join(filter(None, [address, urlencode(options, quote_via=quote)]))
    return PostgresStore(
        plain,
        schema=schema,
        synchronous=synchronous,
        clock=clock,
        connections=int(connections),
        read_only=read_only,
    )


def database_path(place: str | Path) -> Path:
    """Where the database file of a place is."""
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
    path = Path(text).expanduser()
    return path if path.suffix == ".db" else path / DATABASE_NAME
