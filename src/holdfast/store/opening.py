"""From a URL or a directory to a store. The concrete store is imported only when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import SettingsError
from holdfast.store.protocol import Store

DATABASE_NAME = "holdfast.db"


def open_store(
    place: str | Path, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
) -> Store:
    """Open the store at `place`: a state directory, a `.db` file, or a `sqlite:///` URL."""
    from holdfast.store.sqlite.store import SqliteStore, wall_clock

    path = database_path(place)
    return SqliteStore(path, synchronous=synchronous, clock=clock or wall_clock, read_only=read_only)


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
