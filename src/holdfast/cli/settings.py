"""What the command line and the environment say, wherever on the line it is said."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from holdfast.errors import SettingsError

ACTOR_LIMIT = 200


class Settings:
    """The settings every command understands. The command line is stronger than the environment."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.store: str | None = None
        self.app: str | None = None
        self.log_format = "text"
        self.json = False
        self.verbosity = 0
        self._actor: str | None = None
        self._sources: dict[str, ParameterSource] = {}

    def take(self, name: str, value: Any, source: ParameterSource) -> None:
        """Remember a value that was given."""
        if name in ("verbose", "quiet"):
            self.verbosity += value if name == "verbose" else -value
        elif name == "actor":
            self._actor = checked_actor(value)
        else:
            setattr(self, name, value)
        self._sources[name] = source

    @property
    def actor(self) -> str:
        """Who is named in the journal."""
        return self._actor or default_actor()

    @property
    def place(self) -> str:
        """Where the database is: a URL, or a directory."""
        if self.state is not None and self.store is not None:
            if self._sources["state"] is self._sources["store"]:
                raise SettingsError("both --state and --store are given", hint="give one of them")
            if self._sources["state"] is ParameterSource.COMMANDLINE:
                return self.state
        return self.store or self.state or default_state()


def default_state() -> str:
    """$XDG_STATE_HOME/holdfast: the same from every directory, so that operators find what workers use."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(base, "holdfast")


def default_actor() -> str:
    """operator:<user>@<host>"""
    host = os.uname().nodename or "localhost"
    return f"operator:{_user_name()}@{host}"


def checked_actor(actor: str) -> str:
    """`actor`, if it may be written into the journal."""
    if not actor.strip() or len(actor) > ACTOR_LIMIT or not actor.isprintable():
        raise SettingsError(
            f"actor {actor[:80]!r} is not valid", hint=f"1 to {ACTOR_LIMIT} printable characters, such as alice@example"
        )
    return actor


def _user_name() -> str:
    import pwd  # noqa: PLC0415 - needed only when a name goes into the journal

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # A container often runs under a number that has no name.
        return str(os.getuid())


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    name = str(parameter.name)
    source = context.get_parameter_source(name)
    # A command repeats the options of those above it; there only what was typed counts, or the environment, read
    # once more, would overrule what was typed further to the left.
    strong = source is ParameterSource.COMMANDLINE or (source is ParameterSource.ENVIRONMENT and context.parent is None)
    if strong and source is not None and value is not None:
        context.ensure_object(Settings).take(name, value, source)


def _option(*declarations: str, **attributes: Any) -> Callable[[], click.Option]:
    def make() -> click.Option:
        return GlobalOption(
            declarations, expose_value=False, callback=_remember, show_envvar="envvar" in attributes, **attributes
        )

    return make


class GlobalOption(click.Option):
    """An option of every command."""


_OPTIONS = (
    _option("--state", metavar="DIR", envvar="HOLDFAST_STATE", help="The state directory: holdfast.db is in it."),
    _option("--store", metavar="URL", envvar="HOLDFAST_STORE", help="The store by its URL, instead of --state."),
    _option("--app", metavar="MODULE:OBJECT", envvar="HOLDFAST_APP", help="Where the flows are defined."),
    _option("--actor", metavar="NAME", envvar="HOLDFAST_ACTOR", help="Who you are, for the journal."),
    _option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        envvar="HOLDFAST_LOG_FORMAT",
        help="How log lines are written.",
    ),
    # Eager: a mistake further to the left on the line is to be told as JSON, too.
    _option("--json", is_flag=True, default=None, is_eager=True, help="Write JSON instead of text."),
    _option("-v", "--verbose", count=True, help="Say more."),
    _option("-q", "--quiet", count=True, help="Say less."),
)


def global_options() -> list[click.Option]:
    """The options of every command, made anew for each."""
    return [make() for make in _OPTIONS]
