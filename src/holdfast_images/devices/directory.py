"""Devices as directories: no privileges and no help from the kernel needed. The embedded default.

`<root>/devices/<name>/` holds `identity.json` and `content/`. Whatever is made is made under a hidden name and
renamed when it is whole; whatever is deleted is renamed to a hidden name first. So what has a visible name is never
half-made by us, and what has a hidden name and no lock on it is a leftover.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast_images.devices.copying import copy_tree
from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.identity import Identity, State, read_identity, write_identity
from holdfast_images.devices.locking import DIRECTORY, is_locked, is_named, open_locked, try_lock
from holdfast_images.devices.manifest import manifest_of
from holdfast_images.devices.mounts import mounts_on
from holdfast_images.devices.protocol import Device, Found, Health, Kind, PoolHealth, PoolStatus, Usage
from holdfast_images.devices.removing import remove_tree
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError, NoSpace

CONTENT = "content"
MAKING = ".making-"
TRASH = ".trash-"
MOST_NAME_BYTES = 200
PATIENCE = 2.0
LOW_WATER_BYTES = 1 << 30
LOW_WATER_FILES = 10_000

_libc = ctypes.CDLL(None, use_errno=True)


class DirectoryDevices:
    """Devices below one directory of a local file system."""

    backend = "directory"

    def __init__(self, root: str | Path, *, patience: float = PATIENCE, low_water_bytes: int = LOW_WATER_BYTES) -> None:
        self._home = Path(root).absolute() / "devices"
        self._patience = patience
        self._low_water = low_water_bytes
        self._mounts: dict[str, int] = {}
        self._mounts_lock = threading.Lock()
        # Only its owner may pass: an image may hold setuid programs of its own.
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)

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

    # --- looking ---

    def path_of(self, name: str) -> Path:
        """The directory with the content of a device of this name."""
        return self._home / _checked(name) / CONTENT

    def health(self, device: Device) -> Health:
        """By its identity alone."""
        with self._at_home() as home:
            return self._look(home, device)[0]

    def verify(self, device: Device, *, deep: bool = False) -> None:
        """By its identity; `deep` by the digest of everything in it as well."""
        with self._at_home() as home:
            identity = self._expect(home, device)
            if identity.state is not State.SEALED:
                raise DeviceLost(f"{device.name} was never finished", hint="it will be unpacked again")
            if deep:
                with _opened(home, device.name) as directory:
                    digest, _ = manifest_of(directory, CONTENT)
                if digest != identity.digest:
                    raise DeviceLost(
                        f"{device.name} is not as it was sealed: something was added, removed or changed in it",
                        hint="delete it and process the image again",
                    )

    def look(self, name: str) -> Found | None:
        """One of those that `found` would tell of."""
        with self._at_home() as home:
            return self._found(home, _checked(name))

    def found(self) -> list[Found]:
        """Everything with a visible name."""
        with self._at_home() as home:
            names = sorted(name for name in os.listdir(home) if not name.startswith("."))
            return [found for name in names if (found := self._found(home, name)) is not None]

    def usage(self, device: Device) -> Usage:
        """By a walk through all of it."""
        with self._at_home() as home:
            self._expect(home, device)
            with _opened(home, device.name) as directory:
                return manifest_of(directory, CONTENT)[1]

    def pool(self) -> PoolStatus:
        """The file system that the devices are on."""
        there = os.statvfs(self._home)
        capacity, available = there.f_blocks * there.f_frsize, there.f_bavail * there.f_frsize
        health, detail = PoolHealth.OK, ""
        # File systems that make inodes as they need them (btrfs) say that they have none at all.
        few_files = there.f_files > 0 and there.f_favail < LOW_WATER_FILES
        if there.f_flag & os.ST_RDONLY:
            health, detail = PoolHealth.READ_ONLY, f"{self._home} is on a file system mounted read-only"
        elif available == 0 or (there.f_files > 0 and there.f_favail == 0):
            health, detail = PoolHealth.FULL, f"no {'bytes' if available == 0 else 'inodes'} left at {self._home}"
        elif available < self._low_water or few_files:
            health = PoolHealth.LOW
            detail = f"{available >> 20} MiB and {there.f_favail} inodes left at {self._home}"
        return PoolStatus(
            capacity_bytes=capacity,
            used_bytes=capacity - there.f_bfree * there.f_frsize,
            available_bytes=available,
            low_water_bytes=self._low_water,
            health=health,
            detail=detail,
        )

    # --- making ---

    def create(self, device: Device) -> None:
        """Made under a hidden name, with its identity, and renamed."""
        with self._at_home() as home:
            health, _ = self._look(home, device)
            if health is Health.HEALTHY:
                self._refuse_busy(home, device.name)
                return
            if health is Health.FOREIGN:
                raise _foreign(device)
            if health is Health.HALF_MADE:
                self._remove(home, device.name)
            with self._making(home, device.name) as directory:
                crash_point("create.temporary-made")
                os.mkdir(CONTENT, 0o755, dir_fd=directory)
                identity = _identity_of(device, Kind.DEVICE, State.MADE)
                write_identity(directory, identity, point="create.identity-written")
                self._reveal(home, device, directory)
                crash_point("create.renamed")

    def seal(self, device: Device) -> Usage:
        """Synced, digested, and recorded as sealed."""
        self.unmount(device)
        with self._at_home() as home:
            self._expect(home, device)
            with self._locked(home, device.name) as directory:
                identity = read_identity(directory)
                if identity is None:
                    raise DeviceLost(f"{device.name} has lost its identity", hint="it will be made again")
                digest, usage = manifest_of(directory, CONTENT)
                if identity.state is State.SEALED:
                    return usage
                _sync_file_system(directory)
                crash_point("seal.synced")
                sealed = _identity_of(device, identity.kind, State.SEALED, origin=identity.origin, digest=digest)
                write_identity(directory, sealed, point="seal.identity-aside")
                crash_point("seal.identity-replaced")
                return usage

    def snapshot(self, origin: Device, snapshot: Device) -> None:
        """Copied under a hidden name, synced, recorded as sealed, and renamed."""
        with self._at_home() as home:
            health, there = self._look(home, snapshot)
            if there is not None and health is Health.HEALTHY:
                if there.kind is Kind.SNAPSHOT and there.origin == origin.id and there.state is State.SEALED:
                    return
                raise _foreign(snapshot)
            if health is Health.FOREIGN:
                raise _foreign(snapshot)
            if health is Health.HALF_MADE:
                self._remove(home, snapshot.name)
            self.verify(origin)
            with (
                self._locked(home, origin.name, exclusive=False) as source,
                self._making(home, snapshot.name) as directory,
            ):
                identity = read_identity(source)
                crash_point("snapshot.temporary-made")
                digest, _ = copy_tree(source, CONTENT, directory, CONTENT)
                if identity is None or digest != identity.digest:
                    raise DeviceLost(
                        f"{origin.name} is not as it was sealed, so no snapshot was made of it",
                        hint="delete it and process the image again",
                    )
                crash_point("snapshot.copied")
                _sync_file_system(directory)
                made = _identity_of(snapshot, Kind.SNAPSHOT, State.SEALED, origin=origin.id, digest=digest)
                write_identity(directory, made, point="snapshot.identity-written")
                self._reveal(home, snapshot, directory)
                crash_point("snapshot.renamed")

    # --- using ---

    def activate(self, device: Device) -> Path:
        """A directory is always active; it has to be there."""
        with self._at_home() as home:
            self._expect(home, device)
        return self.path_of(device.name)

    def deactivate(self, device: Device) -> None:
        """There is nothing to take away; only what is in use must not be deactivated."""
        with self._mounts_lock:
            mounted = device.name in self._mounts
        with self._at_home() as home:
            if mounted or is_locked(home, device.name) or is_locked(home, f"{device.name}/{CONTENT}"):
                raise DeviceBusy(f"{device.name} is mounted or worked in", hint="unmount it first")

    def mount(self, device: Device) -> Path:
        """Held by a lock of this process, which ends with it."""
        with self._at_home() as home:
            self._expect(home, device)
            with self._mounts_lock:
                if device.name not in self._mounts:
                    self._mounts[device.name] = open_locked(home, device.name, exclusive=False, patience=self._patience)
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
        with self._at_home() as home:
            health, _ = self._look(home, device)
            if health is Health.FOREIGN:
                raise _foreign(device)
            if health is not Health.ABSENT:
                try:
                    self._remove(home, device.name)
                except DeviceLost:
                    pass  # another was faster, and it is gone

    def collect(self) -> int:
        """Everything with a hidden name that nobody has locked."""
        count = 0
        with self._at_home() as home:
            for name in os.listdir(home):
                if name.startswith((MAKING, TRASH)):
                    try:
                        descriptor = open_locked(home, name, exclusive=True, patience=0)
                    except (DeviceBusy, FileNotFoundError):
                        continue  # somebody works on it
                    try:
                        remove_tree(home, name)
                        count += 1
                    finally:
                        os.close(descriptor)
        return count

    # --- inside ---

    @contextmanager
    def _at_home(self) -> Iterator[int]:
        descriptor = os.open(self._home, DIRECTORY)
        try:
            yield descriptor
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(
                    f"no room left at {self._home}: {error.strerror}", hint="remove images that are not needed: gc"
                ) from error
            raise
        finally:
            os.close(descriptor)

    def _look(self, home: int, device: Device) -> tuple[Health, Identity | None]:
        try:
            directory = os.open(_checked(device.name), DIRECTORY, dir_fd=home)
        except FileNotFoundError:
            return Health.ABSENT, None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return Health.FOREIGN, None
            raise
        try:
            identity = read_identity(directory)
            if identity is None or not _is_directory(directory, CONTENT):
                return Health.HALF_MADE, None
        finally:
            os.close(directory)
        if (identity.id, identity.name, identity.uuid) != (device.id, device.name, device.uuid):
            return Health.FOREIGN, identity
        return Health.HEALTHY, identity

    def _expect(self, home: int, device: Device) -> Identity:
        health, identity = self._look(home, device)
        if health is Health.FOREIGN:
            raise _foreign(device)
        if identity is None:
            raise DeviceLost(f"{device.name} is {health}", hint="process the image again: it will be made anew")
        return identity

    def _found(self, home: int, name: str) -> Found | None:
        try:
            directory = os.open(name, DIRECTORY, dir_fd=home)
        except FileNotFoundError:
            return None  # deleted since the names were read
        except OSError:
            return Found(name=name, health=Health.HALF_MADE)
        try:
            identity = read_identity(directory)
            whole = identity is not None and identity.name == name and _is_directory(directory, CONTENT)
        finally:
            os.close(directory)
        busy = is_locked(home, name) or is_locked(home, f"{name}/{CONTENT}")
        if identity is None or not whole:
            return Found(name=name, health=Health.HALF_MADE, busy=busy)
        return Found(
            name=name,
            health=Health.HEALTHY,
            id=identity.id,
            uuid=identity.uuid,
            kind=identity.kind,
            origin=identity.origin,
            size=identity.size,
            sealed=identity.state is State.SEALED,
            busy=busy,
        )

    @contextmanager
    def _locked(self, home: int, name: str, *, exclusive: bool = True) -> Iterator[int]:
        try:
            descriptor = open_locked(home, name, exclusive=exclusive, patience=self._patience)
        except FileNotFoundError as error:
            raise DeviceLost(f"{name} has just been deleted", hint="it will be made again") from error
        try:
            if exclusive:
                self._wait_for_writers(descriptor, name)
            yield descriptor
        finally:
            os.close(descriptor)

    def _wait_for_writers(self, directory: int, name: str) -> None:
        """A writer that has outlived whoever started it holds a lock on the content, and no other."""
        try:
            os.close(open_locked(directory, CONTENT, exclusive=True, patience=self._patience))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # half-made, or its own image has closed it to us: nobody can be writing in it
        except DeviceBusy as error:
            raise DeviceBusy(f"{name}: its {error}", hint=error.hint) from None

    @contextmanager
    def _making(self, home: int, name: str) -> Iterator[int]:
        """An empty directory under the hidden name of a device, locked. Removed if the making fails."""
        hidden = MAKING + name
        directory = self._locked_hidden(home, hidden)
        try:
            # What is in it was left by a process that is gone: we have its lock.
            for leftover in os.listdir(directory):
                if _is_directory(directory, leftover):
                    remove_tree(directory, leftover)
                else:
                    os.unlink(leftover, dir_fd=directory)
            try:
                yield directory
            except Exception:
                if is_named(directory, home, hidden):
                    remove_tree(home, hidden)
                raise
        finally:
            os.close(directory)

    def _locked_hidden(self, home: int, hidden: str) -> int:
        while True:
            try:
                os.mkdir(hidden, 0o700, dir_fd=home)
            except FileExistsError:
                pass
            try:
                return open_locked(home, hidden, exclusive=True, patience=self._patience)
            except FileNotFoundError:
                continue  # another process has finished or collected it

    def _reveal(self, home: int, device: Device, directory: int) -> None:
        os.fsync(directory)
        try:
            os.rename(MAKING + device.name, device.name, src_dir_fd=home, dst_dir_fd=home)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise DeviceBusy(f"{device.name} was made by another meanwhile", hint="look again") from error
            raise
        os.fsync(home)

    def _refuse_busy(self, home: int, name: str) -> None:
        """Raise DeviceBusy if anybody but this process's own mount is in it."""
        with self._mounts_lock:
            descriptor = self._mounts.get(name)
            if descriptor is not None:
                alone = try_lock(descriptor, exclusive=True)
                try_lock(descriptor, exclusive=False)
                if not alone or is_locked(descriptor, CONTENT):
                    raise DeviceBusy(f"a process still works in {name}", hint="it will be tried again")
                return
        with self._locked(home, name):
            pass

    def _remove(self, home: int, name: str) -> None:
        with self._mounts_lock:
            if name in self._mounts:
                raise DeviceBusy(f"{name} is mounted here", hint="unmount it first")
        with self._locked(home, name):
            _refuse_mounted(self._home / name)
            trash = f"{TRASH}{name}.{secrets.token_hex(4)}"
            os.rename(name, trash, src_dir_fd=home, dst_dir_fd=home)
            os.fsync(home)
            crash_point("delete.trashed")
            remove_tree(home, trash)
            crash_point("delete.removed")


def _identity_of(
    device: Device, kind: Kind, state: State, *, origin: int | None = None, digest: str | None = None
) -> Identity:
    return Identity(
        id=device.id,
        name=device.name,
        uuid=device.uuid,
        kind=kind,
        state=state,
        size=device.size,
        origin=origin,
        digest=digest,
    )


def _foreign(device: Device) -> DeviceLost:
    return DeviceLost(
        f"{device.name} holds something else, which was left as it is",
        hint="reserve another id, or another snapshot name",
    )


def _checked(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > MOST_NAME_BYTES:
        raise ImageError(f"{name!r} cannot be the name of a device", hint="a plain file name that begins with no dot")
    return name


def _is_directory(parent: int, name: str) -> bool:
    try:
        return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


@contextmanager
def _opened(parent: int, name: str) -> Iterator[int]:
    descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _refuse_mounted(path: Path) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = mounts_on(os.path.realpath(path), file.read())
    if points:
        raise DeviceBusy(f"{path.name} is in use by the mount on {points[0]}", hint=f"umount {points[0]}")


def _sync_file_system(descriptor: int) -> None:
    """Everything written to the file system is on disk, or OSError says why not."""
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
