"""What all commands share: their global options and settings, exit codes and errors, and what a package may add."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import click
from click.core import ParameterSource

from holdfast import errors
from holdfast.errors import HoldfastError, SettingsError

# --- The settings file: TOML, weaker than the environment; what it does not know it does not take -------

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


# --- What another package may add: commands of its own, an app, settings and exit codes ------------------


class CommandExtension(NamedTuple):
    """Nothing in it is imported before it is used: references are texts."""

    about: str
    """Takes the place of the first lines of the help."""
    entries: Mapping[str, CommandEntry]
    """Commands, shown before those of the engine."""
    default_app: str
    """`module:function`, which is called with the settings and gives an App: what is run without --app."""
    keys: frozenset[str]
    """What else the settings file may have in it."""
    codes: Mapping[type[HoldfastError], ExitCode]
    """The exit codes of its own errors."""
    web: str | None = None
    """`module:function`, which is called with the settings and gives a holdfast.web.Extension: what `serve` adds."""


# --- Exit codes, and how an error is told: `error: …`, then `hint: …`, or one JSON object ---------------


class ExitCode(IntEnum):
    """How a command ended; stable, for scripts to rely on."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    REFUSED = 3
    NOT_FOUND = 4
    CONFLICT = 5
    STORE = 6
    FINDINGS = 7
    TIMEOUT = 124
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Mapping[ExitCode, str] = {
    ExitCode.OK: "done; for a check: nothing was found",
    ExitCode.FAILURE: "it failed, or the job waited for did not succeed",
    ExitCode.USAGE: "the command or its input is wrong; nothing was changed",
    ExitCode.REFUSED: "a policy refuses the input: the image is not taken",
    ExitCode.NOT_FOUND: "no such job, queue, image, snapshot or object",
    ExitCode.CONFLICT: "the job is not in a state that allows this, or somebody else was faster",
    ExitCode.STORE: "the database is missing, unavailable, read-only, damaged, foreign, too new or unsafe",
    ExitCode.FINDINGS: "something was found: by check, repair, stalled, flows plan, or a command that verifies",
    ExitCode.TIMEOUT: "the time given with --timeout was up before the job had ended",
    ExitCode.INTERRUPTED: "interrupted by a signal",
    ExitCode.PIPE: "whoever read stdout went away before all was written",
}

Codes: TypeAlias = Mapping[type[errors.HoldfastError], ExitCode]

NO_CODES: Codes = {}
NO_FACTS: Mapping[str, object] = {}

_CODES: Codes = {
    errors.BadInput: ExitCode.USAGE,
    errors.NotFound: ExitCode.NOT_FOUND,
    errors.StateError: ExitCode.CONFLICT,
    errors.StoreError: ExitCode.STORE,
    errors.WaitTimeout: ExitCode.TIMEOUT,
}


def code_of(kind: type[errors.HoldfastError], more: Codes = NO_CODES) -> ExitCode:
    """The exit code of a class of errors: that of its nearest ancestor in the tables, else FAILURE."""
    codes = {**_CODES, **more}
    return next((codes[ancestor] for ancestor in kind.__mro__ if ancestor in codes), ExitCode.FAILURE)


def tell(
    kind: str,
    message: str,
    hint: str | None,
    code: ExitCode,
    *,
    as_json: bool,
    traceback: str | None = None,
    facts: Mapping[str, object] = NO_FACTS,
) -> ExitCode:
    """Write an error to stderr and return its exit code; `facts` are for JSON only."""
    if as_json:
        import json  # noqa: PLC0415 - help and completion do without

        content = {"type": kind, "message": message, "hint": hint, "exit_code": int(code), **facts}
        if traceback is not None:
            content["traceback"] = traceback
        text = json.dumps({"error": content}, ensure_ascii=False)
    else:
        text = (traceback or "") + _harmless(f"error: {message}" + (f"\nhint: {hint}" if hint else ""))
    print(text, file=sys.stderr)
    return code


def _harmless(text: str) -> str:
    """Nothing in it can steer the terminal; line breaks stay."""
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode() for each in text
    )


# --- Commands and groups that know the global options, and a group that loads its commands only when they are used ---


class Command(click.Command):
    """A command that takes the global options, too; one of its own with the same name goes before."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        _add_global_options(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options first."""
        _write_options(self, ctx, formatter)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        # A missing command is a mistake like any other, and help is data: it is shown when it is asked for.
        super().__init__(*arguments, **{"no_args_is_help": False, **attributes})
        _add_global_options(self)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands first, then the options."""
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each with the whole first line of its help, where click would cut it off."""
        found = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").split("\n")[0]) for name, each in found.items() if each])


class CommandEntry(NamedTuple):
    """A command that is not loaded yet: its module, its name there, and its line in the help."""

    module: str
    attribute: str
    short_help: str
    section: str = "Commands"


class LazyGroup(Group):
    """Imports a command's module when the command is used, so that help and completion cost no imports."""

    def __init__(self, *arguments: Any, entries: Mapping[str, CommandEntry], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.entries = entries

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The commands in the order of the table, which is by purpose."""
        return list(self.entries)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, loaded now."""
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """From the table, without loading anything."""
        for section in dict.fromkeys(entry.section for entry in self.entries.values()):
            with formatter.section(section):
                formatter.write_dl(
                    [(name, entry.short_help) for name, entry in self.entries.items() if entry.section == section]
                )


def _add_global_options(command: click.Command) -> None:
    taken = {name for parameter in command.params for name in parameter.opts}
    command.params += [option for option in global_options() if taken.isdisjoint(option.opts)]


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    own: list[tuple[str, str]] = []
    shared: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            (shared if isinstance(parameter, GlobalOption) else own).append(record)
    with formatter.section("Options"):
        formatter.write_dl(own)
    with formatter.section("Global options"):
        formatter.write_dl(shared)
