"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import msgspec

from holdfast.cli.command import CommandSettings

if TYPE_CHECKING:
    from holdfast.core.progress import CurrentStep
    from holdfast.core.records import JobRecord


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, private to its owner, that takes its name only when it is complete and durable.

    Crash: a file `.partial` may be left, which the next one replaces; `path` is old or new, never half.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# --- How data is shown: JSON if asked for, a rich table on a terminal, aligned text everywhere else -----

Row = Sequence[object]

LEAST_PROSE = 16
"""Columns of a terminal that a sentence is folded to, but not below."""
GAP = 2


def show(settings: CommandSettings, data: Any, text: Callable[[], None]) -> None:
    """Write `data` as one line of JSON if that was asked for, else call `text`, which prints it for people."""
    if settings.json:
        print_json(data)
    else:
        text()


def print_json(data: Any) -> None:
    """One line of JSON on stdout."""
    print(msgspec.json.encode(data).decode())


def note(settings: CommandSettings, message: str) -> None:
    """Talk, on stderr: what was done. Kept back with --quiet, and with --json, where stderr is for errors only."""
    if not settings.json and settings.verbosity >= 0:
        print(message, file=sys.stderr)


class Counter:
    """A count that grows, on one line of a terminal; nothing where nobody watches it."""

    def __init__(self, settings: CommandSettings, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty() and not settings.json and settings.verbosity >= 0

    def __call__(self, count: int) -> None:
        """Show it."""
        if self._shown:
            print(f"\r{count:,} {self._what}", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Row]) -> None:
    """A table for people."""
    cells = [[cell(value) for value in row] for row in rows]
    if sys.stdout.isatty() and _print_on_terminal(columns, cells):
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


def print_indented(text: str) -> None:
    """Text of several lines, such as a traceback, below a title; nothing in it can steer the terminal."""
    for line in text.splitlines():
        print(f"  {cell(line)}".rstrip() if line.strip() else "")


def cell(value: object) -> str:
    """A value as one line of text in which nothing can steer the terminal."""
    if value is None or value == "":
        return "-"
    return "".join(each if each.isprintable() else _escaped(each) for each in str(value))


def time_of(milliseconds: int | None) -> str | None:
    """A time for people, in UTC; none for none, and for the zero that stands for it."""
    from holdfast.core.explain import iso_utc_precise  # noqa: PLC0415 - whoever shows no times does without

    return iso_utc_precise(milliseconds) if milliseconds else None


def step_of(current: CurrentStep | None) -> str | None:
    """Where a running job is, in a few words: step, how far, which try."""
    if current is None or current.step is None:
        return None
    from holdfast.core.explain import share_done  # noqa: PLC0415 - whoever shows no jobs does without

    share = share_done(current.progress)
    return " ".join(
        [current.step, *([share] if share else []), *([f"(try {current.tries + 1})"] if current.tries else [])]
    )


def job_data(job: JobRecord) -> dict[str, Any]:
    """A job as JSON: `attempt` counts tries of the job, and how many executions these took is beside it."""
    return {**msgspec.structs.asdict(job), "attempt": job.attempts, "executions": job.attempt}


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


def _print_on_terminal(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    """A table in which sentences are folded, at spaces: an id that is broken over two lines cannot be copied.

    Where that has no room, each row is a block of its own. False if rich is not installed.
    """
    try:
        from rich import box, console, table, text  # noqa: PLC0415 - slow to import, and for terminals only
    except ModuleNotFoundError:
        return False
    screen = console.Console()
    widths = _widths(columns, cells, screen.width - GAP * len(columns) + 1)
    if widths is None:
        for row in cells:
            print_fields(zip(columns, row, strict=True))
            print()
        return True
    # The box has a blank between columns, which makes the gap with the padding.
    shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    for name, width in zip(columns, widths, strict=True):
        shown.add_column(name, overflow="fold", width=width)
    for row in cells:
        # As Text, because brackets in a user's data are not markup.
        shown.add_row(*(text.Text(each) for each in row))
    screen.print(shown)
    return True


def _widths(columns: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """How wide each column is: its longest word at least, its longest cell at most. None if the words have no room."""
    from rich.cells import cell_len  # noqa: PLC0415 - as above

    found = [list(column) for column in zip(columns, *cells, strict=True)]
    widest = [max(map(cell_len, column)) for column in found]
    words = [max(cell_len(word) for each in column for word in each.split(" ")) for column in found]
    widths = [max(word, min(LEAST_PROSE, wide)) for word, wide in zip(words, widest, strict=True)]
    left = room - sum(widths)
    if left < 0:
        return None
    wanting = sorted(range(len(columns)), key=lambda index: widest[index] - widths[index])
    for position, index in enumerate(wanting):
        more = min(widest[index] - widths[index], left // (len(columns) - position))
        widths[index] += more
        left -= more
    return widths
