"""Each migration is applied once, in order; a database newer than the code is refused."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StoreTooNew
from holdfast.sql_files import Migration


def pending(migrations: Sequence[Migration], applied: int, where: str) -> Sequence[Migration]:
    """What is still to be applied; raises StoreTooNew if the database knows more than we do."""
    newest = migrations[-1].version if migrations else 0
    if applied > newest:
        raise StoreTooNew(
            f"{where} has schema version {applied}, this Holdfast knows up to {newest}",
            hint="upgrade Holdfast on this machine; the database was left as it is",
        )
    return migrations[applied:]
