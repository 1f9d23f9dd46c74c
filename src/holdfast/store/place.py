"""Which database is meant by a URL or a directory. Opens nothing, and imports nothing that would."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from holdfast.errors import SettingsError

DATABASE_NAME = "holdfast.db"
ENGINE_TABLES = frozenset(
    "cancellations changes children definitions executions holdfast_migrations holdfast_rules jobs journal keys"
    " pending_releases permits pruned queue_events queues requests steps workers".split()
)
"""What the engine keeps for itself: no application may name, change or drop one of these."""
DEFAULT_SCHEMA = "holdfast"
FILE_OPTIONS = ("passfile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert")


class PostgresPlace(NamedTuple):
    """A server's URL without the engine's own parameters, and what those say."""

    url: str
    schema: str
    connections: int


def is_postgres(place: str | Path) -> bool:
    """Is it a server's URL?"""
    return str(place).startswith(("postgresql://", "postgres://"))


def postgres_place(url: str) -> PostgresPlace:
    """The parts of a server's URL. libpq refuses parameters that it does not know, so ours are taken out."""
    from urllib.parse import parse_qsl, quote, urlencode  # noqa: PLC0415 - most places are files

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
    return PostgresPlace(plain, schema, int(connections))


def not_installed(error: ImportError) -> SettingsError:
    """What to say when the driver is missing."""
    return SettingsError(
        f"PostgreSQL needs packages that are not installed: {error}", hint="pip install 'holdfast[postgres]'"
    )


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


def _absolute(file: str) -> str:
    # "system" is no file, but stands for the certificates that the system trusts.
    return file if file == "system" else str(Path(file).expanduser().absolute())
