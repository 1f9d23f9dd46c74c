"""Which database is meant: the engine's, by the engine's own rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.tables import database_path, is_postgres
from holdfast_images.catalog.devices import DeviceTables
from holdfast_images.catalog.fleet import FleetTables
from holdfast_images.catalog.tables import (
    CatalogOperations,
    CatalogSession,
    HostClaim,
    Image,
    ImageLock,
    ImageRefusal,
    ImageStatus,
    Reservation,
    Row,
    RuleViolation,
    Snapshot,
    UnpackedImage,
    Verification,
    open_tables,
)
from holdfast_images.errors import CatalogConflict, ImageBusy, ImageError, ImageRefused
from holdfast_images.model import Fingerprint

if TYPE_CHECKING:
    from holdfast import Transaction


__all__ = ["database_path", "is_postgres"]


# --- Which machine has the name of a host, in a store that hosts share ----------------------------------


class HostTables(CatalogOperations):
    """One row for each name that a machine has used."""

    def get_host(self) -> HostClaim | None:
        """Who has the name of this catalog's host; None if nobody has used it yet."""
        return self._one(HostClaim, "get_host")

    def claim_host(self, claim: HostClaim) -> HostClaim:
        """Take the name, if nobody has it; who has it now."""
        return self._written("claim_host", claim)

    def adopt_host(self, claim: HostClaim) -> HostClaim:
        """Take the name, whoever has it. An operator's decision: what the other has made is then in nobody's rows."""
        return self._written("adopt_host", claim)

    def _written(self, statement: str, claim: HostClaim) -> HostClaim:
        with self._writing(None) as session:
            session.run(statement, machine=claim.machine, data_id=claim.data_id, directory=claim.directory)
            return session.select(HostClaim, "get_host")[0]


# --- Exclusive locks on images: one downloads, unpacks or removes it, the others wait -------------------

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


# --- Operations on images: what is downloaded, and what was verified or refused -------------------------


class ImageTables(CatalogOperations):
    """`images`, `image_verifications`, `image_refusals`."""

    def check_image_downloaded(self, s3_key: str) -> Image | None:
        """The image of a key, if its download is completed."""
        return self._one(Image, "check_image_downloaded", s3_key=s3_key)

    def store_image_metadata(
        self,
        image_id: str,
        s3_key: str,
        local_path: str,
        checksum: str,
        size_bytes: int,
        *,
        tx: Transaction | None = None,
    ) -> None:
        """Record a completed download, again if it was recorded before.

        Raises CatalogConflict, with nothing changed, if the key is another image's or the image has another key.
        """
        with self._writing(tx) as session:
            session.run("forget_failed_image", image_id=image_id, s3_key=s3_key)
            _refuse_other_key(session, image_id, s3_key)
            stored = session.run(
                "store_image_metadata",
                image_id=image_id,
                s3_key=s3_key,
                local_path=local_path,
                checksum=checksum,
                size_bytes=size_bytes,
            )
            if not stored:
                owner = session.select(Image, "image_by_key", s3_key=s3_key)
                raise CatalogConflict(
                    f"key {s3_key!r} is recorded as image {owner[0].image_id if owner else '?'}, not {image_id}",
                    hint="use that image id, or remove that image first",
                )
            session.run("delete_refusals", s3_key=s3_key)

    def get_image_by_id(self, image_id: str) -> Image | None:
        """One image, whatever its status."""
        return self._one(Image, "image_by_id", image_id=image_id)

    def update_image_activation_status(self, image_id: str, status: str, *, tx: Transaction | None = None) -> None:
        """Set `inactive`, `active` or `failed`. Raises ImageError if there is no such image."""
        with self._writing(tx) as session:
            if not session.run("update_image_activation_status", image_id=image_id, status=status):
                raise ImageError(f"image {image_id} is not in the catalog", hint="see which are: holdfast images")

    def list_images(self, download_status: str = "") -> list[Image]:
        """All images, or those of one status, oldest first."""
        return self._all(Image, "list_images", status=download_status)

    def counts_here(self) -> dict[tuple[str, str], int]:
        """How many rows this host has of each kind and state."""
        with self._reading() as session:
            return {(kind, state): count for kind, state, count in session.run("counts_here")}

    def delete_image(self, image_id: str, *, tx: Transaction | None = None) -> None:
        """Forget an image and what was unpacked of it. Raises CatalogConflict while snapshots of it are recorded."""
        with self._writing(tx) as session:
            # Deleted by itself, so that the RESTRICT of snapshots speaks before the CASCADE of images.
            session.run("delete_unpacked_image", image_id=image_id)
            session.run("delete_image", image_id=image_id)

    def get_image_status(self, s3_key: str) -> list[ImageStatus]:
        """Download, activation, device and snapshots of a key; a line per snapshot, one if there is none."""
        return self._all(ImageStatus, "image_status", s3_key=s3_key)

    # --- verdicts ---

    def store_verification(
        self,
        image_id: str,
        checksum: str,
        fingerprint: Fingerprint,
        *,
        policy: str,
        warnings: str = "[]",
        origin: str = "",
        etag: str | None = None,
        tx: Transaction | None = None,
    ) -> None:
        """Pin the policy and the warnings (JSON) of an image, its origin, and how its verified file is recognised."""
        verdict = {"policy": policy, "warnings": warnings, "origin": origin, "etag": etag}
        with self._writing(tx) as session:
            session.run("store_verification", image_id=image_id, checksum=checksum, **_fields(fingerprint), **verdict)

    def note_fingerprint(self, image_id: str, fingerprint: Fingerprint) -> None:
        """The recorded content was read again, in the file that looks like this now."""
        with self._writing(None) as session:
            session.run("note_fingerprint", image_id=image_id, **_fields(fingerprint))

    def note_warnings(self, image_id: str, checksum: str, warnings: str, *, tx: Transaction | None = None) -> None:
        """What is to be told of this content, as JSON, if it is the recorded one."""
        with self._writing(tx) as session:
            session.run("note_warnings", image_id=image_id, checksum=checksum, warnings=warnings)

    def note_source(self, image_id: str, *, origin: str, etag: str | None) -> None:
        """The source was asked just now, and has what was verified."""
        with self._writing(None) as session:
            session.run("note_source", image_id=image_id, origin=origin, etag=etag)

    def get_verification(self, image_id: str) -> Verification | None:
        """What is known of the content that the image has now; None if that was never verified."""
        return self._one(Verification, "verification", image_id=image_id)

    # --- new content of an image that has a device ---

    def store_update(
        self,
        image_id: str,
        checksum: str,
        fingerprint: Fingerprint,
        *,
        policy: str,
        warnings: str = "[]",
        origin: str = "",
        etag: str | None = None,
        tx: Transaction | None = None,
    ) -> None:
        """Record new content, verified, that the image is to have when its device is ready."""
        verdict = {"policy": policy, "warnings": warnings, "origin": origin, "etag": etag}
        with self._writing(tx) as session:
            session.run("store_update", image_id=image_id, checksum=checksum, **_fields(fingerprint), **verdict)

    def get_update(self, image_id: str) -> Verification | None:
        """The new content that is not in use yet."""
        return self._one(Verification, "image_update", image_id=image_id)

    def list_updates(self) -> list[Verification]:
        """All new content that is not in use yet, oldest first."""
        return self._all(Verification, "list_updates")

    def use_update(self, image_id: str, local_path: str, *, tx: Transaction | None = None) -> None:
        """From now on the image is its new content; nothing happens if there is none."""
        with self._writing(tx) as session:
            for new in session.select(Verification, "image_update", image_id=image_id):
                content = {"checksum": new.checksum, "size_bytes": new.size_bytes}
                session.run("set_content", image_id=image_id, local_path=local_path, **content)
                session.run(
                    "store_verification",
                    image_id=image_id,
                    checksum=new.checksum,
                    policy=new.policy,
                    warnings=new.warnings,
                    origin=new.origin,
                    etag=new.etag,
                    **_fields(new.fingerprint),
                )
                session.run("delete_update", image_id=image_id, checksum="")

    def drop_update(self, image_id: str, checksum: str = "", *, tx: Transaction | None = None) -> None:
        """Forget new content: that of this checksum, or whatever there is."""
        with self._writing(tx) as session:
            session.run("delete_update", image_id=image_id, checksum=checksum)

    def mark_completed(self, image_id: str) -> None:
        """The file of an image was read, and is what is recorded."""
        with self._writing(None) as session:
            session.run("mark_completed", image_id=image_id)

    def set_local_path(self, image_id: str, path: str) -> None:
        """Where the file is after the state was moved."""
        with self._writing(None) as session:
            session.run("set_local_path", image_id=image_id, path=path)

    def free_key(self, image_id: str, keys: Sequence[str], *, tx: Transaction | None = None) -> str:
        """The key an image is recorded under, or the first of these that no other image has; the last if all are."""
        with self._writing(tx) as session:
            own = session.select(Image, "image_by_id", image_id=image_id)
            if own and own[0].s3_key in keys:
                return own[0].s3_key
            for key in keys:
                owner = session.select(Image, "image_by_key", s3_key=key)
                if not owner or owner[0].image_id == image_id:
                    return key
        return keys[-1]

    # --- refusals ---

    def mark_failed(
        self, image_id: str, s3_key: str, *, local_path: str = "", size_bytes: int = 0, tx: Transaction | None = None
    ) -> None:
        """What was downloaded could not be taken: the image is failed, unless an earlier download of it is good."""
        with self._writing(tx) as session:
            session.run(
                "mark_image_failed", image_id=image_id, s3_key=s3_key, local_path=local_path, size_bytes=size_bytes
            )

    def get_image_by_key(self, s3_key: str) -> Image | None:
        """Whatever is recorded under a key."""
        return self._one(Image, "image_by_key", s3_key=s3_key)

    def store_refusal(
        self,
        image_id: str,
        s3_key: str,
        refused: ImageRefused,
        *,
        policy: str,
        etag: str | None = None,
        checksum: str | None = None,
        local_path: str = "",
        size_bytes: int = 0,
        tx: Transaction | None = None,
    ) -> None:
        """Remember why content was refused, and its image as failed unless an earlier download of it is good."""
        with self._writing(tx) as session:
            session.run(
                "mark_image_failed", image_id=image_id, s3_key=s3_key, local_path=local_path, size_bytes=size_bytes
            )
            session.run(
                "store_refusal",
                s3_key=s3_key,
                policy=policy,
                etag=etag,
                checksum=checksum,
                code=refused.code,
                detail=refused.detail,
                entry=refused.entry,
                byte_offset=refused.offset,
                hint=refused.hint,
            )

    def find_refusal(
        self, s3_key: str, *, policy: str, etag: str | None = None, checksum: str | None = None
    ) -> ImageRefused | None:
        """The very error with which this content was refused under this policy before."""
        found = self._one(ImageRefusal, "refusal", s3_key=s3_key, policy=policy, etag=etag, checksum=checksum)
        if found is None:
            return None
        return ImageRefused(found.code, found.detail, entry=found.entry, offset=found.byte_offset, hint=found.hint)

    def list_refusals(self) -> list[ImageRefusal]:
        """Every refusal that is remembered, newest first."""
        return self._all(ImageRefusal, "list_refusals")

    def forget_refusal(self, image_id: str, *, policy: str, checksum: str, tx: Transaction | None = None) -> None:
        """This content of the image was taken after all."""
        with self._writing(tx) as session:
            session.run("forget_refusal", image_id=image_id, policy=policy, checksum=checksum)

    def forget_refusals(self, s3_key: str, *, tx: Transaction | None = None) -> None:
        """Let the next run judge the key afresh."""
        with self._writing(tx) as session:
            session.run("delete_refusals", s3_key=s3_key)


def _fields(fingerprint: Fingerprint) -> dict[str, int]:
    return {
        "size_bytes": fingerprint.size,
        "inode": fingerprint.inode,
        "mtime_ns": fingerprint.mtime_ns,
        "ctime_ns": fingerprint.ctime_ns,
    }


def _refuse_other_key(session: CatalogSession, image_id: str, s3_key: str) -> None:
    # Two writers may both pass here: then the unique key of the second refuses it, less eloquently.
    known = session.select(Image, "image_by_id", image_id=image_id)
    if known and known[0].s3_key != s3_key:
        raise CatalogConflict(
            f"image {image_id} is recorded under the key {known[0].s3_key!r}, not {s3_key!r}",
            hint="choose another image id, or remove that image first",
        )


# --- The catalog: what is recorded of images, in the database that the engine uses ----------------------

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
    ("image_refusals", ImageRefusal, "list_refusals"),
    ("image_updates", Verification, "list_updates"),
    ("device_reservations", Reservation, "list_reservations"),
)


class Catalog(ImageTables, DeviceTables, LockTables, HostTables, FleetTables):
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

    def violations(self) -> list[RuleViolation]:
        """Every row that breaks one of the four rules between downloads, devices and snapshots, in one look."""
        with self._reading() as session:
            return [
                RuleViolation(rule, image_id, f"image {image_id} {message.format(*facts)}")
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
