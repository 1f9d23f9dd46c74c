"""What the steps of all flows work with. Nothing of the engine: a finished image is found without it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast_images.archive.entry import Limits
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices.protocol import Device, Devices
from holdfast_images.flows.messages import Judging
from holdfast_images.model import ext4_uuid
from holdfast_images.source.settings import SourceSettings

WARNINGS_KEPT = 20
"""In the response of a job; how many there are, `holdfast inspect` tells."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that the two long steps may take."""

    download: float = 300.0
    extract: float = 1800.0


class Workshop(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that steps are done with. `images` is the directory of the downloaded files."""

    catalog: Catalog
    devices: Devices
    images: Path
    limits: Limits = Limits()
    source: SourceSettings = SourceSettings()
    timeouts: Timeouts = Timeouts()
    device_size: int = 10 << 30
    connections: int = 2
    host: str = ""
    """On a store that hosts share, the one whose devices these are: part of the names of the flows."""

    def flow_name(self, name: str) -> str:
        """The name of a flow; with a host in it only that host's workers run its jobs."""
        return f"{name}.{self.host}" if self.host else name

    def queue_name(self, name: str) -> str:
        """Limits are a host's, because its disks and network are."""
        return self.flow_name(name)

    def file_of(self, image_id: str) -> Path:
        """Where the file of an image is."""
        return self.images / f"{image_id}.tar"


def uuid_of(image_id: str, checksum: str, judging: Judging) -> str:
    """Of the file system that holds this content of this image: other content has another."""
    return ext4_uuid(f"{image_id}@{checksum}{'+setuid' if judging.keep_setuid else ''}")


def device_of(device_id: str, name: str, uuid: str, size: int = 0) -> Device:
    """The device that catalog and backend both mean."""
    return Device(id=int(device_id), name=name, uuid=uuid, size=size)
