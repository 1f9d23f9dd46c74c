"""`--app module:object`: from a reference to flows, with an error that says what to correct."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from holdfast.core.flow import Flow
from holdfast.core.pipeline import Pipeline
from holdfast.errors import HoldfastError, SettingsError

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
