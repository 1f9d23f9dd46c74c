"""What could not be dealt with is left alone for a while, so that it keeps nobody from the rest."""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Self

from holdfast.errors import StateTransitionRaceError, StoreError
from holdfast.store.rows import UNREADABLE

log = logging.getLogger("holdfast.store")

AGAIN_AFTER = 60.0
"""Seconds after which it is tried again: an operator may have repaired it."""


class Apart:
    """Jobs and executions that this process leaves alone, in memory: where the rules allow nothing better."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def add(self, what: str, name: str, why: BaseException | str) -> None:
        """Leave it alone from now on; said once."""
        if name not in self._until:
            log.error("%s %s is set apart, the others go on: %s", what, name, why, extra={"hint": "holdfast check"})
        self._until[name] = time.monotonic() + AGAIN_AFTER

    def names(self) -> set[str]:
        """What is to be left alone now."""
        now = time.monotonic()
        return {name for name, until in list(self._until.items()) if until > now}


class RowFault:
    """Around a transaction: ends an error that a single row can be the reason of, and keeps it in `error`."""

    error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None or not is_about_rows(error):
            return False
        self.error = error
        return True


def is_about_rows(error: BaseException) -> bool:
    """Can a single row be the reason of this error? Then the others are tried without it.

    Not if the database is away, full, read-only or damaged: then nothing can be done with any row.
    """
    if isinstance(error, StoreError):
        return type(error) is StoreError or isinstance(error, UNREADABLE)
    return isinstance(error, (StateTransitionRaceError, *UNREADABLE))
