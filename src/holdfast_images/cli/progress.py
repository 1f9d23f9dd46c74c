"""Progress, on stderr: bars with rate and time left on a terminal, plain lines elsewhere, or nothing at all."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli.command import CommandSettings
from holdfast.cli.output import cell
from holdfast.cli.worker import StopSignals
from holdfast_images.messages import OnProgress, StageProgress

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SWITCH_INTERVAL = 0.0005
SAY_EVERY = 5.0
"""Seconds between two lines about the same stage."""
PATIENCE = 0.3
"""What takes no longer than this needs no bars, and no time to load them."""
MOST_TITLE = 60
ENDINGS = {"handoff": "already done", "completed": "done"}


class Watching(NamedTuple):
    """What a call that waits is given by a command: whom to tell how far it is, and what may end it."""

    on_progress: OnProgress | None
    stop: StopSignals


@contextmanager
def watching(settings: CommandSettings) -> Iterator[Watching]:
    """Progress is shown and signals are heard until the end of the block."""
    # As in `holdfast worker`: between threads that take turns, the default of 5 ms would be the latency of each.
    sys.setswitchinterval(SWITCH_INTERVAL)
    with StopSignals() as signals:
        if settings.json or settings.verbosity < 0:
            yield Watching(None, signals)
            return
        is_terminal = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        teller: Lines | Bars = Bars() if is_terminal else Lines(_say)
        try:
            yield Watching(lambda news: teller.tell(news, time.monotonic()), signals)
        finally:
            teller.close()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Lines:
    """A line when a stage begins, one now and then, one when it ends."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        self._said_at: dict[str, float] = {}
        self._setbacks: dict[str, str] = {}
        self._rates: dict[str, Rate] = {}

    def tell(self, news: Sequence[StageProgress], now: float) -> None:
        """Say what has changed."""
        for each in news:
            if each.has_ended:
                if each.stage not in self._ended:
                    self._ended.add(each.stage)
                    self._say(f"{each.stage}: {ending_of(each)}")
            elif not each.has_begun:
                self._tell_waiting(each, now)
            elif each.stage not in self._begun:
                self._begun.add(each.stage)
                self._said_at[each.stage] = now
                self._say(f"{each.stage}: begun")
            else:
                self._tell_progress(each, now)

    def _tell_waiting(self, news: StageProgress, now: float) -> None:
        if now - self._said_at.setdefault(news.stage, now) >= SAY_EVERY:
            self._said_at[news.stage] = math.inf
            self._say(f"{news.stage}: waits for its turn; why: holdfast job explain {news.job_id}")

    def _tell_progress(self, news: StageProgress, now: float) -> None:
        if news.setback != self._setbacks.get(news.stage, ""):
            self._setbacks[news.stage] = news.setback
            if news.setback:
                self._say(f"{news.stage}: {setback_of(news)}")
        rate = self._rates.setdefault(news.stage, Rate())
        rate.take(news.step + news.note, news.done, now)
        if news.done and now - self._said_at[news.stage] >= SAY_EVERY:
            self._said_at[news.stage] = now
            self._say(f"{news.stage}: {progress_of(news, rate.per_second)}")

    def close(self) -> None:
        """Nothing is held."""


class Rate:
    """How fast something goes, since it began or began anew."""

    def __init__(self) -> None:
        self.per_second = 0.0
        self._what: str | None = None
        self._first = (0.0, 0.0)

    def take(self, what: str, done: float, now: float) -> None:
        """Learn of how much is done."""
        if what != self._what or done < self._first[1]:
            self._what, self._first, self.per_second = what, (now, done), 0.0
        elif now > self._first[0]:
            self.per_second = (done - self._first[1]) / (now - self._first[0])


def ending_of(news: StageProgress) -> str:
    """How a stage ended, in words."""
    how = ENDINGS.get(news.outcome or "", "") if news.state == "succeeded" else ""
    return f"{how or news.state} ({news.seconds:.1f} s)"


def setback_of(news: StageProgress) -> str:
    """Why a stage stands still, in words."""
    return f"will be tried again in {news.pause:.0f} s: {cell(news.setback)}"


def progress_of(news: StageProgress, per_second: float) -> str:
    """How far a stage is, in words."""
    parts = [f"{size_of(news.done)} of {size_of(news.total)}" if news.total else size_of(news.done)]
    if news.total:
        parts[0] += f" ({100 * news.done / news.total:.0f} %)"
    if per_second > 0:
        parts.append(f"{size_of(per_second)}/s")
        if news.total:
            parts.append(f"{max(0.0, news.total - news.done) / per_second:.0f} s left")
    return ", ".join(parts) + (f" {news.note.removeprefix('bytes ')}" if news.note else "")


def size_of(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


class Bars:
    """A bar for each stage, once it takes long enough to need one."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._progress: Progress | None = None
        self._tasks: dict[str, tuple[TaskID, str]] = {}

    def tell(self, news: Sequence[StageProgress], now: float) -> None:
        """Move the bars."""
        if self._progress is None:
            if now - self._began < PATIENCE:
                return
            self._progress = _started()
        for each in news:
            self._move(self._progress, each)

    def _move(self, progress: Progress, news: StageProgress) -> None:
        doing = news.note.removeprefix("bytes ")
        task, before = self._tasks.get(news.stage, (None, ""))
        what = doing.partition(",")[0]  # how many entries there are by now is behind the comma
        if task is None:
            task = progress.add_task(news.stage, total=None)
        elif what != before:
            progress.reset(task, total=news.total)
        self._tasks[news.stage] = (task, what)
        told: dict[str, Any] = {"completed": news.done, "total": news.total, "description": _title(news, doing)}
        if news.has_ended:
            total = news.total or news.done or 1
            told |= {"total": total, "completed": total if news.state == "succeeded" else news.done}
        progress.update(task, **told)

    def close(self) -> None:
        """Leave the bars as they are, and the terminal as it was."""
        if self._progress is not None:
            self._progress.stop()


def _title(news: StageProgress, doing: str) -> str:
    if news.has_ended:
        return f"{news.stage}: {ending_of(news)}"
    return f"{news.stage}: {setback_of(news)[:MOST_TITLE] if news.setback else doing or news.state}"


def _started() -> Progress:
    from rich import console, progress  # noqa: PLC0415 - slow to import, and for terminals only

    bars = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=console.Console(stderr=True),
    )
    bars.start()
    return bars
