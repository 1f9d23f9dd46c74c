"""What happens outside of the database, one line each: written with one call, so that it outlives a killed process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DIRECTORY_VARIABLE = "HISTORY_DIRECTORY"
"""Where a process of a history finds its plan and leaves its events."""


def monotonic_us() -> int:
    """Microseconds of the clock that all processes of a machine share, and that nobody sets."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


class EventLog:
    """Appends events to a file of this process. Death of the process: every event that was logged is there."""

    def __init__(self, directory: Path, name: str) -> None:
        folder = directory / "events"
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(folder / f"{name}-{os.getpid()}.jsonl", flags, 0o644)

    def write(self, kind: str, /, **facts: Any) -> int:
        """Log an event of now; returns its time."""
        now = monotonic_us()
        line = json.dumps({"e": kind, "t": now, "pid": os.getpid(), **facts}, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")
        return now


def read_events(directory: Path, name: str = "") -> Iterator[dict[str, Any]]:
    """The events of the processes of this name, or of all, in the order of time."""
    found: list[dict[str, Any]] = []
    for path in sorted((directory / "events").glob(f"{name}*.jsonl")):
        found.extend(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    found.sort(key=lambda event: int(event["t"]))
    return iter(found)


class Start:
    """When a history begins: not before everybody who takes part is there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def wait(self, who: str) -> int:
        """Say that `who` is there, and wait for the beginning; its time."""
        (self._directory / f"{who}.there").touch()
        while not (self._directory / "began").exists():
            time.sleep(0.005)
        return int((self._directory / "began").read_text())

    def is_there(self, who: str) -> bool:
        return (self._directory / f"{who}.there").exists()

    def give(self) -> int:
        """Begin now; the time."""
        now = monotonic_us()
        unfinished = self._directory / "began.tmp"
        unfinished.write_text(str(now))
        unfinished.rename(self._directory / "began")
        return now
