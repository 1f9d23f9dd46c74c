"""How long the server may take for what: it ends what takes longer, and whoever waits knows when to give up."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Seconds after which the server ends a statement, a wait for one lock, a transaction whose client is silent."""

    statement: float
    lock: float
    idle: float | None

    @property
    def settings(self) -> dict[str, str]:
        """As settings of a transaction."""
        of_statements = {"statement_timeout": milliseconds(self.statement), "lock_timeout": milliseconds(self.lock)}
        if self.idle is None:
            return of_statements
        return {**of_statements, "idle_in_transaction_session_timeout": milliseconds(self.idle)}

    @property
    def answer(self) -> float:
        """After so long without an answer nobody is there to give one."""
        return self.statement + ANSWER_MARGIN


def milliseconds(seconds: float) -> str:
    """The value of a setting."""
    return f"{round(seconds * 1000)}ms"


ANSWER_MARGIN = 10.0
GREETING = 5.0
"""For the first answer over a connection, before anything was done."""
SUSPICION = 1.0
"""The same, after another connection of the pool was found to be hanging."""

OF_WORKERS = Limits(statement=20.0, lock=0.1, idle=10.0)
"""Writes, claims, renewals. Nobody waits long for a lock: what it keeps back is tried again, and the rest goes on."""
OF_CLIENTS = Limits(statement=120.0, lock=15.0, idle=10.0)
"""Submits and what operators do: longer than one who is gone may hold a lock."""
OF_READS = Limits(statement=30.0, lock=15.0, idle=None)
OF_LONG_READS = Limits(statement=600.0, lock=15.0, idle=None)
"""Checks of everything."""
OF_EFFECTS = Limits(statement=120.0, lock=15.0, idle=120.0)
"""Statements of a commit step, and the time between them: ample, but not endless, because all others wait for it."""
