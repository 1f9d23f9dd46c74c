"""SQL kept in .sql files beside the code: one name, one reason and one statement each; numbered migrations.

A package has `statements.sql`, which all dialects run, and for each dialect a folder of that name: its `overrides.sql`
has what that one says differently, its `migrations` make the tables. `{name}` in a statement stands for the spelling
of that name in the dialect's overrides. For the engine's stores, and through `holdfast.tables` for applications.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.errors import DefinitionError, StoreTooNew

Dialect = Literal["sqlite", "postgres"]
DIALECTS: tuple[Dialect, ...] = ("sqlite", "postgres")

_HEADER = re.compile(r"^-- (?P<kind>name|spelling): (?P<name>[a-z_]+)$", re.MULTILINE)
_SPELLED = re.compile(r"\{([a-z_]+)\}")
_DIGEST = re.compile(r"\[sha256 [0-9a-f]{16}\]$")
_FILE = re.compile(r"(?P<version>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
# `:name`, but neither the `::` of a cast nor a colon inside a word; and nothing in literals, quoted names and comments.
_PARAMETER = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|--[^\n]*|/\*.*?\*/"""
    r"|(?<![:\w]):(?P<name>[A-Za-z_]\w*)",
    re.DOTALL,
)


class Migration(msgspec.Struct, frozen=True):
    """One numbered change of a schema; the first line of it may describe it."""

    version: int
    name: str
    source: Path | str

    @property
    def sql(self) -> str:
        """Its statements. Read when they are needed: mostly nothing is to be applied."""
        return self.source if isinstance(self.source, str) else self.source.read_text(encoding="utf-8")

    @property
    def description(self) -> str:
        """The comment in its first line, and the digest of a text that has no file to be compared with."""
        words = self.sql.partition("\n")[0].removeprefix("-- ")
        return f"{words} {self._mark}" if isinstance(self.source, str) else words

    def was_changed(self, description: str | None) -> bool:
        """Was another text applied than this one, by what is on record of it?"""
        if not isinstance(self.source, str) or not _DIGEST.search(description or ""):
            return False
        return not (description or "").endswith(self._mark)

    @property
    def _mark(self) -> str:
        # How it is laid out does not count.
        return f"[sha256 {hashlib.sha256(' '.join(self.sql.split()).encode()).hexdigest()[:16]}]"


@cache
def load_statements(package: str, dialect: Dialect) -> Mapping[str, str]:
    """name → statement, without the comment lines that give its reason: the package's, then the dialect's overrides."""
    folder = _folder(package)
    found: dict[str, dict[str, str]] = {"name": {}, "spelling": {}}
    for file in (folder / "statements.sql", folder / dialect / "overrides.sql"):
        if file.exists():
            for kind, name, text in split(file.read_text(encoding="utf-8")):
                found[kind][name] = text
    return {name: spelled(text, found["spelling"]) for name, text in found["name"].items()}


@cache
def load_migrations(package: str, dialect: Dialect) -> Sequence[Migration]:
    """The migrations of a dialect, in order, numbered from 1 without gaps."""
    folder = _folder(package)
    own = folder / dialect / "migrations"
    found = []
    for file in (own if own.exists() else folder / "migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match:
            found.append(Migration(int(match["version"]), match["name"], file))
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


def missing(migrations: Sequence[Migration], applied: Mapping[int, str | None], where: str) -> Sequence[Migration]:
    """The same for an application's tables, whose migrations are on record one by one: version → description."""
    newest = migrations[-1].version if migrations else 0
    if max(applied, default=0) > newest:
        raise StoreTooNew(
            f"{where} has schema version {max(applied)}, this program knows up to {newest}",
            hint="upgrade the program on this machine; the database was left as it is",
        )
    for migration in migrations:
        if migration.version in applied and migration.was_changed(applied[migration.version]):
            raise DefinitionError(
                f"{where}: migration {migration.version} was changed after it had been applied; nothing was changed",
                hint="put its text back as it was, and add a migration that makes the difference",
            )
    return [migration for migration in migrations if migration.version not in applied]


def changes_the_engine(name: str, migration: Migration) -> DefinitionError:
    """What to say to a migration of an application that does not keep to its own tables."""
    return DefinitionError(
        f"migration {migration.version} of tables {name} changes a table of the engine; nothing was changed",
        hint="keep to tables of your own",
    )


def split(text: str) -> Iterator[tuple[str, str, str]]:
    """The parts of a file: `name` or `spelling`, what it is called, and the SQL."""
    headers = list(_HEADER.finditer(text))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        body = text[header.end() : following.start() if following else len(text)]
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        yield header["kind"], header["name"], "\n".join(lines).strip().rstrip(";")


def spelled(statement: str, spellings: Mapping[str, str]) -> str:
    """The statement as the dialect spells it. Braces around anything else are SQL, and left as they are."""
    return _SPELLED.sub(lambda found: spellings.get(found[1], found[0]), statement).rstrip()


def to_pyformat(statement: str) -> str:
    """`:name` parameters as psycopg wants them."""
    found = statement.replace("%", "%%")
    return _PARAMETER.sub(lambda part: f"%({part['name']})s" if part["name"] else part[0], found)


def _folder(package: str) -> Path:
    # Not by importlib.resources, which takes as long to import as the store itself.
    return Path(import_module(package).__path__[0])
