"""What the catalog answers with: one frozen record per row, times with their zone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.errors import RowRefused, RowUnreadable, StoreError, StoreForeign, StoreUnavailable
from holdfast.tables import OpenTables, Tables, TableSession
from holdfast_images.errors import CatalogConflict, CatalogUnavailable, CatalogUnusable
from holdfast_images.model import Fingerprint

if TYPE_CHECKING:
    from holdfast import Transaction


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records."""


class DownloadStatus(StrEnum):
    """Of an image's file."""

    PENDING = "pending"
    DOWNLOADING = "downloading"
    COMPLETED = "completed"
    FAILED = "failed"


class ActivationStatus(StrEnum):
    """ACTIVE: the image has an active snapshot."""

    INACTIVE = "inactive"
    ACTIVE = "active"
    FAILED = "failed"


class HostClaim(Row, frozen=True, kw_only=True):
    """A row of `catalog_hosts`: the machine and the data directory that have the name of a host."""

    host: str
    machine: str
    data_id: str
    directory: str


class Image(Row, frozen=True, kw_only=True):
    """A row of `images`."""

    id: int
    image_id: str
    s3_key: str
    local_path: str
    checksum: str | None
    size_bytes: int
    download_status: DownloadStatus
    activation_status: ActivationStatus | None
    created_at: datetime
    downloaded_at: datetime | None
    activated_at: datetime | None
    updated_at: datetime


class UnpackedImage(Row, frozen=True, kw_only=True):
    """A row of `unpacked_images`."""

    id: int
    image_id: str
    device_id: str
    device_name: str
    device_path: str
    size_bytes: int
    file_count: int
    layout_verified: bool
    created_at: datetime
    unpacked_at: datetime
    updated_at: datetime


class Snapshot(Row, frozen=True, kw_only=True):
    """A row of `snapshots`."""

    id: int
    image_id: str
    snapshot_id: str
    snapshot_name: str
    device_path: str
    origin_device_id: str
    active: bool
    created_at: datetime
    deactivated_at: datetime | None
    updated_at: datetime


class ImageLock(Row, frozen=True, kw_only=True):
    """A row of `image_locks`, and how many seconds old it is by the database's clock."""

    image_id: str
    locked_at: int
    locked_by: str
    age: int


class ImageStatus(Row, frozen=True, kw_only=True):
    """Everything about one key in one line per snapshot."""

    image_id: str
    s3_key: str
    download_status: DownloadStatus
    activation_status: ActivationStatus | None
    device_name: str | None
    snapshot_name: str | None
    snapshot_active: bool | None


class Verification(Row, frozen=True, kw_only=True):
    """What was verified: the content, the file that holds it, the policy, and what was warned of."""

    image_id: str
    checksum: str
    size_bytes: int
    inode: int
    mtime_ns: int
    ctime_ns: int
    policy: str
    warnings: str
    """JSON, as it was given."""
    origin: str = ""
    """Which object it was, of all that there are; empty if that is not known."""
    etag: str | None = None
    """Of the object when its source was last asked."""
    asked_at: datetime | None = None
    """When that was; None if it is not known."""
    verified_at: datetime

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the file when it was verified."""
        return Fingerprint(self.size_bytes, self.inode, self.mtime_ns, self.ctime_ns)


class ImageRefusal(Row, frozen=True, kw_only=True):
    """Why an image was refused: what is needed to say the same again."""

    s3_key: str
    policy: str
    etag: str | None
    checksum: str | None
    code: str
    detail: str
    entry: str
    byte_offset: int | None
    hint: str | None
    refused_at: datetime


class Reservation(Row, frozen=True, kw_only=True):
    """A device id that is taken; with a snapshot's name it is that snapshot's, else the image's device's."""

    device_id: int
    image_id: str
    snapshot_name: str
    reserved_at: datetime


class RuleViolation(msgspec.Struct, frozen=True):
    """A row that breaks one of the four rules of consistency."""

    rule: int
    image_id: str
    message: str


AnyRow = TypeVar("AnyRow", bound=Row)


# --- The tables of the catalog, and how its operations read and write them ------------------------------

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
