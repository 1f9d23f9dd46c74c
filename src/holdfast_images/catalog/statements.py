"""SQL kept in .sql files: named statements, and numbered migrations with their descriptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec

from holdfast_images.errors import CatalogUnusable

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+)$", re.MULTILINE)
_FILE = re.compile(r"(?P<version>\d{4})_[a-z0-9_]+\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of the schema; the first line of its file describes it."""

    version: int
    description: str
    sql: str


@cache
def load_statements(package: str) -> Mapping[str, str]:
    """name → statement, without the lines that give its reason."""
    return dict(_split(_folder(package).joinpath("queries.sql").read_text(encoding="utf-8")))


def _split(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        yield header["name"], "\n".join(lines).strip().rstrip(";")


@cache
def load_migrations(package: str) -> Sequence[Migration]:
    """The migrations of a package, in order."""
    found = []
    for file in _folder(package).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            text = file.read_text(encoding="utf-8")
            found.append(Migration(int(match["version"]), text.partition("\n")[0].removeprefix("-- "), text))
    return sorted(found, key=lambda migration: migration.version)


def pending(migrations: Sequence[Migration], applied: Sequence[int], where: str) -> Sequence[Migration]:
    """What is still to be applied. Raises CatalogUnusable if the database knows more than this program."""
    newest = migrations[-1].version
    if max(applied, default=0) > newest:
        raise CatalogUnusable(
            f"the catalog in {where} has schema version {max(applied)}, this program knows up to {newest}",
            hint="upgrade the program on this machine; the database was left as it is",
        )
    return [migration for migration in migrations if migration.version not in applied]


def _folder(package: str) -> Path:
    # Not by importlib.resources, which takes as long to import as the store itself.
    return Path(import_module(package).__path__[0])
