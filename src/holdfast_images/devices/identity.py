"""The small file that says what a directory holds. It is whole or not there, whatever crashes."""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.protocol import Device, Found, Health, Kind
from holdfast_images.errors import DeviceLost, NotAsSealed, SnapshotOverwritten
from holdfast_images.syncing import write_all

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
    kind: Kind
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
    device: Device, kind: Kind, state: State, *, size: int, origin: int | None = None, digest: str | None = None
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
