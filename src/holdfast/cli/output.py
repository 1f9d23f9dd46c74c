"""How data is shown: JSON if asked for, a rich table on a terminal, aligned text everywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.cli.settings import Settings

Row = Sequence[object]


def show(settings: Settings, data: Any, text: Callable[[], None]) -> None:
    """Write `data` as one line of JSON if that was asked for, else call `text`, which prints it for people."""
    if settings.json:
        print_json(data)
    else:
        text()


def print_json(data: Any) -> None:
    """One line of JSON on stdout."""
    print(msgspec.json.encode(data).decode())


def note(settings: Settings, message: str) -> None:
    """Talk, on stderr: what was done. Kept back with --quiet, and with --json, where stderr is for errors only."""
    if not settings.json and settings.verbosity >= 0:
        print(message, file=sys.stderr)


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A table for people."""
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich_table(columns, cells)
        return
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([name.upper() for name in columns], *cells):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values, one below the other; those without a value are left out."""
    given = [(name, cell(value)) for name, value in fields if value is not None]
    width = max(len(name) for name, _ in given)
    for name, value in given:
        print(f"{name.ljust(width)}  {value}")


def print_lines(lines: Iterable[str]) -> None:
    """One line each."""
    for line in lines:
        print(cell(line))


def cell(value: object) -> str:
    """A value as one line of text in which nothing can steer the terminal."""
    if value is None or value == "":
        return "-"
    return "".join(each if each.isprintable() else _escaped(each) for each in str(value))


def time_of(milliseconds: int | None) -> str | None:
    """A time for people, in UTC; none for none, and for the zero that stands for it."""
    from holdfast.core.explain import iso_utc  # noqa: PLC0415 - whoever shows no times does without

    return iso_utc(milliseconds) if milliseconds else None


def raw(encoded: str | None) -> msgspec.Raw | str | None:
    """Stored JSON as it is, to be shown as a part of more JSON; text that is not JSON stays text."""
    if encoded is None:
        return None
    try:
        msgspec.json.decode(encoded)
    except msgspec.DecodeError:
        return encoded
    return msgspec.Raw(encoded.encode())


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _print_rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich import box, console, table, text  # noqa: PLC0415 - slow to import, and for terminals only

    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        shown.add_column(name, overflow="fold")
    for row in cells:
        # As Text, because brackets in a user's data are not markup.
        shown.add_row(*(text.Text(each) for each in row))
    console.Console().print(shown)
