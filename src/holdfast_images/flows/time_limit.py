"""How long one try of a download may take, and what its end means: bytes that came are kept, and count."""

from __future__ import annotations

import time
from typing import Any

from holdfast import Rewind, Run
from holdfast_images.errors import SourceUnavailable

MARGIN = 0.1
MOST_MARGIN = 5.0
"""A try ends itself this part of its time, and at most so many seconds, before the engine would end it."""
ENOUGH_BYTES = 1 << 20
"""A try that brought as much was no failure: the next goes on, however many there are."""


class OutOfTime(Exception):
    """The try has used its time up."""


class TimeLimit:
    """Watches one try of the step; `check` and `progress` are called by the fetch."""

    def __init__(self, run: Run[Any, Any], timeout: float) -> None:
        self._run = run
        self._timeout = timeout
        left = run.deadline if run.deadline is not None else timeout
        self._ends_at = time.monotonic() + left - min(left * MARGIN, MOST_MARGIN)
        self._first: float | None = None
        self._done: float = 0
        self._total: float | None = None

    def check(self) -> None:
        """Raise what should stop the step, or OutOfTime."""
        self._run.check()
        if time.monotonic() > self._ends_at:
            raise OutOfTime

    def progress(self, done: int, total: int | None) -> None:
        """Note and report how far it is."""
        if self._first is None:
            self._first = done
        self._done, self._total = done, total
        self._run.progress(done, total, note="bytes downloaded")

    def verdict(self, where: str, *, is_kept: bool) -> Exception:
        """What a try that has used its time up means: go on with what is there, or a failure."""
        brought = self._done - (self._first or 0)
        told = f"{self._done} of {self._total or '?'} bytes of {where} are here"
        limit = f"download_timeout ({self._timeout:g} s)"
        if is_kept and brought >= ENOUGH_BYTES:
            return Rewind(self._run.step, f"{told} after {limit}: going on")
        if is_kept:
            return SourceUnavailable(f"{told}: {brought} bytes came within {limit}")
        return SourceUnavailable(
            f"{told} after {limit}, and cannot be gone on with: the server gives no strong ETag, or no ranges",
            hint="raise download_timeout (HOLDFAST_DOWNLOAD_TIMEOUT), or use a server with ranges",
        )
