"""An application's own tables in the engine's database: made once, read as records, written with a job's commit.

Imports neither the engine nor a driver that is not used: a program that only looks starts as quickly as without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast, get_args, get_type_hints

import msgspec

from holdfast.errors import BadInput, DefinitionError, RowUnreadable
from holdfast.sql_files import Dialect, Migration, load_migrations, load_statements, to_pyformat
from holdfast.store.place import ENGINE_TABLES, database_path, is_postgres, not_installed, postgres_place

if TYPE_CHECKING:
    from holdfast.core.flow import Flow
    from holdfast.core.step import Transaction
    from holdfast.store.connection_pool import Pool

__all__ = ["OpenTables", "TableSession", "Tables", "database_path", "is_postgres", "make_tables"]

CATALOG_PACKAGE = "holdfast_images.catalog"
"""Its ledger is called schema_migrations, as other programs expect it."""
RESERVED = ENGINE_TABLES | {"schema_migrations"}
_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,47}")
_STATEMENT_NAME = re.compile(r"[a-z_]+")

_NO_RECORD = (ValueError, TypeError)
"""What is raised for a row that is no record; a ValidationError is a ValueError."""

Row = TypeVar("Row", bound=msgspec.Struct)


class Tables:
    """What an application keeps beside the engine: how its tables are made, and the statements about them.

    `migrations` are applied once each, in their order: never change one that was released, add another. `package` has
    them, and the statements, in .sql files instead. `known_by` names the columns by which a person knows a row.
    """

    def __init__(
        self,
        name: str,
        *,
        migrations: Sequence[str] = (),
        statements: Mapping[str, str] | None = None,
        package: str | None = None,
        ledger: str | None = None,
        known_by: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.ledger = ledger or f"{name}_migrations"
        """The table that has on record which migrations were applied."""
        if isinstance(migrations, str):
            raise DefinitionError(f"tables {name}: migrations are a list of texts", hint="migrations=[...]")
        for table in (self.name, self.ledger):
            if not _TABLE_NAME.fullmatch(table):
                raise DefinitionError(
                    f"tables {name!r}: {table!r} is no name", hint="at most 48 lower-case letters, digits and '_'"
                )
        if self.ledger in RESERVED and package != CATALOG_PACKAGE:
            raise DefinitionError(
                f"tables {name!r}: {self.ledger} is the engine's own table", hint="choose another name"
            )
        if bool(migrations) == bool(package):
            raise DefinitionError(f"tables {name}: give either migrations or the package that has them")
        self.known_by = tuple(known_by)
        self._package = package
        # A single statement needs no semicolon here; a script in a file has one behind each.
        ended = [f"{text.rstrip().removesuffix(';')}\n;" for text in migrations]
        self._migrations = [Migration(number, name, text) for number, text in enumerate(ended, start=1)]
        self._statements = dict(statements or {})

    def open(self, place: str | Path, *, synchronous: str = "FULL") -> OpenTables:
        """The tables at the place of an engine (a directory or a URL), brought up to date.

        Raises StoreTooNew, with nothing changed, if a newer program has made them, and DefinitionError if a migration
        was changed after it had been applied. Crash: they are as they were before,
        or up to date.
        """
        database = _connected(place, synchronous)
        try:
            database.migrate(self.name, self.ledger, self.migrations(database.dialect))
        except BaseException:
            database.pool.close()
            raise
        return OpenTables(self, database)

    def are_made(self, place: str | Path) -> bool:
        """Are they there, with all of their migrations? Makes nothing. StoreTooNew, if with more."""
        if not is_postgres(place) and not database_path(place).exists():
            return False
        database = _connected(place, "FULL", make=False)
        try:
            return database.is_made(self.name, self.ledger, self.migrations(database.dialect))
        finally:
            database.pool.close()

    def on(self, tx: Transaction) -> TableSession:
        """These tables in the transaction of a commit step: what is written there is committed with the job."""
        own = cast(_CommitTransaction, tx)
        if getattr(own, "dialect", None) is None:
            raise BadInput(f"tables {self.name}: {type(tx).__name__} is no transaction of a commit step")
        return TableSession(self, own.execute_own, own.dialect, self.name)

    def migrations(self, dialect: Dialect) -> Sequence[Migration]:
        """Those of a database of this kind."""
        return load_migrations(self._package, dialect) if self._package else self._migrations

    def statement(self, text: str, dialect: Dialect) -> str:
        """What is run for a name, or for the SQL itself."""
        if not _STATEMENT_NAME.fullmatch(text):
            return text
        named = load_statements(self._package, dialect) if self._package else {}
        found = self._statements.get(text) or named.get(text)
        if found is None:
            raise BadInput(f"tables {self.name} have no statement {text!r}")
        return found


def _connected(place: str | Path, synchronous: str, *, make: bool = True) -> _Database:
    if is_postgres(place):
        try:
            from holdfast.store.postgres.tables import PostgresTables  # noqa: PLC0415 - when a URL asks for it
        except ImportError as error:
            raise not_installed(error) from error
        return PostgresTables(postgres_place(str(place)), synchronous=synchronous, make=make)
    from holdfast.store.sqlite.tables import SqliteTables  # noqa: PLC0415 - as above

    return SqliteTables(database_path(place), synchronous=synchronous, make=make)


def make_tables(place: str | Path, flows: Iterable[Flow[Any, Any]], *, synchronous: str = "FULL") -> None:
    """Make the tables that the commit steps of these flows write to, or bring them up to date."""
    known: dict[str, Any] = {}
    for tables in (tables for flow in flows for tables in flow.tables):
        if known.setdefault(tables.name, tables) is not tables:
            raise BadInput(f"two different sets of tables are named {tables.name!r}", hint="rename one of them")
    for tables in known.values():
        tables.open(place, synchronous=synchronous).close()


class TableSession:
    """Statements in one transaction. Each is the name of one, or SQL with `:name` parameters, on every database."""

    def __init__(self, tables: Tables, execute: Any, dialect: Dialect, where: str) -> None:
        self._tables = tables
        self._execute = execute
        self._dialect = dialect
        self._where = where

    def run(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, none if it has none. Raises RowRefused if a rule of a table refuses a row."""
        return self._run(statement, parameters)[1]

    def rows(self, kind: type[Row], statement: str, /, **parameters: Any) -> list[Row]:
        """The rows as records, columns by name; RowUnreadable, naming the row, if one is none."""
        columns, rows = self._run(statement, parameters)
        try:
            return [_to_record(kind, columns, row) for row in rows]
        except _NO_RECORD as error:
            named, problem = next(filter(None, (self._fault(kind, columns, row) for row in rows)))
            raise RowUnreadable(f"{named}: {problem}", hint="somebody has written to the database by hand") from error

    def row(self, kind: type[Row], statement: str, /, **parameters: Any) -> Row | None:
        """The first of them, or None."""
        found = self.rows(kind, statement, **parameters)
        return found[0] if found else None

    def unreadable(self, kind: type[Row], statement: str, /, **parameters: Any) -> list[tuple[str, str]]:
        """Every row that is no record: which it is, and why. For a check that reports all there is."""
        columns, rows = self._run(statement, parameters)
        return [found for row in rows if (found := self._fault(kind, columns, row)) is not None]

    def _fault(self, kind: type[Row], columns: Sequence[str], row: Sequence[Any]) -> tuple[str, str] | None:
        try:
            _to_record(kind, columns, row)
        except _NO_RECORD as error:
            values = dict(zip(columns, row, strict=True))
            named = next((name for name in self._tables.known_by if values.get(name)), columns[0])
            return f"{named} {str(values[named])[:200]!r}", str(error)
        return None

    def _run(self, statement: str, parameters: dict[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        errors, translate = _errors_of(self._dialect)
        sql = self._tables.statement(statement, self._dialect)
        if parameters and self._dialect == "postgres":
            sql = _pyformat(sql)
        try:
            # Without parameters a % is a %, and not the beginning of one.
            cursor = self._execute(sql, parameters) if parameters else self._execute(sql)
            if cursor.description is None:
                return [], []
            return [column[0] for column in cursor.description], cursor.fetchall()
        except errors as error:
            raise translate(error, self._where) from error


class OpenTables:
    """Tables that are there: reads of one state, writes of one transaction. For all threads of a process."""

    def __init__(self, tables: Tables, database: _Database) -> None:
        self.tables = tables
        self.database = database

    @contextmanager
    def reading(self) -> Iterator[TableSession]:
        """All reads in it see one state."""
        with self.database.reading() as connection:
            yield TableSession(self.tables, connection.execute, self.database.dialect, self.database.where)

    @contextmanager
    def writing(self, tx: Transaction | None = None) -> Iterator[TableSession]:
        """A transaction of its own, committed at the end or rolled back whole; that of a commit step, if it is given.

        In a commit step always give it: on SQLite the engine has the database to itself until the step has ended.
        """
        if tx is not None:
            yield self.tables.on(tx)
            return
        with self.database.transaction() as connection:
            yield TableSession(self.tables, connection.execute, self.database.dialect, self.database.where)

    def run(self, statement: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
        """One statement in a transaction of its own."""
        with self.writing() as session:
            return session.run(statement, **parameters)

    def rows(self, kind: type[Row], statement: str, /, **parameters: Any) -> list[Row]:
        """The rows of one statement that only reads, as records."""
        with self.reading() as session:
            return session.rows(kind, statement, **parameters)

    def row(self, kind: type[Row], statement: str, /, **parameters: Any) -> Row | None:
        """The first of them, or None."""
        with self.reading() as session:
            return session.row(kind, statement, **parameters)

    def close(self) -> None:
        """Close every connection."""
        self.database.pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Database(Protocol):
    """What a store gives to an application's tables."""

    dialect: Dialect
    where: str
    pool: Pool[Any]

    def transaction(self) -> AbstractContextManager[Any]: ...

    def reading(self) -> AbstractContextManager[Any]: ...

    def migrate(self, name: str, ledger: str, migrations: Sequence[Migration]) -> None: ...
    def is_made(self, name: str, ledger: str, migrations: Sequence[Migration]) -> bool: ...


class _CommitTransaction(Protocol):
    """More of a commit step's transaction than its own statements need."""

    dialect: Dialect

    def execute_own(self, sql: str, parameters: Any = ()) -> Any: ...


def _errors_of(dialect: Dialect) -> tuple[tuple[type[Exception], ...], Any]:
    if dialect == "postgres":
        from holdfast.store.postgres import tables as postgres  # noqa: PLC0415 - as above

        return postgres.ERRORS, postgres.translate
    from holdfast.store.sqlite import tables as sqlite  # noqa: PLC0415 - as above

    return sqlite.ERRORS, sqlite.translate


def _to_record(kind: type[Row], columns: Sequence[str], row: Sequence[Any]) -> Row:
    """A column that the record does not have is left out."""
    fields, times = set(kind.__struct_fields__), _times_of(kind)
    values = {
        name: _time(value) if name in times else value
        for name, value in zip(columns, row, strict=True)
        if name in fields
    }
    return msgspec.convert(values, kind, strict=False)


@cache
def _times_of(kind: type[msgspec.Struct]) -> frozenset[str]:
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if hint is datetime or datetime in get_args(hint))


def _time(value: Any) -> Any:
    """With its zone. SQLite's CURRENT_TIMESTAMP is UTC and does not say so."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return value.astimezone(UTC) if isinstance(value, datetime) else value


_pyformat = lru_cache(maxsize=512)(to_pyformat)
