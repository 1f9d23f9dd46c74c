"""What is the same for everybody who looks: read again only when it is old, measured by what reading it costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.web.routes import Services

LONGEST_KEPT = 5.0
COST = 20
"""A reading is kept for so many times what it took: looking costs at most a twentieth of a core."""
MOST_KEPT = 200

T = TypeVar("T")


class SharedReadings:
    """Readings by name."""

    def __init__(self, _services: Services) -> None:
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._kept: dict[str, tuple[float, Any]] = {}

    def get(self, name: str, read: Callable[[], T]) -> T:
        """The reading of this name: the last one while it is young, else what `read` gives; asked one at a time."""
        with self._lock:
            if len(self._locks) >= MOST_KEPT:
                self._locks, self._kept = {}, {}
            lock = self._locks.setdefault(name, threading.Lock())
        with lock:
            until, reading = self._kept.get(name, (0.0, None))
            began = time.monotonic()
            if began >= until:
                reading = read()
                ended = time.monotonic()
                self._kept[name] = (ended + min(LONGEST_KEPT, COST * (ended - began)), reading)
            found: T = reading
            return found

    def forget(self) -> None:
        """Whoever has just changed something sees it at once."""
        with self._lock:
            self._kept = {}
