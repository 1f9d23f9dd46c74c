"""What another package may add to the command: commands of its own, an app, settings and exit codes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.cli.command import Entry
from holdfast.cli.exits import ExitCode
from holdfast.errors import HoldfastError


class Extension(NamedTuple):
    """Nothing in it is imported before it is used: references are texts."""

    about: str
    """Takes the place of the first lines of the help."""
    entries: Mapping[str, Entry]
    """Commands, shown before those of the engine."""
    default_app: str
    """`module:function`, which is called with the settings and gives an App: what is run without --app."""
    keys: frozenset[str]
    """What else the settings file may have in it."""
    codes: Mapping[type[HoldfastError], ExitCode]
    """The exit codes of its own errors."""
