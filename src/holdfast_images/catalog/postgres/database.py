"""The engine's schema of a PostgreSQL database, shared by the hosts of a fleet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast import Engine
from holdfast.sql_files import Migration, load_migrations, load_statements
from holdfast_images.catalog.migrating import pending
from holdfast_images.catalog.place import split_url
from holdfast_images.catalog.pool import Pool
from holdfast_images.errors import CatalogUnavailable, CatalogUnusable

try:
    import psycopg
    from psycopg import errors as pg
    from psycopg import sql
except ImportError as error:
    raise CatalogUnusable(
        f"PostgreSQL needs packages that are not installed: {error}", hint="pip install 'holdfast[postgres]'"
    ) from error

PACKAGE = "holdfast_images.catalog.postgres"
Connection = psycopg.Connection[tuple[Any, ...]]
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
# `:name`, but neither the `::` of a cast nor a colon inside a word.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_0-9]+)")


def open_postgres(url: str, *, synchronous: str = "FULL") -> PostgresDatabase:
    """The database of a URL as the engine takes it; the engine makes its schema first."""
    Engine.open(url, synchronous=synchronous).close()
    plain, schema = split_url(url)
    return PostgresDatabase(plain, schema=schema, synchronous=synchronous)


def in_dialect(statement: str, schema: str) -> str:
    """A statement of queries.sql as psycopg wants it."""
    return _PARAMETER.sub(r"%(\1)s", statement.replace("%", "%%").replace("{schema}", schema))


class PostgresDatabase:
    """The catalog's connections. Crash: the server rolls an open transaction back."""

    refusals: tuple[type[Exception], ...] = (psycopg.IntegrityError, psycopg.DataError)

    def __init__(self, url: str, *, schema: str, synchronous: str = "FULL") -> None:
        if not _SCHEMA.fullmatch(schema):
            raise CatalogUnusable(f"{schema!r} cannot be the name of a schema")
        self._url = url
        self._schema = schema
        self._synchronous = "on" if synchronous == "FULL" else "off"
        self.statements: Mapping[str, str] = {
            name: in_dialect(text, schema) for name, text in load_statements(PACKAGE).items()
        }
        self.pool = Pool(self._connect)
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Committed at the end, or rolled back whole."""
        with translated(), self.pool.connection() as connection, connection.transaction():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One state of the database for all reads in it."""
        with translated(), self.pool.connection() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    def close(self) -> None:
        """Close every connection."""
        self.pool.close()

    def _connect(self) -> Connection:
        connection: Connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=10, application_name="holdfast-images"
        )
        connection.execute("SET lock_timeout = '10s'; SET client_min_messages = warning")
        if self._synchronous == "off":
            connection.execute("SET synchronous_commit = off")
        return connection

    def _migrate(self) -> None:
        """Looking is enough if nothing is missing: a role that only reads, or works, may change no table."""
        migrations, where = load_migrations(PACKAGE), f"schema {self._schema}"
        with self.reading() as connection:
            missing = pending(migrations, self._applied(connection), where)
        if not missing:
            return
        try:
            self._apply_missing(migrations, where)
        except CatalogUnusable as error:
            if isinstance(error.__cause__, pg.InsufficientPrivilege):
                raise CatalogUnusable(
                    f"the catalog in {where} needs version {migrations[-1].version}, and this role may not make it:"
                    f" {error}",
                    hint="let the owner of the schema open the catalog once: see docs/how-to/run-a-fleet.md",
                ) from error
            raise

    def _applied(self, connection: Connection) -> list[int]:
        table = f"{self._schema}.schema_migrations"
        if connection.execute("SELECT to_regclass(%s)", [table]).fetchone() in (None, (None,)):
            return []
        name = sql.Identifier(self._schema, "schema_migrations")
        return [int(row[0]) for row in connection.execute(sql.SQL("SELECT version FROM {}").format(name))]

    def _apply_missing(self, migrations: Sequence[Migration], where: str) -> None:
        with self.transaction() as connection:
            # Held to the end of the transaction: several processes may start at once.
            connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [f"{self._schema}.catalog"])
            connection.execute(sql.SQL("SET LOCAL search_path TO {}").format(sql.Identifier(self._schema)))
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations ("
                "version INTEGER PRIMARY KEY, "
                "applied_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP, "
                "description TEXT)"
            )
            # Asked again under the lock.
            for migration in pending(migrations, self._applied(connection), where):
                connection.execute(migration.sql.encode())
                connection.execute(
                    "INSERT INTO schema_migrations (version, description) VALUES (%s, %s)",
                    [migration.version, migration.description],
                )


@contextmanager
def translated() -> Iterator[None]:
    """PostgreSQL's errors as ours: the class says whether trying again can help."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.InterfaceError, pg.SerializationFailure, pg.DeadlockDetected) as error:
        raise CatalogUnavailable(f"PostgreSQL: {_in_one_line(error)}", hint="it will be tried again") from error
    except pg.InsufficientPrivilege as error:
        raise CatalogUnusable(
            f"PostgreSQL: {_in_one_line(error)}", hint="grant it to this role: see docs/how-to/run-a-fleet.md"
        ) from error
    except psycopg.Error as error:
        raise CatalogUnusable(f"PostgreSQL: {_in_one_line(error)}", hint="see what is wrong: holdfast check") from error


def _in_one_line(error: psycopg.Error) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
