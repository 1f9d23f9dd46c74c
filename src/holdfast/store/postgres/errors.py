"""psycopg's errors as ours: the class says what the caller can do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors as pg
from psycopg_pool import PoolClosed, PoolTimeout

from holdfast import errors

RULE_BROKEN = "HF001"
"""The SQLSTATE of the triggers that keep the rules."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise our error in the place of one of psycopg's."""
    try:
        yield
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        raise translate(error) from error


def translate(error: Exception) -> errors.HoldfastError:
    """Our error for one of psycopg's: by its SQLSTATE, then by the class of it, which is its first two characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None) or ""
    if state == RULE_BROKEN or isinstance(error, psycopg.IntegrityError):
        return errors.StateTransitionRaceError(text, hint="the database refused the change; look at the job again")
    kind, hint = MEANING.get(state) or MEANING.get(state[:2]) or (errors.StoreError, None)
    if isinstance(error, PoolTimeout):
        kind, hint = BUSY
    elif isinstance(error, PoolClosed):
        kind, hint = errors.StoreError, "the store was closed"
    elif not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        kind, hint = AWAY
    return kind(text, hint=hint)


BUSY = (errors.StoreBusy, "all connections or locks are in use; it will be tried again")
AWAY = (errors.StoreUnavailable, "the server is away, restarting, or cut the connection")
FULL = (errors.StoreFull, "free some space on the server; nothing was changed")
DAMAGED = (errors.StoreCorrupt, "keep a copy of the server's files, look at its log, and restore a backup")

MEANING: dict[str, tuple[type[errors.StoreError], str]] = {
    "08": AWAY,  # connection exception
    "25006": (errors.StoreUnavailable, "connected to a read-only server; point the URL at the primary"),
    # A worker that was frozen in the midst of a transaction. Rolled back, as by the limits of class 57.
    "25P03": (errors.StoreUnavailable, "the server ended a transaction that kept it waiting"),
    "25P04": (errors.StoreUnavailable, "the server ended a transaction that took too long"),
    "40": (errors.StoreBusy, "others came first; it will be tried again"),  # deadlock, serialization failure
    "40003": AWAY,  # statement completion unknown
    "42501": (errors.StoreReadOnly, "grant the role what docs/how-to/run-a-fleet.md lists"),
    "53": BUSY,  # insufficient resources
    "53100": FULL,
    "53200": FULL,
    "55": BUSY,  # a lock that is not available, an object in use
    "57": AWAY,  # operator intervention: shutdown, crash, starting up
    "57014": BUSY,  # cancelled, by a time limit for one
    "58": (errors.StoreUnavailable, "check the disk of the server"),
    "XX001": DAMAGED,
    "XX002": DAMAGED,
}


def is_disk_fault(error: Exception) -> bool:
    """Is it the server's disk that is full or sick?"""
    state = getattr(error, "sqlstate", None) or ""
    return MEANING.get(state) in (FULL, DAMAGED) or state.startswith("58")


def is_lock_timeout(error: BaseException) -> bool:
    """Was it a lock that somebody else holds? Then nothing was changed, and what needs no such lock can be done."""
    return isinstance(error.__cause__, pg.LockNotAvailable | pg.DeadlockDetected)


def is_lost_race(error: Exception) -> bool:
    """Was the transaction rolled back only because another came first? Then the same call may succeed at once."""
    # A queue may be forgotten between the look at it and the job that names it.
    races = pg.UniqueViolation | pg.ForeignKeyViolation | pg.DeadlockDetected | pg.SerializationFailure
    return isinstance(error.__cause__, races)
