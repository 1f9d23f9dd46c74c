"""Commands and groups that know the global options, and a group that loads its commands only when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click

from holdfast.cli.settings import GlobalOption, global_options


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


class Entry(NamedTuple):
    """A command that is not loaded yet: its module, its name there, and its line in the help."""

    module: str
    attribute: str
    short_help: str
    section: str = "Commands"


class LazyGroup(Group):
    """Imports a command's module when the command is used, so that help and completion cost no imports."""

    def __init__(self, *arguments: Any, entries: Mapping[str, Entry], **attributes: Any) -> None:
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
