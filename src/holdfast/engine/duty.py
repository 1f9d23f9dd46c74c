"""What a worker does again and again, and goes on doing after an error, with growing pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from holdfast.crash_points import SimulatedCrash
from holdfast.engine.telemetry import Telemetry
from holdfast.errors import StoreError

log = logging.getLogger("holdfast.worker")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Duty:
    """One kind of work of the scheduler. An error in it is told, counted and tried again; the other duties go on."""

    def __init__(self, name: str, act: Callable[[], object], telemetry: Telemetry) -> None:
        self._name = name
        self._act = act
        self._telemetry = telemetry
        self._pause = FIRST_PAUSE
        self._resume_at = 0.0
        self._faulty_since: float | None = None
        self.done_at = time.monotonic()
        self.fault: Exception | None = None
        """The unexpected error of the last attempt; what the database says of itself is none."""

    def attempt(self) -> bool:
        """Do it, unless it has just failed; True if it was done."""
        if time.monotonic() < self._resume_at:
            return False
        try:
            self._act()
        except SimulatedCrash:
            raise
        except StoreError as error:
            self.fault = None
            log.warning("cannot %s, next try in %.1f s: %s", self._name, self._pause, error)
        except Exception as error:
            # A row or an answer that nobody expected. Other jobs can do without this round.
            self.fault = error
            self._telemetry.fault(self._name)
            log.error("cannot %s, next try in %.1f s: %s", self._name, self._pause, error, exc_info=error)
        else:
            self._pause, self._resume_at, self._faulty_since, self.fault = FIRST_PAUSE, 0.0, None, None
            self.done_at = time.monotonic()
            return True
        now = time.monotonic()
        self._faulty_since = None if self.fault is None else self._faulty_since or now
        self._resume_at = now + self._pause
        self._pause = min(LONGEST_PAUSE, self._pause * 2)
        return False

    @property
    def wait(self) -> float:
        """Seconds until it may be attempted again, 0 if now."""
        return max(0.0, self._resume_at - time.monotonic())

    @property
    def faulty_for(self) -> float:
        """For how many seconds every attempt has ended in an unexpected error."""
        return 0.0 if self._faulty_since is None else time.monotonic() - self._faulty_since
