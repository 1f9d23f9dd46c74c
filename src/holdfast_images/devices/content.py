"""What is in a thin device: its file system, mounted to be written to, finished, and digested."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.devices.identity import Identity, State, not_as_sealed
from holdfast_images.devices.locking import DIRECTORY, is_locked
from holdfast_images.devices.manifest import manifest_of, usage_of
from holdfast_images.devices.mount_points import MountedRegistry
from holdfast_images.devices.mounting import make_private, mount_device
from holdfast_images.devices.protocol import Usage
from holdfast_images.devices.showing import Showing
from holdfast_images.errors import DeviceBusy
from holdfast_images.syncing import sync_block_device, sync_file_system

LOST_AND_FOUND = "lost+found"
DAMAGED = (errno.EBADMSG, errno.EUCLEAN, errno.EINVAL)
"""What ext4 says of checksums and structures that are wrong, and a mount of what is none any more."""


class Content:
    """The file systems in the devices of a registry."""

    def __init__(self, records: MountedRegistry, showing: Showing) -> None:
        self._records = records
        self._showing = showing

    def mount(self, identity: Identity, node: str) -> Path:
        """On a place of this process; nothing happens if it is there."""
        point = self._records.point_of(identity.name)
        if not any(mount.point == str(point) for mount in self._records.mounts_of(identity.name)):
            make_private(self._records.home)
            point.mkdir(mode=0o700, parents=True, exist_ok=True)
            mount_device(node, point, options="noinit_itable")
        if identity.state is State.MADE:
            try:
                (point / LOST_AND_FOUND).rmdir()
            except OSError:
                pass  # removed before, or the image has brought its own, with something in it
        return point

    def finish(self, identity: Identity, node: str) -> tuple[str, Usage]:
        """Everything in it is on disk, and it is unmounted; its digest, and how much it is."""
        point = self.mount(identity, node)
        try:
            if identity.state is State.MADE:
                # e2fsck wants one; the image was given a root without it.
                (point / LOST_AND_FOUND).mkdir(mode=0o700, exist_ok=True)
            with _opened(point.parent) as parent:
                answer = manifest_of(parent, point.name)
            sync_file_system(point)
        finally:
            self._records.unmount(identity.name)
        # Unmounting writes, too; and the pool keeps what it was given in memory until it is told to flush.
        sync_block_device(node)
        return answer

    def digest(self, identity: Identity) -> str:
        """Of every byte in it. Raises NotAsSealed if its file system is too damaged to be read."""
        try:
            with self._visited(identity) as (parent, name):
                return manifest_of(parent, name)[0]
        except OSError as error:
            if error.errno not in DAMAGED:
                raise
            raise not_as_sealed(identity.name) from error

    def usage(self, identity: Identity) -> Usage:
        """How much it is. Reads no file."""
        with self._visited(identity) as (parent, name):
            return usage_of(parent, name)

    @contextmanager
    def _visited(self, identity: Identity) -> Iterator[tuple[int, str]]:
        """In a mount that is there, or in one to look through, which changes nothing."""
        if mounted := self._records.mounts_of(identity.name):
            with _opened(Path(mounted[-1].point).parent) as parent:
                yield parent, os.path.basename(mounted[-1].point)
            return
        with self._showing.looked_through(identity) as place:
            yield place

    def refuse_busy(self, name: str) -> None:
        """Raise DeviceBusy if anybody but this process's own mount is in it."""
        own = str(self._records.point_of(name))
        self._records.unmount(name, dead_only=True)
        for mount in self._records.mounts_of(name):
            with _opened(Path(mount.point).parent) as parent:
                if mount.point != own or is_locked(parent, os.path.basename(mount.point)):
                    raise DeviceBusy(f"a process still works in {name}: {mount.point}", hint="it will be tried again")


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
