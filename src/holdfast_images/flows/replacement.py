"""New content of an image in the place of the old: when it cannot be, what it leaves, and what is left of the old.

File, row and device change in the transaction of update-db. Before it the new ones lie beside the old, after it the
old ones are left over: each is known by its name or its reserved id, and is removed here or by gc.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast import Run
from holdfast_images.catalog.devices import REPLACED
from holdfast_images.catalog.rows import Image, Reservation
from holdfast_images.errors import CatalogConflict, ImageError
from holdfast_images.flows.steering import lock_image, unlock_image
from holdfast_images.flows.workshop import Workshop, device_of
from holdfast_images.model import device_name


def refuse_update(shop: Workshop, image: Image, checksum: str) -> None:
    """Raise CatalogConflict if the image cannot have other content: snapshots of what it has are recorded."""
    names = [row.snapshot_name for row in shop.catalog.get_snapshots_by_image_id(image.image_id)]
    if names:
        raise CatalogConflict(
            f"image {image.image_id} stays as it is: there are snapshots of its content {(image.checksum or '')[:12]}, "
            f"and {checksum[:12]} is other content: {', '.join(names)}",
            hint="process it under another --image-id, or remove the snapshots first: "
            f"holdfast snapshot deactivate {names[0]} --delete",
        )


def discard_update(shop: Workshop, image_id: str, checksum: str) -> None:
    """New content that will not come into use: its file and its row go, and the image stays what it is."""
    staged = shop.catalog.get_update(image_id)
    if staged is not None and staged.checksum == checksum:
        shop.file_of(image_id, checksum).unlink(missing_ok=True)
        shop.catalog.drop_update(image_id, checksum)


def remove_replaced(shop: Workshop, run: Run[Any, Any], image_id: str) -> None:
    """Remove the files and devices whose place others have taken. What is in use is left to gc."""
    if not reserved_devices(shop, image_id, REPLACED):
        return
    lock_image(shop, run, image_id)
    try:
        with run.effect("remove-replaced"):
            for path in _replaced_files(shop, image_id):
                path.unlink(missing_ok=True)
            for reservation in reserved_devices(shop, image_id, REPLACED):
                delete_device(shop, reservation.device_id)
                shop.catalog.release_reservation(image_id, reservation.device_id)
    except (ImageError, OSError) as error:
        run.log.warning("the former content of image %s could not be removed, gc will: %s", image_id, error)
    finally:
        unlock_image(shop, run, image_id)


def reserved_devices(shop: Workshop, image_id: str, prefix: str = "/") -> list[Reservation]:
    """The ids of devices that lie beside an image's own: those that are to replace one, those that were replaced."""
    rows = shop.catalog.list_reservations()
    return [row for row in rows if row.image_id == image_id and row.snapshot_name.startswith(prefix)]


def delete_device(shop: Workshop, device_id: int) -> None:
    """Delete the image's device with this id, whatever content it holds; nothing happens if there is none."""
    name = device_name(device_id)
    found = shop.devices.look(name)
    if found is None or found.id not in (None, device_id):
        return
    device = device_of(str(device_id), name, found.uuid or "", found.size)
    shop.devices.unmount(device)
    shop.devices.deactivate(device)
    shop.devices.delete(device)


def _replaced_files(shop: Workshop, image_id: str) -> list[Path]:
    image = shop.catalog.get_image_by_id(image_id)
    if image is None or image.download_status != "completed":
        return []
    staged = shop.catalog.get_update(image_id)
    kept = [shop.recorded_file(image), *([shop.file_of(image_id, staged.checksum)] if staged else [])]
    return [path for path in shop.files_of(image_id) if path not in kept]
