"""SQL kept in .sql files beside the code: one name, one reason and one statement each; numbered migrations.

For the engine's stores, and for applications that keep tables of their own in the engine's database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import msgspec

_HEADER = re.compile(r"^-- name: (?P<name>[a-z_]+)$", re.MULTILINE)
_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of a schema; the first line of its file may describe it."""

    version: int
    name: str
    file: Path

    @property
    def sql(self) -> str:
        """Its statements. Read when they are needed: mostly nothing is to be applied."""
        return self.file.read_text(encoding="utf-8")

    @property
    def description(self) -> str:
        """The comment in its first line."""
        return self.sql.partition("\n")[0].removeprefix("-- ")


@cache
def load_statements(package: str) -> Mapping[str, str]:
    """name → statement of the package's queries.sql, without the comment lines that give its reason."""
    return dict(_split(_folder(package).joinpath("queries.sql").read_text(encoding="utf-8")))


@cache
def load_migrations(package: str) -> Sequence[Migration]:
    """The migrations in a package's `migrations` folder, in order, numbered from 1 without gaps."""
    found = []
    for file in _folder(package).joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match["version"]), match["name"], file))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations of {package} are not numbered 1, 2, 3 …")
    return found


def _split(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        yield header["name"], "\n".join(lines).strip().rstrip(";")


def _folder(package: str) -> Path:
    # Not by importlib.resources, which takes as long to import as the store itself.
    return Path(import_module(package).__path__[0])
