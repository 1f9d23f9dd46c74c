"""Operations on what images became: unpacked devices, snapshots, and the ids reserved for both."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from holdfast_images.catalog.tables import CatalogOperations, CatalogSession, Reservation, Snapshot, UnpackedImage
from holdfast_images.errors import CatalogConflict, ImageError, NoSpace

if TYPE_CHECKING:
    from holdfast import Transaction


BESIDE = "/new/"
"""Begins what an id is reserved for, if that is a device to replace another. No snapshot's name has a slash."""
REPLACED = "/old/"
"""The same for one that was replaced, and is to be deleted."""


class DeviceTables(CatalogOperations):
    """`unpacked_images`, `snapshots`, `device_reservations`."""

    def check_image_unpacked(self, image_id: str) -> UnpackedImage | None:
        """What the image was unpacked to; the caller looks at `layout_verified` and at the device."""
        return self._one(UnpackedImage, "unpacked_image_by_id", image_id=image_id)

    def check_image_unpacked_by_key(self, s3_key: str) -> UnpackedImage | None:
        """What the image of a key was unpacked to, if its layout was verified."""
        return self._one(UnpackedImage, "unpacked_by_key", s3_key=s3_key)

    def store_unpacked_image(
        self,
        image_id: str,
        device_id: str,
        device_name: str,
        device_path: str,
        size_bytes: int,
        file_count: int,
        *,
        tx: Transaction | None = None,
    ) -> None:
        """Record an unpacked and verified image, again if it was recorded before.

        Raises CatalogConflict, with nothing changed, if the device is another image's, or if snapshots refer to the
        device that this one would replace.
        """
        with self._writing(tx) as session:
            _refuse_orphaning(session, image_id, device_id)
            session.run(
                "store_unpacked_image",
                image_id=image_id,
                device_id=device_id,
                device_name=device_name,
                device_path=device_path,
                size_bytes=size_bytes,
                file_count=file_count,
            )

    def get_unpacked_image_by_id(self, image_id: str) -> UnpackedImage | None:
        """What an image was unpacked to."""
        return self._one(UnpackedImage, "unpacked_image_by_id", image_id=image_id)

    def get_unpacked_image_by_device_id(self, device_id: str) -> UnpackedImage | None:
        """What a device holds."""
        return self._one(UnpackedImage, "unpacked_image_by_device_id", device_id=device_id)

    def delete_unpacked_image(self, image_id: str, *, tx: Transaction | None = None) -> None:
        """Forget what an image was unpacked to. Raises CatalogConflict while snapshots of it are recorded."""
        with self._writing(tx) as session:
            session.run("delete_unpacked_image", image_id=image_id)

    def mark_unpacked_unverified(self, image_id: str, *, tx: Transaction | None = None) -> None:
        """Its device is not to be believed any more; the row stays for the snapshots that refer to it."""
        with self._writing(tx) as session:
            session.run("mark_unpacked_unverified", image_id=image_id)

    def mark_unpacked_verified(self, image_id: str, *, tx: Transaction | None = None) -> None:
        """Its device was read, and is what it should be."""
        with self._writing(tx) as session:
            session.run("mark_unpacked_verified", image_id=image_id)

    def set_device_path(self, image_id: str, path: str) -> None:
        """Where the device is after the state was moved."""
        with self._writing(None) as session:
            session.run("set_device_path", image_id=image_id, path=path)

    def list_unpacked_images(self) -> list[UnpackedImage]:
        """All unpacked images, oldest first."""
        return self._all(UnpackedImage, "list_unpacked_images")

    # --- snapshots ---

    def check_snapshot_exists(self, image_id: str, snapshot_name: str) -> Snapshot | None:
        """The image's snapshot of this name; the caller looks at `active` and at the device."""
        return self._one(Snapshot, "check_snapshot_exists", image_id=image_id, snapshot_name=snapshot_name)

    def check_active_snapshots_by_key(self, s3_key: str) -> list[Snapshot]:
        """The active snapshots of the image of a key, oldest first."""
        return self._all(Snapshot, "active_snapshots_by_key", s3_key=s3_key)

    def store_snapshot(
        self,
        image_id: str,
        snapshot_id: str,
        snapshot_name: str,
        device_path: str,
        origin_device_id: str,
        *,
        tx: Transaction | None = None,
    ) -> None:
        """Record an active snapshot, again if it was recorded before.

        Raises CatalogConflict, with nothing changed, if the name is another image's snapshot, or the origin unknown.
        """
        with self._writing(tx) as session:
            _store_snapshot(session, image_id, snapshot_id, snapshot_name, device_path, origin_device_id)

    def register_snapshot(
        self,
        image_id: str,
        snapshot_id: str,
        snapshot_name: str,
        device_path: str,
        origin_device_id: str,
        *,
        tx: Transaction | None = None,
    ) -> None:
        """Record an active snapshot and its image as active, in one transaction."""
        with self._writing(tx) as session:
            _store_snapshot(session, image_id, snapshot_id, snapshot_name, device_path, origin_device_id)
            session.run("update_image_activation_status", image_id=image_id, status="active")

    def get_snapshot_by_id(self, snapshot_id: str) -> Snapshot | None:
        """One snapshot."""
        return self._one(Snapshot, "snapshot_by_id", snapshot_id=snapshot_id)

    def get_snapshot_by_name(self, snapshot_name: str) -> Snapshot | None:
        """The snapshot of this name, whatever image it is of."""
        return self._one(Snapshot, "snapshot_by_name", snapshot_name=snapshot_name)

    def set_snapshot_path(self, snapshot_name: str, path: str) -> None:
        """Where the snapshot is after the state was moved."""
        with self._writing(None) as session:
            session.run("set_snapshot_path", snapshot_name=snapshot_name, path=path)

    def settle_activations(self, *, tx: Transaction | None = None) -> list[str]:
        """Set every image active that has an active snapshot, and inactive that has none; which were changed."""
        with self._writing(tx) as session:
            return sorted(image_id for (image_id,) in session.run("settle_all_activations"))

    def get_snapshots_by_image_id(self, image_id: str) -> list[Snapshot]:
        """All snapshots of an image, oldest first."""
        return self._all(Snapshot, "snapshots_by_image_id", image_id=image_id)

    def deactivate_snapshot(self, snapshot_id: str, *, tx: Transaction | None = None) -> None:
        """Mark a snapshot as inactive, and its image too if it was the last active one."""
        with self._writing(tx) as session:
            for (image_id,) in session.run("deactivate_snapshot", snapshot_id=snapshot_id):
                session.run("settle_activation", image_id=image_id)

    def delete_snapshot(self, snapshot_id: str, *, tx: Transaction | None = None) -> None:
        """Forget a snapshot; its image becomes inactive if it was the last active one."""
        with self._writing(tx) as session:
            for (image_id,) in session.run("delete_snapshot", snapshot_id=snapshot_id):
                session.run("settle_activation", image_id=image_id)

    def list_active_snapshots(self) -> list[Snapshot]:
        """All active snapshots, oldest first."""
        return self._all(Snapshot, "list_active_snapshots")

    def list_snapshots(self) -> list[Snapshot]:
        """All snapshots, inactive ones too, oldest first."""
        return self._all(Snapshot, "list_snapshots")

    # --- reserved ids ---

    def reserve_device_id(
        self,
        image_id: str,
        candidates: Iterable[int],
        *,
        beside: str = "",
        avoiding: Collection[int] = (),
        tx: Transaction | None = None,
    ) -> int:
        """Take the first free candidate for the image's device, or what it has already: before the device is made.

        `beside`: what tells a device that is to replace the image's from that one. `avoiding`: ids under which
        something else was found; a reservation of one of them is exchanged.
        """
        with self._writing(tx) as session:
            return _reserve(session, image_id, BESIDE + beside if beside else "", candidates, avoiding)

    def replace_device_id(self, image_id: str, device_id: int, beside: str, *, tx: Transaction | None = None) -> None:
        """The device that was made beside the image's has taken its place; the id of the old one waits for `gc`."""
        with self._writing(tx) as session:
            for (old_id,) in session.run("reserved_id", image_id=image_id, snapshot_name=""):
                if old_id != device_id:
                    names = {"old_name": "", "new_name": f"{REPLACED}{old_id}"}
                    session.run("rename_reservation", image_id=image_id, except_id=device_id, **names)
            names = {"old_name": BESIDE + beside, "new_name": ""}
            session.run("rename_reservation", image_id=image_id, except_id=-1, **names)

    def reserve_snapshot_id(
        self,
        image_id: str,
        snapshot_name: str,
        candidates: Iterable[int],
        *,
        avoiding: Collection[int] = (),
        tx: Transaction | None = None,
    ) -> int:
        """Take the first free candidate for a snapshot, or what it has already. Ids are shared with devices."""
        if not snapshot_name:
            raise ImageError("a snapshot needs a name")
        with self._writing(tx) as session:
            return _reserve(session, image_id, snapshot_name, candidates, avoiding)

    def release_reservation(self, image_id: str, device_id: int, *, tx: Transaction | None = None) -> None:
        """Give an id back: its device is gone. Only the image that has reserved it can."""
        with self._writing(tx) as session:
            session.run("release_reservation", image_id=image_id, device_id=device_id)

    def release_snapshot_id(self, image_id: str, snapshot_name: str, *, tx: Transaction | None = None) -> None:
        """Give back the id of a snapshot that is gone."""
        with self._writing(tx) as session:
            for (device_id,) in session.run("reserved_id", image_id=image_id, snapshot_name=snapshot_name):
                session.run("release_reservation", image_id=image_id, device_id=device_id)

    def release_reservations(self, image_id: str, *, tx: Transaction | None = None) -> None:
        """Give back every id of an image and its snapshots: all of it is gone."""
        with self._writing(tx) as session:
            session.run("release_reservations", image_id=image_id)

    def list_reservations(self) -> list[Reservation]:
        """Every id that is reserved."""
        return self._all(Reservation, "list_reservations")


def _refuse_orphaning(session: CatalogSession, image_id: str, device_id: str) -> None:
    for snapshot in session.select(Snapshot, "snapshots_by_image_id", image_id=image_id):
        if snapshot.origin_device_id != device_id:
            raise CatalogConflict(
                f"image {image_id} cannot move to device {device_id}: "
                f"snapshot {snapshot.snapshot_name} comes from device {snapshot.origin_device_id}",
                hint="delete that snapshot first",
            )


def _store_snapshot(
    session: CatalogSession,
    image_id: str,
    snapshot_id: str,
    snapshot_name: str,
    device_path: str,
    origin_device_id: str,
) -> None:
    origin = session.select(UnpackedImage, "unpacked_image_by_device_id", device_id=origin_device_id)
    if origin and origin[0].image_id != image_id:
        raise CatalogConflict(
            f"device {origin_device_id} holds image {origin[0].image_id}, so {snapshot_name} is none of {image_id}",
            hint="look at the image's own device: holdfast images",
        )
    stored = session.run(
        "store_snapshot",
        image_id=image_id,
        snapshot_id=snapshot_id,
        snapshot_name=snapshot_name,
        device_path=device_path,
        origin_device_id=origin_device_id,
    )
    if not stored:
        owner = session.select(Snapshot, "snapshot_by_name", snapshot_name=snapshot_name)
        raise CatalogConflict(
            f"snapshot {snapshot_name} belongs to image {owner[0].image_id if owner else '?'}, not to {image_id}",
            hint="choose another snapshot name",
        )


def _refuse_taken_name(session: CatalogSession, image_id: str, snapshot_name: str) -> None:
    for row in session.select(Reservation, "list_reservations") if snapshot_name else ():
        if row.snapshot_name == snapshot_name and row.image_id != image_id:
            raise CatalogConflict(
                f"snapshot {snapshot_name} belongs to image {row.image_id}, not to {image_id}",
                hint="choose another snapshot name",
            )


def _reserve(
    session: CatalogSession, image_id: str, snapshot_name: str, candidates: Iterable[int], avoiding: Collection[int]
) -> int:
    session.run("lock_reservations")
    whose = {"image_id": image_id, "snapshot_name": snapshot_name}
    _refuse_taken_name(session, image_id, snapshot_name)
    for (device_id,) in session.run("reserved_id", **whose):
        if device_id not in avoiding:
            return int(device_id)
        session.run("release_reservation", image_id=image_id, device_id=device_id)
    for (device_id,) in session.run("recorded_device_id", **whose):
        if device_id not in avoiding:
            session.run("reserve_id", device_id=device_id, **whose)
            return int(device_id)
    for device_id in candidates:
        if device_id not in avoiding and not session.run("is_device_id_taken", device_id=device_id):
            session.run("reserve_id", device_id=device_id, **whose)
            return device_id
    raise NoSpace(
        f"no device id is free for {snapshot_name or image_id}: all candidates are taken",
        hint="remove images that are not needed: holdfast gc",
    )
