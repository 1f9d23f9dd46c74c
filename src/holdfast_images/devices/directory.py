"""Devices as directories: no privileges and no help from the kernel needed. The embedded default.

`<root>/devices/<name>/` holds `identity.json` and `content/`; see `registry` for how it is made and removed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_images.devices.lock import crash_point, is_locked, open_locked, try_lock
from holdfast_images.devices.manifest import manifest_of, remove_tree, usage_of
from holdfast_images.devices.protocol import Device, DeviceKind, Found, Health, PoolHealth, PoolStatus, Usage
from holdfast_images.devices.record import (
    MAKING,
    Identity,
    Registry,
    State,
    checked,
    expected,
    foreign,
    found_of,
    identity_of,
    is_of,
    not_as_sealed,
    read_identity,
    refuse_unsealed,
    write_identity,
)
from holdfast_images.devices.users import refuse_used
from holdfast_images.durable import Flusher, sync_file_system
from holdfast_images.errors import DeviceBusy, NoSpace

if TYPE_CHECKING:
    from holdfast import Finding

DEVICES = "devices"
CONTENT = "content"
PATIENCE = 2.0
LOW_WATER_BYTES = 1 << 30
LOW_WATER_FILES = 10_000
WORTH_TWO = 1000
"""Files of a snapshot from which on a second process is worth its start."""


def content_path(root: Path, name: str) -> Path:
    """Where the content of a device of this name is below a root, whether or not it is there."""
    return Path(os.path.realpath(root / DEVICES)) / checked(name) / CONTENT


class DirectoryDevices:
    """Devices below one directory of a local file system."""

    backend = "directory"

    def __init__(
        self,
        root: str | Path,
        *,
        patience: float = PATIENCE,
        low_water_bytes: int = LOW_WATER_BYTES,
        worth_two: int = WORTH_TWO,
    ) -> None:
        """A snapshot of more files than `worth_two` may be copied by two processes."""
        self._patience = patience
        self._worth_two = worth_two
        self._low_water = low_water_bytes
        self._mounts: dict[str, int] = {}
        self._mounts_lock = threading.Lock()
        # Only its owner may pass: an image may hold setuid programs of its own.
        self._records = Registry(Path(root).absolute() / DEVICES, patience=patience)

    @classmethod
    def open(
        cls, root: str | Path, *, patience: float = PATIENCE, low_water_bytes: int = LOW_WATER_BYTES
    ) -> DirectoryDevices:
        """The devices below `root`, without what crashes have left there."""
        devices = cls(root, patience=patience, low_water_bytes=low_water_bytes)
        devices.collect()
        return devices

    def close(self) -> None:
        """Give up the mounts of this process."""
        with self._mounts_lock:
            mounts, self._mounts = self._mounts, {}
        for descriptor in mounts.values():
            os.close(descriptor)
        self._records.close()

    # --- looking ---

    def path_of(self, name: str) -> Path:
        """The directory with the content of a device of this name."""
        return self._records.home / checked(name) / CONTENT

    def health(self, device: Device) -> Health:
        """By its identity alone."""
        return self._look(device)[0]

    def verify(self, device: Device, *, deep: bool = False) -> None:
        """By its identity; `deep` by the digest of every byte in it as well."""
        identity = self._expect(device)
        refuse_unsealed(identity)
        if deep:
            with self._records.opened(device.name) as directory:
                digest, _ = manifest_of(directory, CONTENT)
            if digest != identity.digest:
                raise not_as_sealed(device.name)

    def look(self, name: str) -> Found | None:
        """One of those that `found` would tell of."""
        there, identity = self._read(name)
        if not there:
            return None
        busy = self._is_busy(name)
        if identity is None or identity.name != name:
            return Found(name=name, health=Health.HALF_MADE, busy=busy)
        return found_of(identity, busy=busy)

    def found(self) -> list[Found]:
        """Everything with a visible name."""
        return [found for name in self._records.names() if (found := self.look(name)) is not None]

    def usage(self, device: Device) -> Usage:
        """By a walk through all of it."""
        self._expect(device)
        with self._records.opened(device.name) as directory:
            return usage_of(directory, CONTENT)

    def pool(self) -> PoolStatus:
        """The file system that the devices are on."""
        there = os.statvfs(self._records.home)
        capacity, available = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
        health, detail = PoolHealth.OK, ""
        # File systems that make inodes as they need them (btrfs) say that they have none at all.
        few_files = there.f_files > 0 and there.f_favail < LOW_WATER_FILES
        if there.f_flag & os.ST_RDONLY:
            health, detail = PoolHealth.READ_ONLY, f"{self._records.home} is on a file system mounted read-only"
        elif available == 0 or (there.f_files > 0 and there.f_favail == 0):
            spent = "bytes" if available == 0 else "inodes"
            health, detail = PoolHealth.FULL, f"no {spent} left at {self._records.home}"
        elif available < self._low_water or few_files:
            health = PoolHealth.LOW
            detail = f"{available >> 20} MiB and {there.f_favail} inodes left at {self._records.home}"
        return PoolStatus(
            capacity_bytes=capacity,
            used_bytes=capacity - there.f_bfree * there.f_frsize,
            available_bytes=available,
            low_water_bytes=self._low_water,
            health=health,
            detail=detail,
        )

    def disagreements(self) -> list[Finding]:
        """What crashes have left under hidden names."""
        from holdfast import Finding, Severity  # noqa: PLC0415 - whoever looks for one device does without

        return [
            Finding(code="leftover", severity=Severity.WARNING, subject=name, message="left by a crash: holdfast gc")
            for name in self._records.leftovers()
            if not self._records.is_locked(name)
        ]

    # --- making ---

    def create(self, device: Device) -> None:
        """Made under a hidden name, with its identity, and renamed."""
        health, _ = self._look(device)
        if health is Health.HEALTHY:
            self._refuse_busy(device.name)
            return
        self._make_room(device, health)
        with self._making(device.name) as directory:
            crash_point("create.temporary-made")
            os.mkdir(CONTENT, 0o755, dir_fd=directory)
            identity = identity_of(device, DeviceKind.DEVICE, State.MADE, size=device.size)
            write_identity(directory, identity, point="create.identity-written")
            os.fsync(directory)
            self._records.reveal(device.name)
            crash_point("create.renamed")

    def seal(self, device: Device, *, stays_mounted: bool = False) -> Usage:
        """Synced, digested, and recorded as sealed."""
        self.unmount(device)
        self._expect(device)
        usage = self._seal(device)
        if stays_mounted:
            self.mount(device)
        return usage

    def _seal(self, device: Device) -> Usage:
        with self._full_disk_told(), self._locked(device.name) as directory:
            identity = self._expect(device)
            digest, usage = manifest_of(directory, CONTENT)
            if identity.state is State.SEALED:
                if digest != identity.digest:
                    raise not_as_sealed(device.name)
                return usage
            sync_file_system(directory)
            crash_point("seal.synced")
            sealed = identity_of(
                device, identity.kind, State.SEALED, size=device.size, origin=identity.origin, digest=digest
            )
            write_identity(directory, sealed, point="seal.identity-aside")
            crash_point("seal.identity-replaced")
            return usage

    def snapshot(self, origin: Device, snapshot: Device) -> None:
        """Copied under a hidden name, synced, recorded as sealed, and renamed."""
        from holdfast_images.devices.copy_tree import copy_tree  # noqa: PLC0415 - who only looks at devices copies nothing

        health, there = self._look(snapshot)
        if health is Health.HALF_MADE:
            health, there = self._recover(origin, snapshot)
        if there is not None and health is Health.HEALTHY:
            if (there.kind, there.origin, there.state) == (DeviceKind.SNAPSHOT, origin.id, State.SEALED):
                return
            raise foreign(snapshot)
        self._make_room(snapshot, health)
        self.verify(origin)
        with (
            self._records.locked(origin.name, exclusive=False) as source,
            self._making(snapshot.name) as directory,
        ):
            identity = read_identity(source)
            crash_point("snapshot.temporary-made")
            with Flusher(directory):
                digest, _ = copy_tree(source, directory, CONTENT, worth_two=self._worth_two)
            if identity is None or digest != identity.digest:
                raise not_as_sealed(origin.name)
            crash_point("snapshot.copied")
            sync_file_system(directory)
            made = identity_of(
                snapshot, DeviceKind.SNAPSHOT, State.SEALED, size=snapshot.size, origin=origin.id, digest=digest
            )
            write_identity(directory, made, point="snapshot.identity-written")
            os.fsync(directory)
            self._records.reveal(snapshot.name)
            crash_point("snapshot.renamed")

    def _recover(self, origin: Device, snapshot: Device) -> tuple[Health, Identity | None]:
        """A snapshot whose record cannot be read is recorded again: what was written to it is not lost.

        What has a visible name was whole, so there is nothing half-made.
        """
        sealed = self._expect(origin)
        with self._records.locked(snapshot.name) as directory:
            if read_identity(directory) is None and _is_directory(self.path_of(snapshot.name)):
                made = identity_of(
                    snapshot,
                    DeviceKind.SNAPSHOT,
                    State.SEALED,
                    size=snapshot.size,
                    origin=origin.id,
                    digest=sealed.digest,
                )
                write_identity(directory, made)
        return self._look(snapshot)

    # --- using ---

    def activate(self, device: Device) -> Path:
        """A directory is always active; it has to be there."""
        self._expect(device)
        return self.path_of(device.name)

    def deactivate(self, device: Device) -> None:
        """There is nothing to take away; only what is in use must not be deactivated, by whomever."""
        with self._mounts_lock:
            mounted = device.name in self._mounts
        if mounted or self._is_busy(device.name):
            raise DeviceBusy(f"{device.name} is mounted or worked in", hint="unmount it first")
        refuse_used(self.path_of(device.name), device.name)

    def mount(self, device: Device) -> Path:
        """Held by a lock of this process, which ends with it."""
        self._expect(device)
        with self._mounts_lock:
            if device.name not in self._mounts:
                self._mounts[device.name] = self._records.hold(device.name)
        return self.path_of(device.name)

    def unmount(self, device: Device) -> None:
        """Let go of the lock of this process."""
        with self._mounts_lock:
            descriptor = self._mounts.pop(device.name, None)
        if descriptor is not None:
            os.close(descriptor)

    # --- removing ---

    def delete(self, device: Device) -> None:
        """Renamed to a hidden name, then removed."""
        health, _ = self._look(device)
        if health is Health.FOREIGN:
            raise foreign(device)
        if health is not Health.ABSENT:
            self._remove(device.name)

    def collect(self) -> int:
        """Everything with a hidden name that nobody has locked."""
        count = 0
        for hidden in self._records.leftovers():
            try:
                with self._records.abandoned(hidden):
                    refuse_used(self._records.home / hidden / CONTENT, hidden)
                    self._records.remove(hidden)
                    count += 1
            except (DeviceBusy, FileNotFoundError):
                continue  # somebody works on it
        return count

    # --- inside ---

    def _read(self, name: str) -> tuple[bool, Identity | None]:
        """As the registry reads it; without its content it is only half of a device."""
        there, identity = self._records.read(name)
        if identity is not None and not _is_directory(self.path_of(name)):
            return there, None
        return there, identity

    def _look(self, device: Device) -> tuple[Health, Identity | None]:
        there, identity = self._read(device.name)
        if not there:
            return Health.ABSENT, None
        if identity is None:
            # A file in the place of a directory was made by nobody here.
            return (Health.HALF_MADE if _is_directory(self._records.home / device.name) else Health.FOREIGN), None
        return (Health.HEALTHY if is_of(identity, device) else Health.FOREIGN), identity

    def _expect(self, device: Device) -> Identity:
        return expected(device, *self._look(device))

    def _make_room(self, device: Device, health: Health) -> None:
        if health is Health.FOREIGN:
            raise foreign(device)
        if health is Health.HALF_MADE:
            self._remove(device.name)

    def _is_busy(self, name: str) -> bool:
        return self._records.is_locked(name) or self._records.is_locked(f"{name}/{CONTENT}")

    @contextmanager
    def _locked(self, name: str) -> Iterator[int]:
        """Alone with a device: nobody has it mounted or works in it."""
        with self._records.locked(name) as directory:
            self._wait_for_writers(directory, name)
            yield directory

    def _wait_for_writers(self, directory: int, name: str) -> None:
        """A writer that has outlived whoever started it holds a lock on the content, and no other."""
        try:
            os.close(open_locked(directory, CONTENT, exclusive=True, patience=self._patience))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # half-made, or its own image has closed it to us: nobody can be writing in it
        except DeviceBusy as error:
            raise DeviceBusy(f"{name}: its {error}", hint=error.hint) from None

    @contextmanager
    def _making(self, name: str) -> Iterator[int]:
        """An empty directory under the hidden name of a device. Removed if the making fails."""
        with self._full_disk_told(), self._records.making(name) as directory:
            # What is in it was left by a process that is gone: we have its lock.
            for leftover in os.listdir(directory):
                if stat.S_ISDIR(os.stat(leftover, dir_fd=directory, follow_symlinks=False).st_mode):
                    remove_tree(directory, leftover)
                else:
                    os.unlink(leftover, dir_fd=directory)
            try:
                yield directory
            except Exception:  # whatever it was: what is half-made does not stay
                if self._records.is_still(directory, MAKING + name):
                    self._records.remove(MAKING + name)
                raise

    @contextmanager
    def _full_disk_told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"no room left at {self._records.home}: {error.strerror}",
                    hint="remove images that are not needed: holdfast image remove, holdfast gc",
                ) from error
            raise

    def _refuse_busy(self, name: str) -> None:
        """Raise DeviceBusy if anybody but this process's own mount is in it."""
        with self._mounts_lock:
            descriptor = self._mounts.get(name)
            if descriptor is not None:
                alone = try_lock(descriptor, exclusive=True)
                try_lock(descriptor, exclusive=False)
                if not alone or is_locked(descriptor, CONTENT):
                    raise DeviceBusy(f"a process still works in {name}", hint="it will be tried again")
                return
        with self._locked(name):
            pass

    def _remove(self, name: str) -> None:
        with self._mounts_lock:
            if name in self._mounts:
                raise DeviceBusy(f"{name} is mounted here", hint="unmount it first")
        with self._locked(name):
            refuse_used(self.path_of(name), name)
            hidden = self._records.trash(name)
            crash_point("delete.trashed")
            try:
                # Who came in before the name was gone; nobody comes any more.
                refuse_used(self._records.home / hidden / CONTENT, name)
            except DeviceBusy:
                self._records.take_back(hidden, name)
                raise
            self._records.remove(hidden)
            crash_point("delete.removed")


def _is_directory(path: Path) -> bool:
    """A directory itself: a link to one was made by nobody here."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False
