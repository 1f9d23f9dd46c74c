"""What a backend of devices promises. Flows know only this.

A device holds the unpacked content of one image; a snapshot is a copy of one that may be written to. Both have an id
of 24 bits (dm-thin has no more), a name, and the UUID of what they hold. Ids are reserved in the catalog before
anything is made under them, so what is found under an id of ours and is not whole is ours, half-made.

Every method may be repeated after a crash at any instant, and then ends where one undisturbed call would have ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast import Finding

NO_ID = -1
"""Of a device whose record cannot be read, and that nothing was reserved for."""
COLLECTED = frozenset({"leftover", "abandoned-look", "abandoned-mount"})
"""Codes of the disagreements that `collect` ends."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What a device is to be, or is. A snapshot has the UUID of its origin: it holds the same."""

    id: int
    name: str
    uuid: str
    size: int = 0
    """Bytes that it can hold; a backend without a limit of its own only records it."""
    files: int = 0
    """How many are going to be put in it, if that is known: some file systems have to make room for them at once."""


class Health(StrEnum):
    """What is found where a device is expected."""

    ABSENT = "absent"
    HALF_MADE = "half-made"
    HEALTHY = "healthy"
    """It holds what it should, or is empty and made for it; active or not."""
    FOREIGN = "foreign"
    """It holds something else: never to be touched, another id is to be reserved."""


class DeviceKind(StrEnum):
    """A device, or a snapshot of one."""

    DEVICE = "device"
    SNAPSHOT = "snapshot"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Something that the backend holds, whether the catalog knows it or not."""

    name: str
    health: Health
    """ABSENT is never found, and FOREIGN is for the catalog to say."""
    id: int | None = None
    """None where it cannot be read."""
    uuid: str | None = None
    kind: DeviceKind | None = None
    origin: int | None = None
    """The id that a snapshot was taken of."""
    size: int = 0
    sealed: bool = False
    busy: bool = False
    """Mounted, or worked in by a live process."""


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a device holds."""

    files: int
    apparent_bytes: int
    """As a reader sees it."""
    used_bytes: int
    """Allocated; what is shared with other devices is counted in each."""


class PoolHealth(StrEnum):
    """Can more be put into it?"""

    OK = "ok"
    LOW = "low"
    FULL = "full"
    READ_ONLY = "read-only"
    FAILED = "failed"


class PoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What all devices of a backend share."""

    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    low_water_bytes: int
    """With less than this available it is LOW."""
    health: PoolHealth
    detail: str = ""
    """What is wrong, and with what."""


class Devices(Protocol):
    """One backend. Its methods may be called from several threads and processes at once."""

    backend: str
    """Its name in settings and reports."""

    def path_of(self, name: str) -> Path:
        """Where a device of this name is found when it is active. Pure."""
        ...

    def health(self, device: Device) -> Health:
        """What is there under the device's name and id. Changes nothing."""
        ...

    def create(self, device: Device) -> None:
        """Make an empty device ready to be mounted, unless a healthy one is there: that stays as it is.

        What is half-made is removed first. Raises DeviceLost if something else is there, DeviceBusy while a process
        works in it, NoSpace.
        Crash: absent, half-made and recognised as such, or healthy.
        """
        ...

    def activate(self, device: Device) -> Path:
        """Make it usable under its path, and give that. Raises DeviceLost if it is not there.

        Crash: active or not; both are healthy.
        """
        ...

    def deactivate(self, device: Device) -> None:
        """Take its path away; what it holds stays. Nothing happens if it is inactive or absent.

        Raises DeviceBusy while it is mounted or open. Crash: as in activate.
        """
        ...

    def mount(self, device: Device) -> Path:
        """Give the directory with its content, mounting it if it is not. Activates it if need be.

        Whoever writes in it locks that directory (flock, exclusive) itself and for as long as it lives: until then
        nobody makes, seals or deletes the device, whatever has become of the process that started the writer.
        Crash: a kernel's mount stays and is found again; nothing else.
        """
        ...

    def unmount(self, device: Device) -> None:
        """Undo every mount of it. Nothing happens if there is none. Crash: mounted or not."""
        ...

    def seal(self, device: Device, *, stays_mounted: bool = False) -> Usage:
        """Everything written is on disk, the device unmounted, deactivated, and from now on whole.

        `stays_mounted`: for reading, and active, until it is unmounted and deactivated.

        Raises DeviceBusy while a process works in it, DeviceLost if it is not there.
        Crash: not sealed, or sealed; what was written stays.
        """
        ...

    def verify(self, device: Device, *, deep: bool = False) -> None:
        """Raise DeviceLost unless it is there, sealed, and holds what it should.

        Quick enough to be asked each time; `deep` reads every byte of it, and finds whatever was changed: NotAsSealed.
        A snapshot that somebody has put another file system in is SnapshotOverwritten.
        """
        ...

    def snapshot(self, origin: Device, snapshot: Device) -> None:
        """Make a sealed, active copy of a sealed origin, unless it is there.

        What was written to one that is there stays, also if its record cannot be read: then it is recorded again.
        Raises DeviceLost if the origin is not there, NotAsSealed if a byte of it was changed, NoSpace, DeviceBusy.
        Crash: absent, half-made and recognised as such, or whole.
        """
        ...

    def delete(self, device: Device) -> None:
        """Remove a device or snapshot and everything in it. Nothing happens if it is absent.

        Raises DeviceBusy while anybody has it mounted, open or works in it, before anything is taken away; DeviceLost
        if something else has its name.
        Crash: there, or gone for every other method; `collect` frees the space.
        """
        ...

    def look(self, name: str) -> Found | None:
        """What the backend holds under one name. Changes nothing."""
        ...

    def found(self) -> Sequence[Found]:
        """Everything the backend holds, by name. Changes nothing."""
        ...

    def disagreements(self) -> Sequence[Finding]:
        """What the backend's own parts do not agree about: records, names, kernel. Changes nothing."""
        ...

    def close(self) -> None:
        """Give up what this process holds, its mounts included; the devices stay. Crash: the same."""
        ...

    def collect(self) -> int:
        """Remove what crashes have left and nobody works on; how many leftovers there were. Crash: fewer of them."""
        ...

    def usage(self, device: Device) -> Usage:
        """What it holds at the moment. Raises DeviceLost if it is not there."""
        ...

    def pool(self) -> PoolStatus:
        """How much room there is, and whether it can be used."""
        ...
