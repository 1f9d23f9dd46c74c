"""The small file that says what a directory holds. It is whole or not there, whatever crashes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast_images.devices.lock import DIRECTORY, crash_point, is_locked, is_named, open_locked
from holdfast_images.devices.manifest import remove_tree
from holdfast_images.devices.protocol import Device, DeviceKind, Found, Health
from holdfast_images.durable import write_all
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError, NotAsSealed, SnapshotOverwritten

IDENTITY = "identity.json"
ASIDE = "identity.json.new"
MOST_BYTES = 65536


class State(StrEnum):
    """MADE: for content that is not whole yet. SEALED: whole, and on disk."""

    MADE = "made"
    SEALED = "sealed"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory holds."""

    version: int = 1
    id: int
    name: str
    uuid: str
    kind: DeviceKind
    state: State
    size: int = 0
    origin: int | None = None
    digest: str | None = None
    """Of the manifest, when it was sealed."""
    superblock: str | None = None
    """Digest of the file system's superblock when it was sealed, where it has a file system of its own."""


def read_identity(directory: int) -> Identity | None:
    """What the directory says it holds; None if it does not say, or not readably."""
    try:
        descriptor = os.open(IDENTITY, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, MOST_BYTES), type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return None
    finally:
        os.close(descriptor)


def write_identity(directory: int, identity: Identity, *, point: str | None = None) -> None:
    """Replace what the directory says. Crash: it says the old or the new; a file set aside is written over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(ASIDE, flags, 0o600, dir_fd=directory)
    try:
        write_all(descriptor, msgspec.json.encode(identity) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if point is not None:
        crash_point(point)
    os.rename(ASIDE, IDENTITY, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


# --- what an identity says of a device --------------------------------------------------------------------------


def identity_of(
    device: Device, kind: DeviceKind, state: State, *, size: int, origin: int | None = None, digest: str | None = None
) -> Identity:
    """What is recorded of a device that is to be, or is."""
    return Identity(
        id=device.id,
        name=device.name,
        uuid=device.uuid,
        kind=kind,
        state=state,
        size=size,
        origin=origin,
        digest=digest,
    )


def is_of(identity: Identity, device: Device) -> bool:
    """Is it this device's, and not that of something else in its place?"""
    return (identity.id, identity.name, identity.uuid) == (device.id, device.name, device.uuid)


def found_of(identity: Identity, *, busy: bool) -> Found:
    """Something whole, as a backend tells of it."""
    return Found(
        name=identity.name,
        health=Health.HEALTHY,
        id=identity.id,
        uuid=identity.uuid,
        kind=identity.kind,
        origin=identity.origin,
        size=identity.size,
        sealed=identity.state is State.SEALED,
        busy=busy,
    )


def expected(device: Device, health: Health, identity: Identity | None) -> Identity:
    """The identity of a device that has to be there; DeviceLost if it is not."""
    if health is Health.FOREIGN:
        raise foreign(device)
    if identity is None:
        raise DeviceLost(f"{device.name} is {health}", hint="process the image again: it will be made anew")
    return identity


def refuse_unsealed(identity: Identity) -> None:
    """Raise DeviceLost unless it was finished."""
    if identity.state is not State.SEALED:
        raise DeviceLost(f"{identity.name} was never finished", hint="it will be unpacked again")


def foreign(device: Device) -> DeviceLost:
    """Something else is in its place, and is left alone."""
    return DeviceLost(
        f"{device.name} (id {device.id}) holds something else, which was left as it is",
        hint="reserve another id, or another snapshot name",
    )


def not_as_sealed(name: str) -> DeviceLost:
    """It is the device, but not what was put in it."""
    return NotAsSealed(
        f"{name} is not as it was sealed: something was added, removed or changed in it",
        hint="process the image again, with --verify: it will be unpacked anew; snapshots of it stay",
    )


def overwritten(snapshot: Identity, found: str) -> SnapshotOverwritten:
    """Whoever writes to a snapshot may do that; it is kept, and not taken for the image's."""
    return SnapshotOverwritten(
        f"snapshot {snapshot.name} holds {found}, not the file system {snapshot.uuid} of its image; it is kept",
        hint=f"if that is not needed: holdfast snapshot deactivate {snapshot.name} --delete, then make it again",
    )


# --- Which devices are ours: one directory for each, with its identity in it ----------------------------
#
# What is made is made under a hidden name first; renamed when it is whole; and renamed to a hidden name again before it
# is deleted. So what has a visible name is never half-made by us, and a hidden name that nobody has locked is a
# leftover.

MAKING = ".making-"
TRASH = ".trash-"
MOST_NAME_BYTES = 127
"""As many as the device mapper takes."""


class Registry:
    """The directory of records."""

    def __init__(self, home: Path, *, patience: float) -> None:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.home = Path(os.path.realpath(home))
        self._patience = patience
        self._descriptor = os.open(self.home, DIRECTORY)

    def close(self) -> None:
        """Give it up."""
        os.close(self._descriptor)

    # --- looking ---

    def read(self, name: str) -> tuple[bool, Identity | None]:
        """Is there something of this name, and what is it? None if it cannot be read."""
        try:
            with self.opened(name) as directory:
                return True, read_identity(directory)
        except FileNotFoundError:
            return False, None
        except NotADirectoryError:
            return True, None

    def names(self) -> list[str]:
        """Everything that is whole, or was."""
        return sorted(name for name in os.listdir(self._descriptor) if not name.startswith("."))

    def leftovers(self) -> list[str]:
        """Everything that is being made or deleted, or was when somebody died."""
        return sorted(name for name in os.listdir(self._descriptor) if name.startswith((MAKING, TRASH)))

    def leftovers_of(self, thin_id: int) -> list[str]:
        """Those of one number."""
        return [name for name in self.leftovers() if (found := self._hidden(name)) and found.id == thin_id]

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """The directory of a record, to be looked at."""
        directory = os.open(checked(name), DIRECTORY, dir_fd=self._descriptor)
        try:
            yield directory
        finally:
            os.close(directory)

    def is_locked(self, name: str) -> bool:
        """Does anybody work on it?"""
        return is_locked(self._descriptor, name)

    def _hidden(self, name: str) -> Identity | None:
        try:
            directory = os.open(name, DIRECTORY, dir_fd=self._descriptor)
        except OSError:
            return None
        try:
            return read_identity(directory)
        finally:
            os.close(directory)

    # --- changing ---

    def hold(self, name: str, *, exclusive: bool = False) -> int:
        """The directory of a record, locked until it is closed.

        Raises DeviceBusy while others work on it, DeviceLost if it is gone.
        """
        try:
            return open_locked(self._descriptor, name, exclusive=exclusive, patience=self._patience)
        except FileNotFoundError as error:
            raise DeviceLost(f"{name} has just been deleted", hint="it will be made again") from error

    @contextmanager
    def locked(self, name: str, *, exclusive: bool = True) -> Iterator[int]:
        """The same for as long as the block lasts."""
        directory = self.hold(name, exclusive=exclusive)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextmanager
    def making(self, name: str) -> Iterator[int]:
        """A directory under a hidden name, locked; what a dead process has left in it is still there."""
        hidden = MAKING + checked(name)
        directory = self._make_hidden(hidden)
        try:
            yield directory
        finally:
            os.close(directory)

    def _make_hidden(self, hidden: str) -> int:
        while True:
            try:
                os.mkdir(hidden, 0o700, dir_fd=self._descriptor)
            except FileExistsError:
                pass
            try:
                return open_locked(self._descriptor, hidden, exclusive=True, patience=self._patience)
            except FileNotFoundError:
                continue  # another process has finished or collected it

    def sync(self) -> None:
        """The names are on disk."""
        os.fsync(self._descriptor)

    def reveal(self, name: str) -> None:
        """What was made is whole. Crash: it is, or is not."""
        try:
            os.rename(MAKING + name, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        except OSError as error:
            if os.path.lexists(self.home / name):
                raise DeviceBusy(f"{name} was made by another meanwhile", hint="look again") from error
            raise
        self.sync()

    def trash(self, name: str) -> str:
        """From now on it is a leftover, under the name that is given back."""
        hidden = f"{TRASH}{name}.{os.urandom(4).hex()}"
        os.rename(name, hidden, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()
        return hidden

    def take_back(self, hidden: str, name: str) -> None:
        """It is no leftover after all. Crash: it is one, or is not."""
        os.rename(hidden, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        self.sync()

    def remove(self, hidden: str) -> None:
        """Remove a leftover and everything in it; nothing happens if it is gone."""
        if (self.home / hidden).is_dir():
            remove_tree(self._descriptor, hidden)

    @contextmanager
    def abandoned(self, hidden: str) -> Iterator[Identity | None]:
        """A leftover, locked. Raises DeviceBusy if somebody works on it, FileNotFoundError if it is gone."""
        directory = open_locked(self._descriptor, hidden, exclusive=True, patience=0)
        try:
            yield read_identity(directory)
        finally:
            os.close(directory)

    def is_still(self, directory: int, name: str) -> bool:
        """Does the name still lead to this directory?"""
        return is_named(directory, self._descriptor, name)


def checked(name: str) -> str:
    """A plain name, for files and for the device mapper; ImageError if it is none."""
    plain = name.isascii() and name.isprintable() and not set(name) & set("/\\ \"'")
    if not name or name.startswith(".") or not plain or len(name) > MOST_NAME_BYTES:
        raise ImageError(f"{name!r} cannot be the name of a device", hint="a plain file name that begins with no dot")
    return name
