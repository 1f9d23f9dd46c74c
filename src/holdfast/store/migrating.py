"""Numbered migrations: each applied once, in order; a database newer than the code is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec

from holdfast.errors import StoreTooNew

_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of the schema."""

    version: int
    name: str
    sql: str


@cache
def load_migrations(package: str) -> Sequence[Migration]:
    """The migrations in a package's `migrations` folder, in order, numbered from 1 without gaps."""
    found = []
    for file in _folder(package).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match["version"]), match["name"], file.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered 1, 2, 3 …")
    return found


def pending(migrations: Sequence[Migration], applied: int, where: str) -> Sequence[Migration]:
    """What is still to be applied; raises StoreTooNew if the database knows more than we do."""
    newest = migrations[-1].version if migrations else 0
    if applied > newest:
        raise StoreTooNew(
            f"{where} has schema version {applied}, this Holdfast knows up to {newest}",
            hint="upgrade Holdfast on this machine; the database was left as it is",
        )
    return migrations[applied:]


def _folder(package: str) -> Path:
    # Not by importlib.resources, which takes as long to import as the store itself.
    return Path(import_module(package).__path__[0])
