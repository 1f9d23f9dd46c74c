"""The tables of the catalog, and how its operations read and write them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import RowRefused, RowUnreadable, StoreError, StoreForeign, StoreUnavailable
from holdfast.tables import OpenTables, Tables, TableSession
from holdfast_images.catalog.rows import AnyRow
from holdfast_images.errors import CatalogConflict, CatalogUnavailable, CatalogUnusable

if TYPE_CHECKING:
    from holdfast import Transaction

CATALOG = Tables(
    "catalog",
    package="holdfast_images.catalog",
    ledger="schema_migrations",
    known_by=("snapshot_name", "image_id", "s3_key"),
)


def open_tables(place: str | Path, *, synchronous: str) -> OpenTables:
    """The catalog's tables at the engine's place, brought up to date."""
    with _translated():
        return CATALOG.open(place, synchronous=synchronous)


def is_made(place: str | Path) -> bool:
    """Is there a catalog? Makes none."""
    with _translated():
        return CATALOG.are_made(place)


class CatalogSession:
    """Named statements on one transaction, for one host."""

    def __init__(self, session: TableSession, host: str) -> None:
        self._session = session
        self._host = host

    def run(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement. Raises CatalogConflict if a rule of the schema refuses it."""
        try:
            return self._session.run(statement, host=self._host, **parameters)
        except RowRefused as error:
            raise CatalogConflict(
                f"{statement}: the database refuses it: {error}", hint="nothing was changed; look at the rows it names"
            ) from error

    def select(self, kind: type[AnyRow], statement: str, **parameters: Any) -> list[AnyRow]:
        """The rows of a statement as records; CatalogUnusable, naming the row, if one of them is none."""
        try:
            return self._session.rows(kind, statement, host=self._host, **parameters)
        except RowUnreadable as error:
            raise CatalogUnusable(
                f"a row of the catalog cannot be read, {error}",
                hint="somebody has written to the database by hand; see all of it: holdfast verify-system",
            ) from error

    def unreadable(self, kind: type[AnyRow], statement: str) -> list[tuple[str, str]]:
        """The rows of a statement that are no records: which each is, and why."""
        return self._session.unreadable(kind, statement, host=self._host)


class CatalogOperations:
    """Base of the groups of operations: each reads in one state and writes in one transaction."""

    def __init__(self, tables: OpenTables, *, host: str) -> None:
        self._tables = tables
        self._host = host

    @contextmanager
    def _reading(self) -> Iterator[CatalogSession]:
        with _translated(), self._tables.reading() as session:
            yield CatalogSession(session, self._host)

    @contextmanager
    def _writing(self, tx: Transaction | None) -> Iterator[CatalogSession]:
        """The engine's transaction if there is one, else one of our own."""
        if tx is not None:
            # What has ended a transaction of the engine's is for the engine to judge.
            yield CatalogSession(CATALOG.on(tx), self._host)
            return
        with _translated(), self._tables.writing() as session:
            yield CatalogSession(session, self._host)

    def _all(self, kind: type[AnyRow], statement: str, **parameters: Any) -> list[AnyRow]:
        with self._reading() as session:
            return session.select(kind, statement, **parameters)

    def _one(self, kind: type[AnyRow], statement: str, **parameters: Any) -> AnyRow | None:
        rows = self._all(kind, statement, **parameters)
        return rows[0] if rows else None


@contextmanager
def _translated() -> Iterator[None]:
    """The engine's errors as ours: the class says whether trying again can help."""
    try:
        yield
    except StoreForeign:
        raise
    except StoreUnavailable as error:
        raise CatalogUnavailable(str(error), hint=error.hint) from error
    except StoreError as error:
        raise CatalogUnusable(str(error), hint=error.hint or "see what is wrong: holdfast check --deep") from error
