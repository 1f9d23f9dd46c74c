"""What all hosts of a store have: looked at from any of them, a page at a time. A file has one host, without a name."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast_images.catalog.tables import (
    ActivationStatus,
    CatalogOperations,
    DownloadStatus,
    HostClaim,
    ImageLock,
    Row,
)

LAST_ID = (1 << 63) - 1
MOST_HOSTS = 1000
"""More are not looked at."""


class ImageCopy(Row, frozen=True, kw_only=True):
    """An image as one host has it."""

    id: int
    host: str
    image_id: str
    s3_key: str
    checksum: str | None
    size_bytes: int
    download_status: DownloadStatus
    activation_status: ActivationStatus | None
    created_at: datetime
    updated_at: datetime
    device_name: str | None
    snapshots: int
    in_use: int
    """How many of the snapshots are."""


class SnapshotCopy(Row, frozen=True, kw_only=True):
    """A snapshot of one host."""

    id: int
    host: str
    image_id: str
    snapshot_id: str
    snapshot_name: str
    active: bool
    created_at: datetime
    deactivated_at: datetime | None


class HostLock(ImageLock, frozen=True, kw_only=True):
    """A lock of one host."""

    host: str


class CatalogCounts(msgspec.Struct, frozen=True):
    """How many rows there are, counted up to a cap."""

    images: int
    devices: int
    snapshots_in_use: int
    refusals: int


class FleetTables(CatalogOperations):
    """The rows of every host. Nothing here changes any."""

    def page_of_images(
        self, *, host: str = "", status: str = "", text: str = "", before: int = LAST_ID, most: int = 50
    ) -> list[ImageCopy]:
        """Images whose id or key has this text in it, newest first, behind one of them."""
        pattern = f"%{_escaped(text)}%" if text else ""
        return self._all(
            ImageCopy, "page_of_images", only=host, status=status, pattern=pattern, before=before, most=most
        )

    def copies_of_image(self, image_id: str) -> list[ImageCopy]:
        """The image on every host that has it."""
        return self._all(ImageCopy, "copies_of_image", image_id=image_id, most=MOST_HOSTS)

    def page_of_snapshots(
        self, *, host: str = "", image_id: str = "", active: bool = False, before: int = LAST_ID, most: int = 50
    ) -> list[SnapshotCopy]:
        """Snapshots, of one image or of all, newest first, behind one of them."""
        return self._all(
            SnapshotCopy,
            "page_of_snapshots",
            only=host,
            image_id=image_id,
            active=int(active),
            before=before,
            most=most,
        )

    def hosts_of_snapshot(self, snapshot_name: str) -> list[str]:
        """The hosts that have a snapshot of this name."""
        with self._reading() as session:
            rows = session.run("hosts_of_snapshot", snapshot_name=snapshot_name, most=MOST_HOSTS)
        return [str(host) for host, _ in rows]

    def locks_of_all(self, *, most: int = 100) -> list[HostLock]:
        """The locks of every host, oldest first."""
        return self._all(HostLock, "locks_of_all", most=most)

    def counts_of_all(self, *, most: int) -> CatalogCounts:
        """Rows of every host, counted no further than so many."""
        with self._reading() as session:
            [row] = session.run("counts_of_all", most=most)
        return CatalogCounts(*map(int, row))

    def list_hosts(self) -> list[HostClaim]:
        """Every host that has used this store; none of a file, which has only one."""
        return self._all(HostClaim, "list_hosts", most=MOST_HOSTS)


def _escaped(text: str) -> str:
    return "".join(f"!{character}" if character in "!%_" else character for character in text)
