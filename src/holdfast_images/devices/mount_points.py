"""Where thin devices are mounted: below their records, a point for each process, known by it when it is dead."""

from __future__ import annotations

import os
import re
from pathlib import Path

from holdfast_images.devices.mounting import Mount, mounts
from holdfast_images.devices.process_marks import is_alive, this_process
from holdfast_images.devices.registry import Registry, checked

MOUNTS = "mounts"


class MountedRegistry(Registry):
    """Records with mount points in them."""

    def point_of(self, name: str) -> Path:
        """Where this process mounts a device."""
        return self.home / checked(name) / MOUNTS / this_process()

    def mounts_of(self, name: str) -> list[Mount]:
        """Our mounts of a device, every process's, the newest last."""
        return [mount for mount in self.all_mounts() if mount.point.startswith(f"{self.home}/{name}/")]

    def all_mounts(self) -> list[Mount]:
        """Our mounts of all devices, the newest last."""
        return [mount for mount in mounts() if re.match(rf"{re.escape(str(self.home))}/[^/]+/{MOUNTS}/", mount.point)]


def is_live(point: str) -> bool:
    """Does the process live that has mounted something here?"""
    return is_alive(os.path.basename(point))
