"""`--app module:object`: from a reference to flows, with an error that says what to correct."""

from __future__ import annotations

import importlib
import logging
import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from holdfast.cli.command import CommandSettings
from holdfast.client import Client
from holdfast.core.facts import Finding
from holdfast.core.flow import Flow, Pipeline
from holdfast.errors import HoldfastError, SettingsError, StoreCorrupt, StoreError, StoreReadOnly, UnknownFlowError
from holdfast.store.open import open_store
from holdfast.store.place import database_path
from holdfast.store.protocol import Store
from holdfast.store.sqlite.connection import translate

_PACKAGE = os.path.dirname(os.path.dirname(__file__))


def load_flows(reference: str) -> list[Flow[Any, Any]]:
    """The flows an app defines, the stages of its pipelines included. Runs the code of the app's module."""
    module_name, separator, attribute = reference.partition(":")
    if not separator or not module_name or not attribute:
        raise SettingsError(f"--app {reference!r} is not of the form module:object", hint="such as --app myapp:flows")
    module = _import(module_name)
    found = _find(module, module_name, attribute)
    flows = _flows_of(found, reference)
    for flow in flows:
        if isinstance(flow, Pipeline):
            # The list grows while it is walked, so that the stages of stages are found, too.
            flows += [stage for stage in flow.stages.values() if all(stage is not known for known in flows)]
    names = [flow.name for flow in flows]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingsError(f"--app: two flows are named {twice[0]!r}", hint="rename one of them")
    return flows


def _import(name: str) -> ModuleType:
    directory = os.getcwd()
    if directory not in sys.path:
        # As `python -m` does; the installed command has its own directory in this place.
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            hint = f"run from the directory that has it (this is {directory}), or set PYTHONPATH"
            raise SettingsError(f"--app: there is no module {missing!r}", hint=hint) from error
        raise _failed(f"importing {name}", error) from error
    except (Exception, SystemExit) as error:
        raise _failed(f"importing {name}", error) from error


def _find(module: ModuleType, name: str, attribute: str) -> Any:
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            flows = [each for each, value in vars(module).items() if isinstance(value, Flow)]
            hint = f"flows in it: {', '.join(flows)}" if flows else "the module defines no flow at its top level"
            raise SettingsError(f"--app: {name} has no {attribute!r}", hint=hint) from None
    return found


def _flows_of(found: Any, reference: str) -> list[Flow[Any, Any]]:
    if callable(found) and not isinstance(found, Flow):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise _failed(f"calling {reference}", error) from error
    if isinstance(found, Flow):
        found = [found]
    if isinstance(found, Mapping):
        found = found.values()
    hint = "it should be a Flow, an iterable of Flows, or a function that returns them"
    if not isinstance(found, Iterable) or isinstance(found, str | bytes):
        raise SettingsError(f"--app: {reference} is a {type(found).__name__}, not flows", hint=hint)
    flows = list(found)
    strange = next((each for each in flows if not isinstance(each, Flow)), None)
    if strange is not None:
        raise SettingsError(f"--app: {reference} has a {type(strange).__name__} among its flows", hint=hint)
    if not flows:
        raise SettingsError(f"--app: {reference} has no flows in it", hint=hint)
    return flows


def _failed(doing: str, error: BaseException) -> SettingsError:
    advice = f"; {error.hint}" if isinstance(error, HoldfastError) and error.hint else ""
    return SettingsError(f"--app: {doing} failed: {type(error).__name__}: {error}", hint=f"{_where(error)}{advice}")


def _where(error: BaseException) -> str:
    """The last line of the user's own code that was involved."""
    if isinstance(error, SyntaxError):
        return f"at {error.filename}, line {error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(("<frozen", _PACKAGE)) and f.filename != importlib.__file__]
    return f"at {own[-1].filename}, line {own[-1].lineno}" if own else "see the module"


# --- From settings to an open store, a client, the flows of an app --------------------------------------


class RowRepair(NamedTuple):
    """One row of an application that was wrong, and whether it is right now."""

    subject: str
    why: str
    is_done: bool


class Gauge(NamedTuple):
    """A figure of an application's own, as metrics tell it: values by those of its labels."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


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
    gauges: Callable[[], Iterable[Gauge]] = tuple
    """Figures of its own, for the metrics of a worker."""


@contextmanager
def opened(
    settings: CommandSettings, *, read_only: bool = False, create: bool = False, synchronous: str = "FULL"
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
    settings: CommandSettings, *, read_only: bool = False, flows: Sequence[Flow[Any, Any]] = ()
) -> Iterator[Client]:
    """A client of that store. An operator needs no app for it, not even a working one."""
    with opened(settings, read_only=read_only) as store:
        yield Client(store, flows, actor=settings.actor)


def app_flows(settings: CommandSettings) -> list[Flow[Any, Any]]:
    """The flows of the app, which this command cannot do without."""
    return app_of(settings).flows


def unknown_flow(settings: CommandSettings, name: str, known: Iterable[str]) -> UnknownFlowError:
    """The error for a flow that the app does not have."""
    hint = f"registered here: {', '.join(sorted(known)) or 'none'}"
    if settings.app is None:
        hint += "; those of an app of yours: --app module:object, or HOLDFAST_APP"
    return UnknownFlowError(f"flow {name!r} is not registered", hint=hint)


def app_of(settings: CommandSettings) -> App:
    """The app of the settings, or the default one of whoever has extended the command."""
    if settings.app is not None:
        return App(load_flows(settings.app))
    if settings.default_app is None:
        raise SettingsError("no app is given", hint="say where the flows are: --app module:object, or HOLDFAST_APP")
    module, _, function = settings.default_app.partition(":")
    app = getattr(importlib.import_module(module), function)(settings)
    assert isinstance(app, App)
    return app


def own_app(settings: CommandSettings) -> App:
    """The app whose own rows `check` and `repair` are about, too: that of whoever has extended the command, or none."""
    return App([]) if settings.default_app is None or settings.app is not None else app_of(settings)


def database_file(settings: CommandSettings) -> Path | None:
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
