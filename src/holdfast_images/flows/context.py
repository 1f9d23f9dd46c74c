"""What the steps of all flows work with. Nothing of the engine: a finished image is found without it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast_images.archive.entry import Limits
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.tables import Image
from holdfast_images.devices.protocol import Device, Devices
from holdfast_images.flows.schemas import Judging
from holdfast_images.model import device_name, device_number, ext4_uuid, file_name, image_of_file, recorded_file_name
from holdfast_images.source.location import SourceSettings

WARNINGS_KEPT = 20
"""In the response of a job and in the catalog; how many there are, `holdfast inspect` tells."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the two long steps may take."""

    download: float = 300.0
    extract: float = 1800.0


class FlowContext:
    """The parts that steps are done with. `images` is the directory of the downloaded files.

    `host`: on a store that hosts share, the one whose devices these are; it is part of the names of the flows.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        devices: Devices,
        images: Path,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        host: str = "",
        device_size: int = 10 << 30,
    ) -> None:
        self.catalog = catalog
        self.devices = devices
        self.images = images
        self.limits = limits
        self.host = host
        self.device_size = device_size
        self.source = SourceSettings()
        self.timeouts = Timeouts()
        self.connections = 2

    def flow_name(self, name: str) -> str:
        """The name of a flow; with a host in it only that host's workers run its jobs."""
        return f"{name}.{self.host}" if self.host else name

    def queue_name(self, name: str) -> str:
        """Limits are a host's, because its disks and network are."""
        return self.flow_name(name)

    def file_of(self, image_id: str, checksum: str = "") -> Path:
        """Where this content of an image is, or is to be: derived, so that a moved directory is no other image.

        The first content has the plain name; what comes later lies beside it until it takes its place. Without a
        checksum it is the recorded content.
        """
        image = self.catalog.get_image_by_id(image_id)
        if image is None or image.download_status != "completed":
            return self.images / file_name(image_id)
        is_recorded = checksum in ("", image.checksum)
        return self.recorded_file(image) if is_recorded else self.images / file_name(image_id, checksum)

    def recorded_file(self, image: Image) -> Path:
        """Where the file of a recorded image is."""
        return self.images / recorded_file_name(image.image_id, image.checksum or "", image.local_path)

    def files_of(self, image_id: str) -> list[Path]:
        """Every file of an image that is there, whichever content it holds."""
        try:
            names = sorted(os.listdir(self.images))
        except FileNotFoundError:
            return []
        return [self.images / name for name in names if image_of_file(name) == image_id]


def uuid_of(image_id: str, checksum: str, judging: Judging) -> str:
    """Of the file system that holds this content of this image: other content has another."""
    return ext4_uuid(f"{image_id}@{checksum}{'+setuid' if judging.keep_setuid else ''}")


def uuids_of(image_id: str, checksum: str) -> tuple[str, str]:
    """Those that a file system with this content may have, by whatever rules it was unpacked."""
    return tuple(uuid_of(image_id, checksum, Judging(keep_setuid=keep)) for keep in (False, True))  # type: ignore[return-value]


def recorded_device(device_id: str, name: str, uuid: str, size: int = 0) -> Device | None:
    """The device that a row means; None if its id and name cannot be those of a device."""
    number = device_number(device_id)
    if number is None or name != device_name(number):
        return None
    return Device(id=number, name=name, uuid=uuid, size=size)


def device_of(device_id: str, name: str, uuid: str, size: int = 0) -> Device:
    """The device that catalog and backend both mean."""
    return Device(id=int(device_id), name=name, uuid=uuid, size=size)
