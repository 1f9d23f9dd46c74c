"""Where thin devices are mounted: below their records, a point for each process, known by it when it is dead."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast_images.devices.commands import log
from holdfast_images.devices.mounting import Mount, mounts, unmount_point
from holdfast_images.devices.process_marks import is_alive, this_process
from holdfast_images.devices.registry import Registry, checked
from holdfast_images.errors import DeviceBusy

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

    def unmount(self, name: str, *, dead_only: bool = False) -> None:
        """Undo our mounts of a device, or those of dead processes; those that a process works in stay."""
        _unmount(self.mounts_of(name), dead_only=dead_only)

    def unmount_dead(self) -> None:
        """Undo what dead processes have mounted."""
        _unmount(self.all_mounts(), dead_only=True)

    def refuse_mounted(self, name: str) -> None:
        """Raise DeviceBusy if it is mounted by one of us."""
        if left := self.mounts_of(name):
            raise DeviceBusy(f"{name} is mounted on {left[-1].point}", hint="unmount it; it will be tried again")


def is_live(point: str) -> bool:
    """Does the process live that has mounted something here?"""
    return is_alive(os.path.basename(point))


def _unmount(ours: Sequence[Mount], *, dead_only: bool) -> None:
    """The newest first. What stays is found by the next look."""
    for mount in reversed(ours):
        if dead_only and is_live(mount.point):
            continue
        try:
            unmount_point(mount.point)
            os.rmdir(mount.point)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY):
                raise
            log.info("%s stays mounted: %s", mount.point, error.strerror)
