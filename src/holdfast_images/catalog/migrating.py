"""Each migration is applied once; a catalog newer than the program is refused."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.sql_files import Migration
from holdfast_images.errors import CatalogUnusable


def pending(migrations: Sequence[Migration], applied: Sequence[int], where: str) -> Sequence[Migration]:
    """What is still to be applied. Raises CatalogUnusable if the database knows more than this program."""
    newest = migrations[-1].version
    if max(applied, default=0) > newest:
        raise CatalogUnusable(
            f"the catalog in {where} has schema version {max(applied)}, this program knows up to {newest}",
            hint="upgrade the program on this machine; the database was left as it is",
        )
    return [migration for migration in migrations if migration.version not in applied]
