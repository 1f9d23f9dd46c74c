"""What is done every now and then, in the background, and goes on after an error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from holdfast.errors import StoreError

log = logging.getLogger("holdfast.worker")


class Rounds:
    """Calls `run_once` every `interval` seconds from a thread of its own, the first time `at_once` or after that."""

    def __init__(
        self, run_once: Callable[[], object], *, interval: float, name: str = "guard", at_once: bool = True
    ) -> None:
        self._run_once = run_once
        self._at_once = at_once
        self._interval = interval
        self._name = name
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=f"holdfast-{name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(5)

    def _loop(self) -> None:
        if not self._at_once and self._ended.wait(self._interval):
            return
        while True:
            try:
                self._run_once()
            except StoreError as error:
                log.warning("the %s could not look: %s", self._name, error)
            except Exception:  # a fault of one round must not end the rounds, and is told in full
                log.exception("the %s failed; it will look again", self._name)
            if self._ended.wait(self._interval):
                return
