"""The settings file: TOML, weaker than the environment. What it does not know it does not take."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import click
from click.core import ParameterSource

from holdfast.errors import SettingsError

ENGINE_KEYS = ("state", "store", "app", "actor", "log_format")


def read_config(path: str | None, *, more: Collection[str] = ()) -> dict[str, Any]:
    """What the file says, or the default one if there is any; keys of others' are for them to judge."""
    found = path or next((each for each in default_files() if os.path.isfile(each)), None)
    if found is None:
        return {}
    content = _parsed(found)
    known = sorted({*ENGINE_KEYS, *more})
    unknown = sorted(set(content) - set(known))
    if unknown:
        raise SettingsError(f"{found}: {unknown[0]!r} is no setting", hint=f"known here: {', '.join(known)}")
    for name in ENGINE_KEYS:
        if name in content and not isinstance(content[name], str):
            raise SettingsError(f"{found}: {name} is not a text", hint=f'write {name} = "…"')
    if content.get("log_format", "text") not in ("text", "json"):
        raise SettingsError(f"{found}: log_format is {content['log_format']!r}", hint="text or json")
    return content


def default_files() -> Iterator[str]:
    """Where it is looked for, the user's own before the host's."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    yield os.path.join(base, "holdfast", "config.toml")
    yield "/etc/holdfast/config.toml"


def _parsed(path: str) -> dict[str, Any]:
    import tomllib  # noqa: PLC0415 - most commands have no file to read

    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}", hint="see --config and HOLDFAST_CONFIG") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}") from error


# --- What the command line and the environment say, wherever on the line it is said ---------------------

ACTOR_LIMIT = 200


class CommandSettings:
    """The settings every command understands. The command line is stronger than the environment, that than the file."""

    def __init__(
        self, *, keys: frozenset[str] = frozenset(), default_app: str | None = None, web: str | None = None
    ) -> None:
        self.json = False
        self.verbosity = 0
        self.default_app = default_app
        self.web = web
        self._keys = keys
        self._given: dict[str, str] = {}
        self._sources: dict[str, ParameterSource] = {}
        self._file: Mapping[str, Any] | None = None

    def take(self, name: str, value: Any, source: ParameterSource) -> None:
        """Remember a value that was given."""
        if name in ("verbose", "quiet"):
            self.verbosity += value if name == "verbose" else -value
        elif name == "json":
            self.json = value
        else:
            self._given[name] = checked_actor(value) if name == "actor" else value
            self._sources[name] = source

    @property
    def file(self) -> Mapping[str, Any]:
        """What the settings file says, read when it is first asked for."""
        if self._file is None:
            self._file = read_config(self._given.get("config"), more=self._keys)
        return self._file

    @property
    def app(self) -> str | None:
        """Where the flows are defined."""
        return self._setting("app")

    @property
    def log_format(self) -> str:
        """text or json"""
        return self._setting("log_format") or "text"

    @property
    def actor(self) -> str:
        """Who is named in the journal."""
        given = self._setting("actor")
        return checked_actor(given) if given is not None else default_actor()

    @property
    def place(self) -> str:
        """Where the database is: a URL, or a directory."""
        for source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            given = [self._given[name] for name in ("state", "store") if self._sources.get(name) is source]
            if given:
                return _only(given)
        in_file = [self.file[name] for name in ("state", "store") if name in self.file]
        return _only(in_file) if in_file else default_state()

    def _setting(self, name: str) -> str | None:
        return self._given.get(name) or self.file.get(name)


def _only(given: list[str]) -> str:
    if len(given) > 1:
        raise SettingsError("both --state and --store are given", hint="give one of them")
    return given[0]


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
        context.ensure_object(CommandSettings).take(name, value, source)


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
    _option("--config", metavar="FILE", envvar="HOLDFAST_CONFIG", help="The settings file."),
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
