"""Thin devices shown by the device mapper: for use under their own names, and for a look under names of the moment."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from logging import INFO, WARNING
from pathlib import Path

from holdfast_images.devices.block_device import takes_discards
from holdfast_images.devices.dm_control import NODES, Info, MapperError, patiently
from holdfast_images.devices.dm_table import log, shown_thin, thin_target
from holdfast_images.devices.lock import DIRECTORY, is_alive, is_locked, this_process
from holdfast_images.devices.manifest import manifest_of, usage_of
from holdfast_images.devices.mounts import (
    MountedRegistry,
    holders_of,
    make_private,
    mount_device,
    mounts,
    unmount_point,
)
from holdfast_images.devices.protocol import DeviceKind, Usage
from holdfast_images.devices.record import Identity, State, not_as_sealed
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.durable import sync_block_device, sync_file_system
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError

LOOK = ".look-"
AGAIN = "process the image again: what is missing is made anew"
DISCARD = 0x1277
"""BLKDISCARD"""
DISCARD_PIECE = 1 << 30
DISCARD_PATIENCE = 30.0


class Activation:
    """What of a pool is shown, and how it is taken away again."""

    def __init__(self, pool: ThinPool, *, home: Path, patience: float) -> None:
        self._pool = pool
        self._home = home
        self._mapper = pool.mapper
        self._patience = patience
        self._prefix = pool.prefix
        self._passing = re.compile(re.escape(pool.prefix) + r"(?:look|probe)-(\d+-\d+)-\d+")

    def is_passing(self, info: Info) -> bool:
        """Is it shown for a moment only?"""
        return self._passing.fullmatch(info.uuid) is not None

    def is_abandoned(self, info: Info) -> bool:
        """Was it shown for a moment by a process that is gone?"""
        passing = self._passing.fullmatch(info.uuid)
        return passing is not None and not is_alive(passing[1])

    def ours(self) -> Iterator[Info]:
        """Every device of the pool that is shown, the pool itself among them."""
        for name in self._mapper.names():
            info = self._mapper.info(name)
            if info is not None and info.uuid.startswith(self._prefix):
                yield info

    # --- under its own name ---

    def active(self, identity: Identity) -> Info | None:
        """The device as it is shown; None if it is not. Raises DeviceLost if that is not as it should be."""
        info = self._named(identity)
        if info is None or not info.has_table:
            return None
        if wrong := self._wrong_table(identity, info):
            hint = f"holdfast snapshot activate {identity.name}" if identity.kind is DeviceKind.SNAPSHOT else AGAIN
            raise DeviceLost(f"{identity.name} is shown as '{wrong}', and not as it was recorded", hint=hint)
        return info

    def is_reachable(self, info: Info) -> bool:
        """Does its path lead to it?"""
        return self._mapper.has_node(info)

    def show(self, identity: Identity) -> str:
        """Its node, made unless it is there, whatever a crash or somebody else has done to it.

        Resumed, renamed, given its own table or its node again. Raises DeviceLost if its name is another program's,
        DeviceBusy if somebody has open what it was made to show.
        """
        renamed = self._mapper.find(self._uuid(identity))
        info = self._named(identity)
        if info is None and renamed is not None:
            log.warning("%s was renamed to %s: it gets its name back", identity.name, renamed.name)
            self._mapper.rename(renamed.name, identity.name)
            info = self._named(identity)
        if info is not None and not info.has_table:
            self._mapper.remove(identity.name)  # a crash has left it without a table
            info = None
        if info is None:
            self._create(identity.name, self._uuid(identity), identity)
            return str(NODES / identity.name)
        if wrong := self._wrong_table(identity, info):
            self._put_right(identity, info, wrong)
        elif info.suspended:
            self._mapper.resume(identity.name)
        self._mapper.ensure_node(info)
        return str(NODES / identity.name)

    def _named(self, identity: Identity) -> Info | None:
        """What has its name. Raises DeviceLost if that is not ours."""
        info = self._mapper.info(identity.name)
        if info is not None and info.uuid != self._uuid(identity):
            raise DeviceLost(
                f"/dev/mapper/{identity.name} is another program's device",
                hint=f"see what it is: dmsetup info {identity.name}; then dmsetup rename or dmsetup remove it",
            )
        return info

    def _wrong_table(self, identity: Identity, info: Info) -> str:
        """What is shown under its name instead of it; empty if it is right."""
        targets = self._mapper.table(identity.name)
        wanted = thin_target(self._pool.numbers, identity.id, identity.size)
        # A table of another length would cut the file system off, or show what is not in it.
        if targets != [wanted]:
            return "; ".join(map(str, targets)) or "nothing"
        return f"{wanted}, read-only" if info.read_only else ""

    def _put_right(self, identity: Identity, info: Info, wrong: str) -> None:
        """Give it its table again. Nobody is deprived of anything: errors (dmsetup wipe_table), or nobody is there."""
        target = thin_target(self._pool.numbers, identity.id, identity.size)
        targets = self._mapper.table(identity.name)
        errors = all(each.kind == "error" for each in targets)
        if info.open_count and not errors and targets != [target]:
            raise DeviceBusy(
                f"{identity.name} is shown as '{wrong}' and open: {holders_of(info.numbers)}",
                hint="close it: then it is put right",
            )
        log.warning("%s was shown as '%s', and is put right", identity.name, wrong)
        try:
            self._mapper.load(identity.name, target)
        except MapperError as error:
            raise self._meaning(error, identity.name, identity) from error
        # A file system on it could not write through errors what it was asked for, and would not let go.
        self._mapper.resume(identity.name, at_once=errors)

    def hide(self, identity: Identity) -> None:
        """Nothing happens if it is not shown, by whatever name. Raises DeviceBusy while it is open."""
        info = self._mapper.find(self._uuid(identity))
        if info is None:
            return
        if info.suspended and info.has_table:
            self._mapper.resume(info.name)  # who waits for it would never let go
        self._take_away(info.name, info)

    def refuse_shown(self, identity: Identity) -> None:
        """Raise DeviceBusy if somebody shows it by a name that is not ours: he may write to it at any moment."""
        for name in self._pool.names_of(identity.id):
            info = self._mapper.info(name)
            if info is not None and not info.uuid.startswith(self._prefix):
                raise DeviceBusy(
                    f"{identity.name} (device {identity.id} of pool {self._pool.record.name}) is shown as {name}",
                    hint=f"unmount and close it, then: dmsetup remove {name}",
                )

    def elsewhere(self, recorded: Mapping[int, str]) -> Iterator[tuple[str, str]]:
        """(name, device of ours) for everything that shows one of these and is not ours."""
        for name in self._mapper.names():
            info = self._mapper.info(name)
            if info is None or info.uuid.startswith(self._prefix):
                continue
            try:
                targets = self._mapper.table(name)
            except MapperError:
                continue  # taken away meanwhile
            for target in targets:
                shown = shown_thin(target, self._pool.numbers)
                if shown is not None and shown in recorded:
                    yield name, recorded[shown]

    def wrong(self, info: Info, identity: Identity | None) -> str:
        """How a device that is shown differs from its record; empty if it does not, or has none."""
        if identity is None or not info.has_table or info.uuid != self._uuid(identity):
            return ""
        return self._wrong_table(identity, info)

    def renamed(self, info: Info, recorded: Mapping[int, str]) -> str:
        """The name of a recorded device that is shown by another name than its own; empty if it is not one."""
        number = info.uuid.removeprefix(self._prefix)
        name = recorded.get(int(number), "") if number.isdecimal() else ""
        return name if name != info.name else ""

    def busy(self, name: str, identity: Identity | None) -> bool:
        """Has anybody open what is shown by this name, or as this device?"""
        found = [self._mapper.info(name)]
        if identity is not None:
            found.append(self._mapper.find(self._uuid(identity)))
        return any(info is not None and info.open_count > 0 for info in found)

    def resume_all(self) -> None:
        """Whoever touches a suspended device hangs: none of ours is left so."""
        for info in self.ours():
            if info.suspended and info.has_table:
                log.warning("%s was left suspended", info.name)
                with going_on(info.name):
                    self._mapper.resume(info.name)

    # --- for a moment ---

    @contextmanager
    def looked_at(self, identity: Identity) -> Iterator[str]:
        """A node to read from: its own if it is active, else one that nothing can be written to."""
        info = self.active(identity)
        if info is not None:
            if info.suspended:
                self._mapper.resume(identity.name)  # whoever reads from it would hang
            if self._mapper.has_node(info):
                yield str(NODES / identity.name)
                return
        with self._passing_by(identity, read_only=True) as node:
            yield node

    @contextmanager
    def looked_through(self, identity: Identity) -> Iterator[tuple[int, str]]:
        """(descriptor, name) of a directory with its content, for us alone; not even its journal is written to."""
        name = f"{LOOK}{this_process()}-{threading.get_ident()}"
        make_private(self._home)
        (self._home / name).mkdir(mode=0o700, exist_ok=True)
        parent = os.open(self._home, DIRECTORY)
        try:
            with self._passing_by(identity, read_only=True) as node:
                mount_device(node, self._home / name, read_only=True, options="noload")
                try:
                    yield parent, name
                finally:
                    _unmount_look(str(self._home / name))
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)

    def discard(self, identity: Identity) -> None:
        """Tell the disk below that nothing in it is needed: deleting alone frees nothing there. As far as it goes."""
        deadline = time.monotonic() + DISCARD_PATIENCE
        try:
            if not takes_discards(self._pool.record.data.open()):
                return
            with self._passing_by(identity, read_only=False) as node:
                descriptor = os.open(node, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    for start in range(0, identity.size, DISCARD_PIECE):
                        if time.monotonic() >= deadline:
                            log.info("%s was trimmed up to byte %d only: the disk is slow", identity.name, start)
                            break
                        length = min(DISCARD_PIECE, identity.size - start)
                        fcntl.ioctl(descriptor, DISCARD, struct.pack("=QQ", start, length))
                finally:
                    os.close(descriptor)
        except (OSError, ImageError) as error:
            log.info("%s was not trimmed: %s", identity.name, error)

    def remove_dead(self) -> int:
        """Take away what processes that are gone had shown for a moment; how much there was."""
        count = 0
        for info in self.ours():
            if not self.is_abandoned(info):
                continue
            with going_on(info.name):
                self._end_passing(info)
                count += 1
        for point in self._home.glob(f"{LOOK}*"):
            if not is_alive(point.name.removeprefix(LOOK).rpartition("-")[0]):
                with going_on(str(point)):
                    point.rmdir()
        return count

    # --- inside ---

    def _uuid(self, identity: Identity) -> str:
        return f"{self._prefix}{identity.id}"

    @contextmanager
    def _passing_by(self, identity: Identity, *, read_only: bool) -> Iterator[str]:
        whose = f"look-{this_process()}-{threading.get_ident()}"
        name = f"{self._pool.record.name}-{whose}"
        if (left := self._mapper.info(name)) is not None:
            self._end_passing(left)  # somebody was in it when this thread had looked before
        info = self._create(name, f"{self._prefix}{whose}", identity, read_only=read_only)
        try:
            yield str(NODES / name)
        finally:
            self._take_away(name, info)

    def _end_passing(self, info: Info) -> None:
        for mount in reversed([mount for mount in mounts() if mount.device == info.numbers]):
            _unmount_look(mount.point)
        self._take_away(info.name, info)

    def _create(self, name: str, uuid: str, identity: Identity, *, read_only: bool = False) -> Info:
        target = thin_target(self._pool.numbers, identity.id, identity.size)
        try:
            return self._mapper.create(name, uuid, target, read_only=read_only)
        except MapperError as error:
            raise self._meaning(error, name, identity) from error

    def _meaning(self, error: MapperError, name: str, identity: Identity) -> ImageError:
        if error.code == errno.ENODATA:
            return DeviceLost(
                f"the pool has no device {identity.id}: {identity.name} was deleted behind our back", hint=AGAIN
            )
        if error.code == errno.EBUSY:
            return DeviceBusy(f"{name} is being shown by another: {error}", hint="it will be tried again")
        return self._pool.explained(error)

    def _take_away(self, name: str, info: Info) -> None:
        patiently(
            lambda: self._mapper.remove(name), self._patience, lambda: f"{name} is in use: {holders_of(info.numbers)}"
        )


def _unmount_look(point: str) -> None:
    try:
        unmount_point(point)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        raise DeviceBusy(f"somebody is in {point}", hint="it will be tried again") from error


@contextmanager
def going_on(what: str) -> Iterator[None]:
    """What cannot be removed now is found by the next look, and is no reason to leave the rest."""
    try:
        yield
    except (ImageError, OSError) as error:
        log.log(INFO if isinstance(error, DeviceBusy) else WARNING, "%s stays: %s", what, error)


# --- What is in a thin device: its file system, mounted to be written to, finished, and digested --------

LOST_AND_FOUND = "lost+found"
DAMAGED = (errno.EBADMSG, errno.EUCLEAN, errno.EINVAL)
"""What ext4 says of checksums and structures that are wrong, and a mount of what is none any more."""


class Content:
    """The file systems in the devices of a registry."""

    def __init__(self, records: MountedRegistry, showing: Activation) -> None:
        self._records = records
        self._showing = showing

    def mount(self, identity: Identity, node: str) -> Path:
        """On a place of this process; nothing happens if it is there."""
        point = self._records.point_of(identity.name)
        if not any(mount.point == str(point) for mount in self._records.mounts_of(identity.name)):
            self._mount(identity.name, node, point)
        if identity.state is State.MADE:
            try:
                (point / LOST_AND_FOUND).rmdir()
            except OSError:
                pass  # removed before, or the image has brought its own, with something in it
        return point

    def _mount(self, name: str, node: str, point: Path, *, read_only: bool = False) -> None:
        make_private(self._records.home)
        point.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            mount_device(node, point, read_only=read_only, options="noinit_itable")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Whoever has sealed it, and was killed or cut off before it was recorded, has it mounted read-only.
            self._records.unmount(name)
            mount_device(node, point, read_only=read_only, options="noinit_itable")

    def finish(self, identity: Identity, node: str) -> tuple[str, Usage]:
        """Everything in it is on disk, and it is mounted read-only; its digest, and how much it is.

        Nobody writes to what is digested, nor after that: it is unmounted as it is.
        """
        point = self._records.point_of(identity.name)
        if identity.state is State.MADE:
            self.mount(identity, node)
            try:
                # e2fsck wants one; the image was given a root without it.
                (point / LOST_AND_FOUND).mkdir(mode=0o700, exist_ok=True)
                sync_file_system(point)
            finally:
                self._records.unmount(identity.name)
            self._records.refuse_mounted(identity.name)
            # Unmounting writes, too; and the pool keeps what it was given in memory until it is told to flush.
            sync_block_device(node)
        self._mount(identity.name, node, point, read_only=True)
        with _opened(point.parent) as parent:
            return manifest_of(parent, point.name)

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
