"""Devices as thin devices of the kernel's device mapper: an ext4 each, and snapshots that share its blocks.

`<root>/pool.json` says what the pool is made of, `<root>/devices/` which of its devices are ours. A device is shown as
`/dev/mapper/<name>` while it is active. A sealed device is inactive; its snapshots are active and for use.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from holdfast import Finding
from holdfast_images.devices.activation import AGAIN, Activation, Content, going_on
from holdfast_images.devices.block_device import Ext4Superblock, make_ext4, read_superblock, valid_uuid
from holdfast_images.devices.consistency import differences, gather_facts
from holdfast_images.devices.dm_control import NODES
from holdfast_images.devices.dm_table import CommandFailed, log
from holdfast_images.devices.lock import crash_point
from holdfast_images.devices.mounts import MountedRegistry, undo_private
from holdfast_images.devices.protocol import NO_ID, Device, DeviceKind, Found, Health, PoolHealth, PoolStatus, Usage
from holdfast_images.devices.record import (
    MAKING,
    Identity,
    State,
    checked,
    expected,
    foreign,
    found_of,
    identity_of,
    is_of,
    not_as_sealed,
    overwritten,
    read_identity,
    refuse_unsealed,
    write_identity,
)
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.durable import sync_block_device
from holdfast_images.errors import DeviceBusy, DeviceLost, NoSpace, PoolUnusable

PATIENCE = 5.0
DEFAULT_SIZE = 10 << 30
MANY = 16
BLOCK = 4096
POINTS = ("create.thin-made", "create.formatted")
"""Crash points that other backends do not have."""


class DeviceMapperDevices:
    """The thin devices of one pool."""

    backend = "devicemapper"

    def __init__(
        self, root: str | Path, pool: ThinPool, *, patience: float = PATIENCE, read_origins: bool = True
    ) -> None:
        """`read_origins`: every byte of an image is compared with what was sealed before a snapshot of it is made."""
        self.thin_pool = pool
        self._read_origins = read_origins
        self._patience = patience
        self.records = MountedRegistry(Path(root).absolute() / "devices", patience=patience)
        self.showing = Activation(pool, home=self.records.home, patience=patience)
        self._content = Content(self.records, self.showing)

    @classmethod
    def open(cls, root: str | Path, *, patience: float = PATIENCE) -> DeviceMapperDevices:
        """The devices of the pool recorded at `root`, put to use again, without what crashes have left there."""
        devices = cls(root, ThinPool.open(root), patience=patience)
        devices.collect()
        return devices

    def close(self) -> None:
        """Let go of everything but the devices that are in use."""
        self.records.close()
        undo_private(self.records.home)
        self.thin_pool.mapper.close()

    # --- looking ---

    def path_of(self, name: str) -> Path:
        """The node of a device of this name."""
        return NODES / checked(name)

    def health(self, device: Device) -> Health:
        """By its record, and by whether the pool has its id."""
        return self._look(device)[0]

    def verify(self, device: Device, *, deep: bool = False) -> None:
        """By its record and its superblock; a snapshot must be active. `deep`: by the digest of every byte in it."""
        identity = self._expect(device)
        refuse_unsealed(identity)
        if identity.kind is DeviceKind.SNAPSHOT:
            info = self.showing.active(identity)
            if info is None or not self.showing.is_reachable(info):
                wrong = "is not active" if info is None else f"is active, and {self.path_of(device.name)} is gone"
                raise DeviceLost(f"snapshot {device.name} {wrong}", hint=f"holdfast snapshot activate {device.name}")
        superblock = self._superblock(identity)
        if deep:
            # What the next mount would replay is not in what is read; where it is mounted already, it is.
            known = superblock.clean or self.records.mounts_of(identity.name)
            if not known or self._content.digest(identity) != identity.digest:
                raise not_as_sealed(identity.name)

    def _superblock(self, identity: Identity) -> Ext4Superblock:
        """Raises DeviceLost if it is none of its image's."""
        with self.showing.looked_at(identity) as node:
            superblock = read_superblock(node)
        if superblock is not None and superblock.uuid == valid_uuid(identity.uuid):
            return superblock
        found = f"the file system {superblock.uuid}" if superblock is not None else "no ext4"
        if identity.kind is DeviceKind.SNAPSHOT:
            raise overwritten(identity, found)
        raise DeviceLost(f"{identity.name} holds {found}, not {identity.uuid}", hint=AGAIN)

    def look(self, name: str) -> Found | None:
        """One of those that `found` would tell of."""
        there, identity = self.records.read(name)
        if not there:
            return None
        return self._found(name, identity, in_pool=identity is not None and self.thin_pool.holds(identity.id))

    def found(self) -> list[Found]:
        """Everything with a visible record."""
        records = [(name, *self.records.read(name)) for name in self.records.names()]
        ids = self._in_pool({identity.id for _, _, identity in records if identity is not None})
        return [
            self._found(name, identity, in_pool=identity is not None and identity.id in ids)
            for name, there, identity in records
            if there
        ]

    def _in_pool(self, ids: set[int]) -> set[int]:
        """Those of them that the pool has."""
        # One look at all of the pool's metadata costs as much as some at single devices.
        if len(ids) > MANY:
            try:
                return ids & set(self.thin_pool.ids())
            except PoolUnusable as error:
                log.warning("asking for each device: %s", error)  # which a pool that is read-only still answers
        return {one for one in ids if self.thin_pool.holds(one)}

    def usage(self, device: Device) -> Usage:
        """By a walk through all of it."""
        return self._content.usage(self._expect(device))

    def pool(self) -> PoolStatus:
        """The thin pool."""
        return self.thin_pool.room()

    # --- making ---

    def create(self, device: Device) -> None:
        """Recorded under a hidden name, made in the pool, formatted, and revealed. It stays active."""
        health, _ = self._look(device)
        if health is Health.HEALTHY:
            self._content.refuse_busy(device.name)
            return
        if health is Health.FOREIGN:
            raise foreign(device)
        if health is Health.HALF_MADE:
            self._remove(device)
        self._refuse_full()
        identity = identity_of(device, DeviceKind.DEVICE, State.MADE, size=_whole_blocks(device.size or DEFAULT_SIZE))
        with self._making(identity, "create") as directory:
            write_identity(directory, identity, point="create.identity-written")
            self.records.sync()
            self._claim(identity, self.thin_pool.create_thin(identity.id))
            crash_point("create.thin-made")
            node = self.showing.show(identity)
            self._format(identity, node, files=device.files)
            crash_point("create.formatted")
            self.records.reveal(device.name)
            crash_point("create.renamed")

    def _format(self, identity: Identity, node: str, *, files: int) -> None:
        with self._explaining(identity.name):
            make_ext4(node, identity.uuid, size=identity.size, files=files)
            sync_block_device(node)

    def seal(self, device: Device, *, stays_mounted: bool = False) -> Usage:
        """Synced, unmounted, flushed, mounted read-only, digested, and recorded as sealed."""
        self.unmount(device)
        identity = self._expect(device)
        with self.records.locked(device.name) as directory:
            self.records.refuse_mounted(device.name)
            node = self.showing.show(identity)
            try:
                with self._explaining(device.name):
                    digest, usage = self._content.finish(identity, node)
                changed = identity.state is State.SEALED and digest != identity.digest
            except Exception:
                self.records.unmount(device.name)
                raise
            crash_point("seal.synced")
            superblock = read_superblock(node)
            if changed or not stays_mounted:
                self.records.unmount(device.name)
                self.showing.hide(identity)
            if changed:
                raise not_as_sealed(identity.name)
            sealed = msgspec.structs.replace(
                identity, state=State.SEALED, digest=digest, superblock=superblock.digest if superblock else None
            )
            write_identity(directory, sealed, point="seal.identity-aside")
            crash_point("seal.identity-replaced")
        return usage

    def snapshot(self, origin: Device, snapshot: Device) -> None:
        """Recorded under a hidden name, made in the pool, activated, compared with what was sealed, and revealed."""
        health, there = self._look(snapshot)
        if health is Health.HALF_MADE:
            health, there = self._recover(origin, snapshot)
        if there is not None and health is Health.HEALTHY:
            if (there.kind, there.origin, there.state) != (DeviceKind.SNAPSHOT, origin.id, State.SEALED):
                raise foreign(snapshot)
            with self.records.locked(snapshot.name):
                self.showing.show(there)
            self._superblock(there)
            return
        if health is Health.FOREIGN:
            raise foreign(snapshot)
        self._refuse_full()
        self.verify(origin)
        with self.records.locked(origin.name, exclusive=False) as source:
            sealed = expected(origin, Health.HALF_MADE, read_identity(source))
            refuse_unsealed(sealed)
            # An origin that somebody writes to gives a torn snapshot, and the kernel would not refuse it.
            self.showing.hide(sealed)
            self.showing.refuse_shown(sealed)
            self._take(sealed, snapshot)

    def _recover(self, origin: Device, snapshot: Device) -> tuple[Health, Identity | None]:
        """A snapshot whose record cannot be read is recorded again, by what was reserved: its writes are not lost.

        One that the pool does not have is removed. What has a visible name was whole, so there is nothing half-made.
        """
        sealed = self._expect(origin)
        with self.records.locked(snapshot.name) as directory:
            unreadable = read_identity(directory) is None and not self._is_another(snapshot)
            if unreadable and self.thin_pool.holds(snapshot.id):
                log.warning("the record of %s could not be read, and was written again", snapshot.name)
                write_identity(directory, _snapshot_of(sealed, snapshot))
        if unreadable and (found := self._look(snapshot))[0] is Health.HEALTHY:
            return found
        self._remove(snapshot)
        return self._look(snapshot)

    def _take(self, origin: Identity, snapshot: Device) -> None:
        made = _snapshot_of(origin, snapshot)
        with self._making(made, "snapshot") as directory:
            write_identity(directory, made, point="snapshot.identity-written")
            self.records.sync()
            self._claim(made, self.thin_pool.create_snap(made.id, origin.id))
            crash_point("snapshot.half-copied")
            self._compare(made, origin.superblock)
            self.showing.show(made)
            crash_point("snapshot.copied")
            self.records.reveal(snapshot.name)
            crash_point("snapshot.renamed")

    def _compare(self, made: Identity, sealed: str | None) -> None:
        """Raise NotAsSealed unless a snapshot holds what was sealed, to the last byte."""
        superblock = self._superblock(made)
        # A mount or a check alone changes nothing that counts; whatever else has changed there, only all of it tells.
        unchanged = superblock.digest == sealed and not self._read_origins
        if not superblock.clean or not (unchanged or self._content.digest(made) == made.digest):
            raise not_as_sealed(f"the origin of {made.name}")

    # --- using ---

    def activate(self, device: Device) -> Path:
        """Shown under its name, with the size that was recorded."""
        identity = self._expect(device)
        with self.records.locked(device.name):
            self.showing.show(identity)
        return self.path_of(device.name)

    def deactivate(self, device: Device) -> None:
        """Not shown any more."""
        there, identity = self.records.read(device.name)
        if not there or (identity is not None and identity.id != device.id):
            return
        identity = identity or identity_of(
            device, DeviceKind.DEVICE, State.MADE, size=device.size
        )  # its record is unreadable
        with self.records.locked(device.name):
            self.records.unmount(device.name, dead_only=True)
            self.records.refuse_mounted(device.name)
            self.showing.hide(identity)

    def mount(self, device: Device) -> Path:
        """On a place of this process."""
        identity = self._expect(device)
        with self.records.locked(device.name):
            node = self.showing.show(identity)
            with self._explaining(device.name):
                return self._content.mount(identity, node)

    def unmount(self, device: Device) -> None:
        """Every mount of ours that nobody works in; what others have mounted elsewhere is theirs."""
        self.records.unmount(checked(device.name))

    # --- removing ---

    def delete(self, device: Device) -> None:
        """Renamed to a hidden name, deleted in the pool, then forgotten."""
        health, _ = self._look(device)
        if health is Health.FOREIGN:
            raise foreign(device)
        if health is not Health.ABSENT:
            try:
                self._remove(device)
            except DeviceLost:
                pass  # another was faster, and it is gone

    def collect(self) -> int:
        """Everything with a hidden name that nobody has locked, and what dead processes have mounted or shown."""
        self.showing.resume_all()
        # What the dead have shown and mounted first: it keeps what they were deleting busy.
        with going_on("a mount"):
            self.records.unmount_dead()
        count = self.showing.remove_dead()
        for hidden in self.records.leftovers():
            with going_on(hidden):
                count += self._clear(hidden)
        return count

    def disagreements(self) -> list[Finding]:
        """Records, pool, the kernel's table, mounts and loop devices, held against each other."""
        return list(differences(gather_facts(self.records, self.thin_pool, self.showing)))

    # --- inside ---

    def _look(self, device: Device) -> tuple[Health, Identity | None]:
        there, identity = self.records.read(device.name)
        if there:
            if identity is None:
                return Health.HALF_MADE, None
            if not is_of(identity, device):
                return Health.FOREIGN, identity
            if not self.thin_pool.holds(identity.id):
                return Health.HALF_MADE, None
            return Health.HEALTHY, identity
        taken = self.thin_pool.holds(device.id) and not self.records.leftovers_of(device.id)
        return (Health.FOREIGN if taken else Health.ABSENT), None

    def _expect(self, device: Device) -> Identity:
        return expected(device, *self._look(device))

    def _found(self, name: str, identity: Identity | None, *, in_pool: bool) -> Found:
        busy = self.records.is_locked(name) or self.showing.busy(name, identity)
        if identity is None or identity.name != name:
            return Found(name=name, health=Health.HALF_MADE, id=identity.id if identity else None, busy=busy)
        found = found_of(identity, busy=busy)
        return found if in_pool else msgspec.structs.replace(found, health=Health.HALF_MADE, sealed=False)

    @contextmanager
    def _making(self, identity: Identity, scenario: str) -> Iterator[int]:
        """The hidden record of what is made; undone, in the pool too, if the making fails."""
        for hidden in self.records.leftovers_of(identity.id):
            if hidden != MAKING + identity.name:  # which is waited for below
                self._clear(hidden)
        with self.records.making(identity.name) as directory:
            if (leftover := read_identity(directory)) is not None:
                self._undo(leftover)
            crash_point(f"{scenario}.temporary-made")
            try:
                yield directory
            except Exception:  # whatever it was: what is half-made does not stay
                if self.records.is_still(directory, MAKING + identity.name):
                    with going_on(MAKING + identity.name):
                        if (written := read_identity(directory)) is not None:
                            self._undo(written)
                        self.records.remove(MAKING + identity.name)
                raise

    def _claim(self, identity: Identity, made: bool) -> None:  # noqa: FBT001 - the answer of the pool
        """An id that is there, though nothing of ours had it: it must not be undone."""
        if not made:
            self.records.remove(MAKING + identity.name)
            raise DeviceBusy(
                f"the pool has a device {identity.id} that is not ours", hint="another id will be reserved"
            )

    def _clear(self, hidden: str) -> bool:
        """Remove a leftover, in the pool and out of it; False if it is gone. Raises DeviceBusy if somebody has it."""
        try:
            with self.records.abandoned(hidden) as identity:
                if identity is not None:
                    self._undo(identity)
                self.records.remove(hidden)
        except FileNotFoundError:
            return False
        return True

    def _undo(self, identity: Identity) -> None:
        """Not in the pool any more. Crash: to be repeated."""
        there, visible = self.records.read(identity.name)
        if not there:
            self.showing.hide(identity)
        if visible is None or visible.id != identity.id:
            self.thin_pool.delete(identity.id, patience=self._patience)

    def _remove(self, device: Device) -> None:
        name = device.name
        with self.records.locked(name) as directory:
            self.records.unmount(name, dead_only=True)
            self.records.refuse_mounted(name)
            identity = read_identity(directory) or self._recorded_again(device, directory)
            if identity is None and self.showing.busy(name, None):
                raise DeviceBusy(f"{name} is open", hint="unmount or close it; it will be tried again")
            if identity is not None:
                # All that can be in the way comes before anything is taken away, trimmed or forgotten.
                self.thin_pool.refuse_unwritable()
                self.showing.refuse_shown(identity)
                self.showing.hide(identity)
            hidden = self.records.trash(name)
            crash_point("delete.trashed")
            if identity is not None:
                self.showing.discard(identity)
                self.thin_pool.delete(identity.id, patience=self._patience)
            crash_point("delete.half-removed")
            self.records.remove(hidden)
            crash_point("delete.removed")

    def _recorded_again(self, device: Device, directory: int) -> Identity | None:
        """In the place of a record that cannot be read, by what was reserved: or else its id would stay in the pool."""
        if device.id == NO_ID or self._is_another(device):
            return None
        identity = identity_of(device, DeviceKind.DEVICE, State.MADE, size=device.size or DEFAULT_SIZE)
        write_identity(directory, identity)
        return identity

    def _is_another(self, device: Device) -> bool:
        """Does a record of another name have its id?"""
        others = (self.records.read(name)[1] for name in self.records.names() if name != device.name)
        return any(other is not None and other.id == device.id for other in others)

    def _refuse_full(self) -> None:
        room = self.pool()
        if room.health is PoolHealth.FULL:
            raise NoSpace(f"nothing can be made: {room.detail}", hint="holdfast gc, or holdfast pool extend")
        if room.health is PoolHealth.LOW:
            log.warning("%s", room.detail)
        elif room.health is not PoolHealth.OK:
            raise PoolUnusable(f"nothing can be made: {room.detail}", hint="holdfast pool status says what to do")

    @contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        """A full pool fails the writes of a file system, which is then read-only or broken: the pool is the reason."""
        try:
            yield
        except (CommandFailed, OSError) as error:
            room = self.pool()
            if room.health is not PoolHealth.FULL and getattr(error, "errno", None) != errno.ENOSPC:
                raise
            raise NoSpace(
                f"{name} does not fit: {room.detail or error}", hint="holdfast gc, or holdfast pool extend"
            ) from error


def _snapshot_of(origin: Identity, snapshot: Device) -> Identity:
    return identity_of(
        snapshot, DeviceKind.SNAPSHOT, State.SEALED, size=origin.size, origin=origin.id, digest=origin.digest
    )


def _whole_blocks(size: int) -> int:
    """As large as is asked for, in blocks of its file system."""
    return -(-size // BLOCK) * BLOCK
