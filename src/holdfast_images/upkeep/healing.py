"""Rows that say what is not so: put right where files, devices and the other rows tell how it is.

`repair` and `gc` do it, and the flows for the image they are about. What cannot be told is left to a person.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from holdfast_images.catalog.rows import Image, UnpackedImage, Violation
from holdfast_images.errors import ImageError
from holdfast_images.flows.workshop import Workshop, recorded_device, uuids_of
from holdfast_images.host import LocalHost
from holdfast_images.source.hashing import hash_file


class Wrong(msgspec.Struct, frozen=True, kw_only=True):
    """One row that is wrong, and what puts it right; None if only a person, or processing the image, can."""

    subject: str
    why: str
    mend: Callable[[], object] | None


def wrong_rows(shop: Workshop) -> Iterator[Wrong]:
    """Every row that breaks a rule of the catalog or names a path where nothing of this state is. Changes nothing."""
    for violation in shop.catalog.violations():
        yield Wrong(
            subject=f"image {violation.image_id}",
            why=f"rule {violation.rule}: {violation.message}",
            mend=_remedy(shop, violation),
        )
    yield from _moved(shop)


class MendedRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row that was wrong, and whether it is right now."""

    subject: str
    why: str
    is_done: bool


def mend_all(host: LocalHost, *, dry_run: bool) -> list[MendedRow]:
    """Put every row right that can be, or only say which are wrong. Crash: each is one transaction."""
    host.check_owner()
    if not dry_run:
        host.claim()
    mended = []
    for wrong in list(wrong_rows(host)):
        is_done = not dry_run and wrong.mend is not None
        if wrong.mend is not None and is_done:
            wrong.mend()
        mended.append(MendedRow(subject=wrong.subject, why=wrong.why, is_done=is_done))
    return mended


def mend(shop: Workshop, subject: str, why: str) -> bool:
    """Put one row right, if it is still wrong. Crash: each is one transaction."""
    for wrong in wrong_rows(shop):
        if (wrong.subject, wrong.why) == (subject, why) and wrong.mend is not None:
            wrong.mend()
            return True
    return False


def _moved(shop: Workshop) -> Iterator[Wrong]:
    catalog = shop.catalog
    for image in catalog.list_images("completed"):
        path = str(shop.recorded_file(image))
        if image.local_path != path:
            yield _elsewhere(f"image {image.image_id}", path, partial(catalog.set_local_path, image.image_id, path))
    for row in catalog.list_unpacked_images():
        if recorded_device(row.device_id, row.device_name, "") is None:
            continue  # verify-system tells of it, and processing the image forgets it
        path = str(shop.devices.path_of(row.device_name))
        if row.device_path != path:
            yield _elsewhere(f"image {row.image_id}", path, partial(catalog.set_device_path, row.image_id, path))
    for snapshot in catalog.list_snapshots():
        name, path = snapshot.snapshot_name, str(shop.devices.path_of(snapshot.snapshot_name))
        if snapshot.device_path != path:
            yield _elsewhere(f"snapshot {name}", path, partial(catalog.set_snapshot_path, name, path))


def _elsewhere(subject: str, path: str, mend: Callable[[], object]) -> Wrong:
    return Wrong(subject=subject, why=f"it is at {path}, and another path is recorded", mend=mend)


def _remedy(shop: Workshop, violation: Violation) -> Callable[[], object] | None:
    catalog = shop.catalog
    if violation.rule == 4:
        return catalog.settle_activations
    image = catalog.get_image_by_id(violation.image_id)
    row = catalog.get_unpacked_image_by_id(violation.image_id)
    snapshots = catalog.get_snapshots_by_image_id(violation.image_id)
    if row is None or (image is None and snapshots):
        return None
    if image is not None and _is_whole(shop, image, row):
        return partial(_record_as_whole, shop, image)
    # Nothing depends on the row, so it can be forgotten: gc collects the device, processing the image makes it again.
    return None if snapshots else partial(catalog.delete_unpacked_image, violation.image_id)


def _is_whole(shop: Workshop, image: Image, row: UnpackedImage) -> bool:
    """Are the file and the device of the image what its row says, by every byte of them?"""
    found = shop.devices.look(row.device_name)
    if found is None or found.uuid not in uuids_of(image.image_id, image.checksum or ""):
        return False
    device = recorded_device(row.device_id, row.device_name, found.uuid or "", found.size)
    if device is None:
        return False
    try:
        shop.devices.verify(device, deep=True)
        return hash_file(shop.recorded_file(image)) == image.checksum
    except (ImageError, OSError):
        return False


def _record_as_whole(shop: Workshop, image: Image) -> None:
    shop.catalog.mark_completed(image.image_id)
    shop.catalog.mark_unpacked_verified(image.image_id)
