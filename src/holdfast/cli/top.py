"""`holdfast top`: the house in a terminal, over a store or over the API of a `holdfast serve`."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.command import Command, CommandSettings, ExitCode
from holdfast.cli.context import opened_client
from holdfast.cli.house import House, HttpSource, Source, StoreSource, token_in
from holdfast.cli.output import print_json
from holdfast.core.states import JobState
from holdfast.errors import BadInput, HoldfastError
from holdfast.views import JobFilter

if TYPE_CHECKING:
    from rich.live import Live

    from holdfast.cli.frame import Choice

ROWS = 100
LEAST_PAUSE = 0.5
"""However much changes, the screen is drawn no more often."""
SHARE = 10
"""Looking takes at most one part in so many of the time."""
MOVING_PAUSE, IDLE_PAUSE = 1.0, 30.0
"""What a step reports of its progress wakes nobody: while something runs, it is looked at. Else only changes are."""
LONGEST_TYPED = 500
SHOWN_STATES: tuple[tuple[JobState, ...], ...] = (
    (JobState.RUNNING,),
    (JobState.PENDING,),
    (JobState.FAILED,),
    (JobState.QUARANTINED,),
    (JobState.SUCCEEDED,),
    (),
)
FAILING = (JobState.FAILED, JobState.QUARANTINED)
FIELDS = {"flow": "flow", "queue": "queue", "step": "step", "error": "error_text", "key": "key_prefix"}
ARROWS = {b"\x1b[A": "k", b"\x1b[B": "j", b"\x1bOA": "k", b"\x1bOB": "j", b"\x1b[H": "g", b"\x1b[F": "G"}


@click.command(cls=Command)
@click.option("--url", metavar="WHERE", help="Ask a `holdfast serve` there: http://…, https://… or unix:PATH.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="The token for it. Without one, a unix socket knows who asks.",
)
@click.option("--once", is_flag=True, help="Print one frame and end, as where stdout is no terminal.")
@click.option("--filter", "given", metavar="WORDS", help="Begin with this filter, such as 'flow:orders error:refused'.")
@click.pass_obj
def top(settings: CommandSettings, url: str | None, token_file: Path | None, once: bool, given: str | None) -> int:
    """Watch the house: queues, running jobs with step and progress, throughput, failures.

    Of the store of the settings, or with --url over the API of a server. Keys filter, move, explain and quit; ? shows
    them. Where stdout is no terminal one frame is printed as plain text; with --json as data.
    """
    if token_file is not None and url is None:
        raise BadInput("--token-file is given without --url", hint="give both, or neither")
    wanted = parsed(given) if given is not None else JobFilter(states=(JobState.RUNNING,))
    with _source(settings, url, token_file) as source:
        if settings.json:
            print_json(source.look(wanted, ROWS))
        elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _print_once(source.look(wanted, ROWS), wanted)
        else:
            _Screen(source, wanted).run()
    return ExitCode.OK


@contextmanager
def _source(settings: CommandSettings, url: str | None, token_file: Path | None) -> Iterator[Source]:
    with ExitStack() as stack:
        if url is not None:
            source: Source = HttpSource(url, token_in(token_file) if token_file is not None else None)
        else:
            source = StoreSource(stack.enter_context(opened_client(settings, read_only=True)))
        stack.callback(source.close)
        yield source


def _print_once(house: House, wanted: JobFilter) -> None:
    from holdfast.cli.frame import Choice, frame  # noqa: PLC0415 - rich is slow to import, and may be missing

    choice = Choice(wanted=wanted, explains=False)
    for line in frame(house, choice, shutil.get_terminal_size((120, 24)).columns, 0)[:-2]:
        print(line.plain.rstrip())


def parsed(text: str, states: tuple[JobState, ...] = ()) -> JobFilter:
    """A filter as it is typed; BadInput says what is no part of one."""
    fields: dict[str, Any] = {}
    asked: list[JobState] = []
    for word in text.split():
        name, colon, value = word.partition(":")
        if not colon:
            name, value = "key", word
        if name == "state" and value in list(JobState):
            asked.append(JobState(value))
        elif name in FIELDS and value:
            fields[FIELDS[name]] = value
        else:
            known = " ".join(f"{each}:…" for each in ("state", *FIELDS))
            raise BadInput(f"{word!r} is no part of a filter", hint=f"{known}; a word alone is the beginning of a key")
    return JobFilter(states=tuple(asked) or states, **fields)


class _Screen:
    """The terminal while it is ours: whatever ends this, it is given back as it was."""

    def __init__(self, source: Source, wanted: JobFilter) -> None:
        from rich.console import Console  # noqa: PLC0415 - as above
        from rich.live import Live  # noqa: PLC0415 - as above

        from holdfast.cli.frame import Choice  # noqa: PLC0415 - as above

        self._source = source
        self._choice: Choice = Choice(wanted=wanted)
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._make_live = partial(
            Live, console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._live: Live | None = None
        self._house: House | None = None
        self._keyboard = sys.stdin.fileno()
        self._before: list[Any] = []
        self._signalled, self._signal = os.pipe()
        self._ended = False

    def run(self) -> None:
        """Until the operator has seen enough, or a signal says so."""
        handlers = {
            signal.SIGTERM: self._on_end,
            signal.SIGINT: self._on_end,
            signal.SIGHUP: self._on_end,
            signal.SIGWINCH: self._on_change,
            signal.SIGTSTP: self._on_stop,
        }
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            self._enter()
            self._watch()
        finally:
            self._leave()
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._signalled)
            os.close(self._signal)

    # --- the terminal ---

    def _enter(self) -> None:
        self._before = termios.tcgetattr(self._keyboard)
        tty.setcbreak(self._keyboard)  # keys at once; Ctrl-C and Ctrl-Z still are signals
        self._live = live = self._make_live()
        live.start()

    def _leave(self) -> None:
        try:
            if self._live is not None:
                self._live.stop()
                self._live = None
        finally:
            if self._before:
                termios.tcsetattr(self._keyboard, termios.TCSAFLUSH, self._before)
                self._before = []

    def _on_end(self, _number: int, _frame: FrameType | None) -> None:
        self._ended = True
        os.write(self._signal, b".")

    def _on_change(self, _number: int, _frame: FrameType | None) -> None:
        os.write(self._signal, b".")

    def _on_stop(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the shell gets its terminal as it was, and fg finds the screen again."""
        self._leave()
        before = signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, before)
        self._enter()
        os.write(self._signal, b".")

    # --- what is shown ---

    def _watch(self) -> None:
        is_old, next_look = True, 0.0
        while not self._ended:
            now = time.monotonic()
            if is_old and now >= next_look and not self._choice.paused:
                took = self._look()
                next_look, is_old = time.monotonic() + max(LEAST_PAUSE, took * SHARE), False
            self._draw()
            pause = max(0.0, next_look - time.monotonic()) if is_old and not self._choice.paused else self._pause()
            is_old |= self._wait(pause)

    def _pause(self) -> float:
        if self._choice.paused:
            return IDLE_PAUSE
        moving = self._house is None or any(row.step is not None for row in self._house.jobs.rows)
        return MOVING_PAUSE if moving else IDLE_PAUSE

    def _wait(self, pause: float) -> bool:
        """Is what is shown old now? Keys and signals are heard at once, and what they change is drawn."""
        began = time.monotonic()
        has_changed = self._source.wait({self._keyboard, self._signalled}, pause)
        ready = _ready({self._keyboard, self._signalled})
        if self._signalled in ready:
            os.read(self._signalled, 100)
        if self._keyboard in ready:
            typed = os.read(self._keyboard, 1024)
            if not typed:
                self._ended = True  # the terminal is gone
            return self._on_keys(typed)
        return has_changed or (self._signalled not in ready and time.monotonic() - began >= pause)

    def _look(self) -> float:
        began = time.monotonic()
        try:
            self._house = self._source.look(self._choice.wanted, ROWS)
            self._choice.away = ""
        except HoldfastError as error:
            if self._house is None or not error.passing:
                raise
            self._choice.away = str(error)
        ids = [row.job.job_id for row in self._house.jobs.rows]
        if self._choice.selected not in ids:
            self._choice.selected = ids[0] if ids else None
        return time.monotonic() - began

    def _draw(self) -> None:
        from rich.console import Group  # noqa: PLC0415 - as above

        from holdfast.cli.frame import frame  # noqa: PLC0415 - as above

        if self._house is not None and self._live is not None:
            size = self._console.size
            self._live.update(Group(*frame(self._house, self._choice, size.width, size.height)), refresh=True)

    # --- keys ---

    def _on_keys(self, typed: bytes) -> bool:
        """Is another look needed?"""
        wanted, self._choice.told = self._choice.wanted, ""
        if self._choice.typed is not None:
            self._type(typed)
        elif typed in ARROWS:
            self._on_key(ARROWS[typed])
        elif typed == b"\x1b":
            self._choice.wanted = JobFilter(states=(JobState.RUNNING,))
        else:
            for key in typed.decode("utf-8", "replace"):
                self._on_key(key)
        return self._choice.wanted != wanted

    def _on_key(self, key: str) -> None:
        choice = self._choice
        if choice.typed is not None:
            self._type(key.encode())
        elif key in "jkgG":
            self._move(key)
        elif key in "\r\n":
            choice.explains = not choice.explains
        elif key == "/":
            choice.typed = ""
        elif key == "f":
            self._show(FAILING if choice.wanted.states != FAILING else (JobState.RUNNING,))
        elif key == "s":
            known = SHOWN_STATES.index(choice.wanted.states) if choice.wanted.states in SHOWN_STATES else -1
            self._show(SHOWN_STATES[(known + 1) % len(SHOWN_STATES)])
        elif key == "p":
            choice.paused = not choice.paused
        elif key == "?":
            choice.helps = not choice.helps
        elif key == "q":
            self._ended = True

    def _show(self, states: tuple[JobState, ...]) -> None:
        self._choice.wanted = msgspec.structs.replace(self._choice.wanted, states=states)

    def _move(self, key: str) -> None:
        ids = [row.job.job_id for row in self._house.jobs.rows] if self._house is not None else []
        if ids:
            at = ids.index(self._choice.selected) if self._choice.selected in ids else 0
            to = {"j": at + 1, "k": at - 1, "g": 0, "G": len(ids) - 1}[key]
            self._choice.selected = ids[min(max(to, 0), len(ids) - 1)]

    def _type(self, typed: bytes) -> None:
        choice = self._choice
        for key in typed.decode("utf-8", "replace"):
            if choice.typed is None:
                return
            if key in "\r\n":
                text, choice.typed = choice.typed, None
                try:
                    choice.wanted = parsed(text, choice.wanted.states)
                except BadInput as error:
                    choice.told = str(error)
            elif key == "\x1b":
                choice.typed = None
            elif key in "\x7f\b":
                choice.typed = choice.typed[:-1]
            elif key.isprintable():
                choice.typed = (choice.typed + key)[:LONGEST_TYPED]


def _ready(descriptors: set[int]) -> list[int]:
    return select.select([*descriptors], [], [], 0)[0]
