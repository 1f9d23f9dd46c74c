"""What another package may add to the command: commands of its own, an app, settings and exit codes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import click

from holdfast import errors
from holdfast.cli.settings import GlobalOption, global_options
from holdfast.errors import HoldfastError


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
