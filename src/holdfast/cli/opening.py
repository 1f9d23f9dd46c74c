"""From settings to an open store, a client, the flows of an app."""

from __future__ import annotations

import importlib
import logging
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.cli.apps import load_flows
from holdfast.cli.settings import Settings
from holdfast.client import Client
from holdfast.core.facts import Finding
from holdfast.core.flow import Flow
from holdfast.errors import SettingsError, StoreCorrupt, StoreError, StoreReadOnly, UnknownFlowError
from holdfast.store.opening import open_store
from holdfast.store.place import database_path
from holdfast.store.protocol import Store
from holdfast.store.sqlite.connection import translate


class RowRepair(NamedTuple):
    """One row of an application that was wrong, and whether it is right now."""

    subject: str
    why: str
    is_done: bool


class App(NamedTuple):
    """What a worker runs, and how many jobs of a queue at once unless an operator has said otherwise."""

    flows: list[Flow[Any, Any]]
    queue_limits: Mapping[str, int] = {}
    start: Callable[[], object] = lambda: None
    """Called before any of its jobs is run, when the store is there: flows that are only looked at open nothing."""
    check: Callable[[], Iterable[Finding]] = tuple
    """What is wrong with rows of its own, found cheaply: asked by `check`, and by the guard in every round."""
    repair: Callable[[bool], Sequence[RowRepair]] = lambda _dry_run: ()
    """Puts them right, or with a dry run says what it would do."""


@contextmanager
def opened(
    settings: Settings, *, read_only: bool = False, create: bool = False, synchronous: str = "FULL"
) -> Iterator[Store]:
    """The store of the settings. Only with `create` is one made that is not there: looking leaves no trace."""
    place = settings.place
    path = _path_of(place)
    if path is not None and not create:
        _refuse_missing(path)
    store = open_store(place, synchronous=synchronous, read_only=read_only)
    _leave_refusals_to_the_command()
    try:
        yield store
    except sqlite3.Error as error:
        # Damage often shows only when rows are read.
        raise translate(error, path or Path(place)) from error
    except msgspec.ValidationError as error:
        hint = "somebody has written to the database by hand; see: holdfast check"
        raise StoreCorrupt(f"{store.url}: a row cannot be understood: {error}", hint=hint) from error
    finally:
        store.close()


def _leave_refusals_to_the_command() -> None:
    """A command tells its user of an error itself; the store's log line would only repeat it."""
    log = logging.getLogger("holdfast.operators")
    log.propagate = False
    log.addHandler(logging.NullHandler())


@contextmanager
def opened_client(
    settings: Settings, *, read_only: bool = False, flows: Sequence[Flow[Any, Any]] = ()
) -> Iterator[Client]:
    """A client of that store. An operator needs no app for it, not even a working one."""
    with opened(settings, read_only=read_only) as store:
        yield Client(store, flows, actor=settings.actor)


def app_flows(settings: Settings) -> list[Flow[Any, Any]]:
    """The flows of the app, which this command cannot do without."""
    return app_of(settings).flows


def unknown_flow(settings: Settings, name: str, known: Iterable[str]) -> UnknownFlowError:
    """The error for a flow that the app does not have."""
    hint = f"registered here: {', '.join(sorted(known)) or 'none'}"
    if settings.app is None:
        hint += "; those of an app of yours: --app module:object, or HOLDFAST_APP"
    return UnknownFlowError(f"flow {name!r} is not registered", hint=hint)


def app_of(settings: Settings) -> App:
    """The app of the settings, or the default one of whoever has extended the command."""
    if settings.app is not None:
        return App(load_flows(settings.app))
    if settings.default_app is None:
        raise SettingsError("no app is given", hint="say where the flows are: --app module:object, or HOLDFAST_APP")
    module, _, function = settings.default_app.partition(":")
    app = getattr(importlib.import_module(module), function)(settings)
    assert isinstance(app, App)
    return app


def own_app(settings: Settings) -> App:
    """The app whose own rows `check` and `repair` are about, too: that of whoever has extended the command, or none."""
    return App([]) if settings.default_app is None or settings.app is not None else app_of(settings)


def database_file(settings: Settings) -> Path | None:
    """The file of the database, None if the store is not a file."""
    return _path_of(settings.place)


def _path_of(place: str) -> Path | None:
    scheme, separator, _ = place.partition("://")
    return database_path(place) if not separator or scheme == "sqlite" else None


def _refuse_missing(path: Path) -> None:
    try:
        is_there = path.exists()
    except PermissionError as error:
        raise StoreReadOnly(
            f"cannot look into {path.parent}: {error.strerror}", hint="fix its owner or mode, or choose another --state"
        ) from error
    if not is_there:
        raise StoreError(
            f"there is no Holdfast database at {path}",
            hint="point --state or HOLDFAST_STATE to it; worker and submit make a new one",
        )
