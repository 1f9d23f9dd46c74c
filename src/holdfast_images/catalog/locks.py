"""Exclusive locks on images: one downloads, unpacks or removes it, the others wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast_images.catalog.database import CatalogOperations
from holdfast_images.catalog.rows import ImageLock
from holdfast_images.errors import ImageBusy

if TYPE_CHECKING:
    from holdfast import Transaction

STALE_SECONDS = 3600


class LockTables(CatalogOperations):
    """`image_locks`. A lock outlives its owner: whether the owner lives is asked elsewhere, then it is taken over."""

    def acquire_image_lock(self, image_id: str, locked_by: str, *, tx: Transaction | None = None) -> None:
        """Take the lock; its owner may take it again. Raises ImageBusy, naming holder and age, if another has it."""
        with self._writing(tx) as session:
            if session.run("acquire_image_lock", image_id=image_id, locked_by=locked_by):
                return
            held = session.select(ImageLock, "image_lock", image_id=image_id)
        if held and held[0].locked_by == locked_by:
            return
        holder = f"locked by {held[0].locked_by} for {held[0].age} s" if held else "being locked by another"
        raise ImageBusy(
            f"image {image_id} is {holder}", hint="it will be tried again; see who it is: holdfast locks list"
        )

    def take_over_image_lock(
        self, image_id: str, from_owner: str, to_owner: str, *, tx: Transaction | None = None
    ) -> bool:
        """Pass the lock on from an owner that is known to be dead; False if it is not that owner's any more."""
        with self._writing(tx) as session:
            return bool(
                session.run("take_over_image_lock", image_id=image_id, from_owner=from_owner, to_owner=to_owner)
            )

    def release_image_lock(self, image_id: str, locked_by: str | None = None, *, tx: Transaction | None = None) -> bool:
        """Give the lock up if it is `locked_by`'s; without an owner, whoever has it. False if nothing was held."""
        with self._writing(tx) as session:
            return bool(session.run("release_image_lock", image_id=image_id, locked_by=locked_by))

    def is_image_locked(self, image_id: str) -> bool:
        """Does anybody hold it?"""
        return self.get_image_lock(image_id) is not None

    def get_image_lock(self, image_id: str) -> ImageLock | None:
        """Who holds it, and since when."""
        return self._one(ImageLock, "image_lock", image_id=image_id)

    def list_image_locks(self) -> list[ImageLock]:
        """All locks, newest first."""
        return self._all(ImageLock, "list_image_locks")

    def find_stale_image_locks(self, older_than: int = STALE_SECONDS) -> list[ImageLock]:
        """Locks held for more than so many seconds, oldest first."""
        return self._all(ImageLock, "stale_image_locks", seconds=older_than)

    def remove_stale_image_locks(
        self, older_than: int = STALE_SECONDS, *, tx: Transaction | None = None
    ) -> list[ImageLock]:
        """Remove them; an operator's doing, because an old lock may still be somebody's."""
        with self._writing(tx) as session:
            return session.select(ImageLock, "remove_stale_image_locks", seconds=older_than)
