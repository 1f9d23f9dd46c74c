"""Which database is meant: the engine's, by the engine's own rules."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from holdfast_images.errors import CatalogUnusable

DATABASE_NAME = "holdfast.db"
DEFAULT_SCHEMA = "holdfast"
FILE_OPTIONS = ("passfile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslrootcert")
"""libpq reads these anew for each connection, and a step may have changed the directory since."""


def is_postgres(place: str | Path) -> bool:
    """Is it a server's URL?"""
    return str(place).startswith(("postgresql://", "postgres://"))


def database_path(place: str | Path) -> Path:
    """The file of a state directory, a `.db` file or a `sqlite:///` URL, as an absolute path."""
    text = str(place)
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme != "sqlite":
            raise CatalogUnusable(f"no catalog for {scheme}:// URLs", hint="give a directory, or sqlite:///path/to.db")
        # sqlite:///relative/path has three slashes, sqlite:////absolute/path has four.
        text = rest.removeprefix("/")
    if not text:
        raise CatalogUnusable("the state directory is empty", hint="say where the engine keeps its state")
    path = Path(text).expanduser().absolute()
    return path if path.suffix == ".db" else path / DATABASE_NAME


def split_url(url: str) -> tuple[str, str]:
    """A server's URL without the engine's own parameters, which libpq would refuse, and the schema."""
    address, _, query = url.partition("?")
    # To libpq a plus sign is a plus sign.
    options = dict(parse_qsl(query.replace("+", "%2B"), keep_blank_values=True))
    schema = options.pop("holdfast_schema", DEFAULT_SCHEMA)
    for name in [name for name in options if name.startswith("holdfast_")]:
        options.pop(name)
    for name in FILE_OPTIONS:
        if options.get(name) and options[name] != "system":
            options[name] = str(Path(options[name]).expanduser().absolute())
    # Spaces in `options` must be %20: libpq does not take a plus sign for one.
    return "?".join(filter(None, [address, urlencode(options, quote_via=quote)])), schema
