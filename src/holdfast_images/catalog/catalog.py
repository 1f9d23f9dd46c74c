"""The catalog: what is recorded of images, in the database that the engine uses."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast_images.catalog.database import open_tables
from holdfast_images.catalog.devices import DeviceTables
from holdfast_images.catalog.hosts import HostTables
from holdfast_images.catalog.images import ImageTables
from holdfast_images.catalog.locks import LockTables
from holdfast_images.catalog.rows import (
    Image,
    ImageLock,
    Refusal,
    Reservation,
    Row,
    Snapshot,
    UnpackedImage,
    Verification,
    Violation,
)

_RULES = (
    (1, "unpacked_without_image", "is unpacked as {0}, but there is no such image"),
    (2, "unpacked_without_download", "is unpacked as {0}, but its download is {1}"),
    (3, "snapshots_without_unpacked", "has snapshot {0} of device {1}, which does not hold it verified"),
    (4, "activation_out_of_step", "is {0}, and has {1} active snapshots"),
)


_TABLES: tuple[tuple[str, type[Row], str], ...] = (
    ("images", Image, "list_all_images"),
    ("unpacked_images", UnpackedImage, "list_unpacked_images"),
    ("snapshots", Snapshot, "list_snapshots"),
    ("image_locks", ImageLock, "list_image_locks"),
    ("image_verifications", Verification, "list_verifications"),
    ("image_refusals", Refusal, "list_refusals"),
    ("image_updates", Verification, "list_updates"),
    ("device_reservations", Reservation, "list_reservations"),
)


class Catalog(ImageTables, DeviceTables, LockTables, HostTables):
    """All operations. Writes take the engine's transaction as `tx`, or make one of their own.

    In a commit step always pass `tx`: on SQLite the engine has the database to itself until the step has ended.
    Crash: an operation has happened whole, or not at all.
    """

    @classmethod
    def open(cls, place: str | Path, *, synchronous: str = "FULL", host: str | None = None) -> Self:
        """Open the catalog at the engine's place (a state directory or a URL), and bring its tables up to date.

        `host` tells the machines of a fleet apart; a SQLite file has only one.
        """
        return cls(open_tables(place, synchronous=synchronous), host=host or os.uname().nodename)

    def ping(self) -> None:
        """Raise CatalogUnavailable or CatalogUnusable unless the database answers."""
        with self._reading() as session:
            session.run("list_image_locks")

    def store_id(self) -> str:
        """What tells this catalog from every other; a copy of its database has the same."""
        with self._reading() as session:
            [(store_id,)] = session.run("store_id")
            return str(store_id)

    def has_unfinished_job(self, flow: str, key: str) -> bool:
        """Has the engine a job of this flow and key that has not ended?"""
        with self._reading() as session:
            return bool(session.run("unfinished_job", flow=flow, key=key))

    def violations(self) -> list[Violation]:
        """Every row that breaks one of the four rules between downloads, devices and snapshots, in one look."""
        with self._reading() as session:
            return [
                Violation(rule, image_id, f"image {image_id} {message.format(*facts)}")
                for rule, statement, message in _RULES
                for image_id, *facts in session.run(statement)
            ]

    def unreadable(self) -> list[tuple[str, str, str]]:
        """Every row that is no record: its table, which it is, and what is wrong with it."""
        with self._reading() as session:
            return [(table, *each) for table, kind, name in _TABLES for each in session.unreadable(kind, name)]

    def close(self) -> None:
        """Close every connection."""
        self._tables.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
