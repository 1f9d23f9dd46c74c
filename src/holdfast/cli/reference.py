"""The reference of all commands, as Markdown, from the commands themselves.

`python -m holdfast.cli.reference` prints it; `… holdfast_images.cli.main:EXTENSION` that of the commands which an
extension adds. Tests compare both with docs/reference/.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterable, Iterator

import click

from holdfast.cli.command import CommandExtension, GlobalOption
from holdfast.cli.main import extended, holdfast


def commands(root: click.Command = holdfast) -> Iterator[tuple[str, click.Command]]:
    """Every command and group with its full name, in the order of the help."""
    yield from _below(click.Context(root, info_name="holdfast"), "holdfast")


def commands_of(extension: CommandExtension) -> Iterator[tuple[str, click.Command]]:
    """Those that an extension adds, in the order of the help."""
    for name, command in commands(extended(extension)):
        words = name.split()
        if len(words) > 1 and words[1] in extension.entries:
            yield name, command


def reference(found: Iterable[tuple[str, click.Command]] | None = None) -> str:
    """A section for each command: what it promises, its usage, its own options."""
    return "\n".join(line for name, command in found or commands() for line in section(name, command))


def option_lines(command: click.Command, *, shared: bool) -> Iterator[str]:
    """One line for each option of a command, its own or the global ones."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and isinstance(parameter, GlobalOption) is shared:
            remarks = "".join(f", {remark}" for remark in _remarks(parameter))
            yield f"- `{_spelling(parameter)}`{remarks}: {parameter.help}"


def _spelling(option: click.Option) -> str:
    """Written out here and not by click, whose versions spell it differently."""
    value = option.metavar or ("|".join(option.type.choices) if isinstance(option.type, click.Choice) else "")
    return f"{', '.join(option.opts)} {value}".rstrip()


def _remarks(option: click.Option) -> Iterator[str]:
    if option.required:
        yield "required"
    if option.envvar:
        yield f"`{option.envvar}`"
    if option.show_default:
        yield f"default {option.default}"


def _below(context: click.Context, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, context.command
    if isinstance(context.command, click.Group):
        for each in context.command.list_commands(context):
            command = context.command.get_command(context, each)
            assert command is not None
            yield from _below(click.Context(command, info_name=each, parent=context), f"{name} {each}")


def section(name: str, command: click.Command) -> Iterator[str]:
    """One command, as Markdown."""
    yield f"## {name}\n"
    yield f"{_unwrapped(command.help or '')}\n"
    if not isinstance(command, click.Group):
        arguments = [_argument(p) for p in command.params if isinstance(p, click.Argument)]
        yield f"    {' '.join([name, *arguments, '[OPTIONS]'])}\n"
    own = list(option_lines(command, shared=False))
    if own:
        yield "\n".join(own) + "\n"


def _argument(argument: click.Argument) -> str:
    name = argument.metavar or str(argument.name).upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _unwrapped(text: str) -> str:
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


if __name__ == "__main__":
    print(reference(commands_of(pkgutil.resolve_name(sys.argv[1])) if sys.argv[1:] else None))
