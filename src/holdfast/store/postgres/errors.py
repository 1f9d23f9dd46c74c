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
    """Our error for one of psycopg's."""
    text = " ".join(str(error).split()) or type(error).__name__
    state = getattr(error, "sqlstate", None)
    if state == RULE_BROKEN or isinstance(error, psycopg.IntegrityError):
        return errors.StateTransitionRaceError(text, hint="the database refused the change; look at the job again")
    if isinstance(
        error, PoolTimeout | pg.TooManyConnections | pg.SerializationFailure | pg.LockNotAvailable | pg.QueryCanceled
    ):
        return errors.StoreBusy(text, hint="all connections or locks are in use; it will be tried again")
    if isinstance(error, pg.DiskFull | pg.OutOfMemory):
        return errors.StoreFull(text, hint="free some space on the server; nothing was changed")
    if isinstance(error, pg.ReadOnlySqlTransaction):
        # A standby after a failover: the new primary is elsewhere, or not promoted yet.
        return errors.StoreUnavailable(text, hint="connected to a read-only server; point the URL at the primary")
    if isinstance(error, pg.InsufficientPrivilege):
        return errors.StoreReadOnly(text, hint="grant the role what docs/how-to/run-a-fleet.md lists")
    if isinstance(error, pg.IdleInTransactionSessionTimeout):
        # Not passing: the same commit step would take as long next time, and the time after that.
        return errors.StoreError(text, hint="do slow work in a step before the commit step")
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | pg.DeadlockDetected):
        return errors.StoreUnavailable(text, hint="the server is away, restarting, or cut the connection")
    return errors.StoreError(text)


def is_lost_race(error: Exception) -> bool:
    """Was the transaction rolled back only because another came first? Then the same call may succeed at once."""
    return isinstance(error.__cause__, pg.UniqueViolation | pg.DeadlockDetected | pg.SerializationFailure)
