"""The thin pool that all devices share: made once, found again after every reboot, looked after.

Its mark (the transaction id, drawn at random) is in the record and in the metadata, so those of another pool are not
taken for ours. Nothing of ours is on the data's disk: that one is known by what it calls itself, or by its size.
"""

from __future__ import annotations

import errno
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast_images.devices import block_device as loops
from holdfast_images.devices.block_device import disk_at
from holdfast_images.devices.dm_control import DeviceMapper, MapperError, patiently
from holdfast_images.devices.dm_table import (
    MOST_METADATA,
    SECTOR,
    Mode,
    Target,
    ThinPoolStatus,
    ThinPoolTable,
    log,
    parse_thin_pool_status,
    parse_thin_pool_table,
    run,
    shown_thin,
    thin_pool_target,
    thin_target,
    valid_thin_id,
)
from holdfast_images.devices.lock import this_process
from holdfast_images.devices.pool_record import (
    METADATA_BLOCK,
    PoolRecord,
    WrongFile,
    alone,
    blocks_of,
    grow_files,
    is_begun,
    judge_pool,
    lacks_metadata,
    new_record,
    read_record,
    read_superblock,
    refuse_cut_off,
    refuse_used,
    unusable,
    wipe_superblock,
    write_record,
    wrong_files,
)
from holdfast_images.devices.protocol import PoolStatus
from holdfast_images.errors import DeviceBusy, ImageError, InvalidName, NoSpace, PoolUnusable

POOL_NAME = "holdfast-pool"

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ThinPool:
    """One pool, in use."""

    def __init__(self, root: Path, record: PoolRecord, mapper: DeviceMapper) -> None:
        self._root = root
        self.record = record
        self.mapper = mapper
        self.prefix = f"HOLDFAST-{record.mark:016x}-"
        """Of the UUIDs of all its devices."""
        self.uuid = f"{self.prefix}pool"
        """The device mapper's name for it; LVM and multipath leave alone what they have not named."""

    # --- making and finding ---

    @classmethod
    def create(
        cls,
        root: str | Path,
        *,
        name: str = POOL_NAME,
        size: int = 0,
        metadata: str | None = None,
        data: str | None = None,
        low_water_bytes: int | None = None,
        force: bool = False,
    ) -> ThinPool:
        """A new pool: on two given block devices, or on files of `size` bytes below `root`.

        What holds anything is refused, unless `force`. Crash: to be repeated, and then goes on.
        """
        root = Path(root).absolute()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _NAME.fullmatch(name):
            raise InvalidName(f"{name!r} is no pool name", hint="letters, digits, '.', '_' and '-'")
        with alone(root):
            there = read_record(root)
            if there is not None and there.ready:
                raise PoolUnusable(f"there is a pool at {root}: {there.name}", hint="pool status, pool extend")
            mapper = DeviceMapper()  # before any file is made: without one there will be no pool
            if there is not None and not is_begun(there, name, size, metadata, data):
                # What came to nothing, for its disks were too small or in use, does not decide over what comes after.
                if (begun := mapper.find(cls(root, there, mapper).uuid)) is not None:
                    mapper.remove(begun.name)
                there = None
            record = there or new_record(root, name, size, metadata, data, low_water_bytes)
            pool = cls(root, record, mapper)
            if pool.mapper.info(record.name) is None:
                # Looked at again when it is repeated: a path may lead to another disk by then.
                refuse_used(record, repeated=there is not None, force=force)
                write_record(root, record)
                wipe_superblock(record.metadata.open())
            pool._start()
            pool._mark()
            write_record(root, msgspec.structs.replace(record, ready=True))
        return cls.open(root)

    @classmethod
    def open(cls, root: str | Path) -> ThinPool:
        """The pool that is recorded at `root`, put to use if it is not. Raises PoolUnusable.

        Crash: to be repeated.
        """
        root = Path(root).absolute()
        record = read_record(root)
        if record is None or not record.ready:
            raise PoolUnusable(f"there is no pool at {root}", hint="make one: holdfast pool create")
        pool = cls(root, record, DeviceMapper())
        with alone(root):
            pool._start()
        pool._refuse_strange()
        return pool

    def _start(self) -> None:
        """Have the kernel show the pool, unless it does."""
        info = self.mapper.info(self.record.name)
        if info is None and (renamed := self.mapper.find(self.uuid)) is not None:
            log.warning("pool %s was renamed to %s: it gets its name back", self.record.name, renamed.name)
            self.mapper.rename(renamed.name, self.record.name)
            info = self.mapper.info(self.record.name)
        if info is not None and info.uuid != self.uuid:
            raise PoolUnusable(
                f"{self.record.name} is another device mapper device", hint=f"dmsetup info {self.record.name}"
            )
        if info is not None and not info.has_table:
            self.mapper.remove(self.record.name)
            info = None
        if info is None:
            self._refuse_wrong_disks()
            try:
                self.mapper.create(self.record.name, self.uuid, self._target(), node=True)
            except MapperError as error:
                raise PoolUnusable(f"pool {self.record.name} cannot be started: {error}", hint="dmesg") from error
            return
        if all(target.kind == "error" for target in self.mapper.table(self.record.name)):
            log.warning("pool %s was wiped (dmsetup wipe_table), and gets its table again", self.record.name)
            self.mapper.load(self.record.name, self._target())
            self.mapper.resume(self.record.name)
        elif info.suspended:
            # Left by a crash while it was being extended: whoever touches a device of it hangs.
            self.mapper.resume(self.record.name)
        self.mapper.ensure_node(info)

    def _refuse_wrong_disks(self) -> None:
        """Before the kernel writes to them."""
        record = self.record
        record.data.refuse_other_disk()
        node = record.metadata.open()
        superblock = read_superblock(node)
        if superblock is None and not record.ready:
            return
        if superblock is None:
            raise PoolUnusable(f"there is no pool on {node}", hint=f"check where {record.metadata.path} leads to now")
        if record.ready and (superblock.transaction_id, superblock.block_sectors) != (
            record.mark,
            record.block_sectors,
        ):
            raise PoolUnusable(
                f"the pool on {node} is not the recorded one: its mark is {superblock.transaction_id:#x}, not "
                f"{record.mark:#x}",
                hint="a disk was exchanged or restored from another pool; nothing was changed",
            )
        if record.ready:
            refuse_cut_off(record, superblock)
        if superblock.needs_check:
            raise PoolUnusable(
                f"the metadata of pool {record.name} must be checked before it can be used",
                hint="holdfast pool check --repair",
            )

    def _refuse_strange(self) -> None:
        """What runs under our name must be what we would have started."""
        table = self.table()
        if "skip_block_zeroing" in table.features:
            raise PoolUnusable(
                f"pool {self.record.name} does not zero its blocks: a new device would show what a deleted one held",
                hint="remove it and start again: dmsetup remove",
            )
        status = self.status()
        if status.mode is not Mode.FAIL and not status.error_if_no_space:
            raise PoolUnusable(
                f"pool {self.record.name} lets writers hang when it is full, instead of failing them",
                hint="remove it and start again: dmsetup remove",
            )
        if status.mode is not Mode.FAIL and status.transaction_id != self.record.mark:
            raise PoolUnusable(f"pool {self.record.name} has another mark: {status.transaction_id:#x}")

    def table(self) -> ThinPoolTable:
        """What it is made of at the moment."""
        [target] = self.mapper.table(self.record.name)
        return parse_thin_pool_table(target)

    def _target(self) -> Target:
        return thin_pool_target(
            self.record.metadata.open(),
            (node := self.record.data.open()),
            disk_at(node).size // SECTOR,
            block_sectors=self.record.block_sectors,
            low_water_blocks=self.record.low_water_bytes // (self.record.block_sectors * SECTOR),
        )

    def _mark(self) -> None:
        status = self.status()
        if status.transaction_id != self.record.mark:
            self.mapper.message(self.record.name, f"set_transaction_id {status.transaction_id} {self.record.mark}")
        if self.status().transaction_id != self.record.mark:
            raise PoolUnusable(f"pool {self.record.name} did not take its mark", hint="see the kernel's log: dmesg")

    def stop(self) -> None:
        """Take the pool and its loop devices away; what it holds stays. Raises MapperError EBUSY while it is used."""
        self.mapper.remove(self.record.name)
        for backing in (self.record.metadata, self.record.data):
            if backing.is_file:
                loops.detach(Path(backing.path))

    # --- looking ---

    @property
    def numbers(self) -> str:
        """Its major:minor, as tables of its devices name it."""
        return self._put_to_use(lambda: self.mapper.numbers(self.record.name))

    def status(self) -> ThinPoolStatus:
        """What the kernel says of it, without a flush."""
        [target] = self._put_to_use(lambda: self.mapper.status(self.record.name))
        return parse_thin_pool_status(target.text)

    def _put_to_use(self, call: Callable[[], T]) -> T:
        """The answer of the pool, which is started again if somebody has taken it away, as a check of it does."""
        try:
            return call()
        except MapperError as error:
            if error.code != errno.ENXIO:
                raise
        with alone(self._root):
            there = read_record(self._root)
            if there is not None and there.mark == self.record.mark:
                self.record = there  # another process may have extended it
            self._start()
        return call()

    def room(self) -> PoolStatus:
        """How much of it is left."""
        status = self.status()
        used = status.used_data_blocks * self.record.block_sectors * SECTOR
        wrong = next(self._wrong_files(status), None)
        return judge_pool(status, self.record, self.record.data.room_below(used), wrong.error if wrong else None)

    def wrong_files(self) -> list[WrongFile]:
        """What it lies on that was removed, replaced or cut off while it is in use."""
        return list(self._wrong_files(self.status()))

    def _wrong_files(self, status: ThinPoolStatus) -> Iterator[WrongFile]:
        if self.record.metadata.is_file:
            yield from wrong_files(self.record, self.table(), status)

    def holds(self, thin_id: int) -> bool:
        """Is there a device of this id? Nothing is shown, and nothing changed."""
        whose = f"probe-{this_process()}-{threading.get_ident()}"
        try:
            self.mapper.probe(
                f"{self.record.name}-{whose}", f"{self.prefix}{whose}", thin_target(self.numbers, thin_id, SECTOR)
            )
        except MapperError as error:
            if error.code in (errno.ENODATA, errno.ENOENT):
                return False
            raise self.explained(error) from error
        return True

    def ids(self) -> list[int]:
        """Every device in the pool, whoever made it; read from a frozen copy of its metadata, so in the midst of work.

        Raises PoolUnusable if no copy can be made, as in a pool that is read-only.
        Crash: the copy stays, and the next call replaces it.
        """
        for wrong in self._wrong_files(self.status()):  # which puts it to use, if it is not
            raise wrong.error
        try:
            with alone(self._root):
                return self._listed()
        except MapperError as error:
            raise self.explained(error) from error

    def _listed(self) -> list[int]:
        name = self.record.name
        [target] = self.mapper.status(name)
        status = parse_thin_pool_status(target.text)
        if lacks_metadata(status):
            # The copy takes some of what is left, and a pool without any is read-only.
            raise PoolUnusable(f"pool {name} cannot list its devices: {blocks_of(status)}", hint="holdfast pool extend")
        if status.held_root is not None:
            self.mapper.message(name, "release_metadata_snap")
        self.mapper.message(name, "reserve_metadata_snap")
        try:
            node = self.record.metadata.open()
            answer = run("thin_ls", "--metadata-snap", "--no-headers", "--format", "DEV", node)
        finally:
            self.mapper.message(name, "release_metadata_snap")
        return sorted(int(word) for word in answer.output.split())

    # --- its devices ---

    def create_thin(self, thin_id: int) -> bool:
        """A new device, all zeros. False if the id is in use. Raises NoSpace, PoolUnusable. Crash: there or not."""
        return self._make(f"create_thin {valid_thin_id(thin_id)}")

    def create_snap(self, thin_id: int, origin: int) -> bool:
        """A copy of an inactive device. False if the id is in use.

        Of an active one that is written to the copy would be torn, and the kernel does not refuse it: the caller does.
        """
        return self._make(f"create_snap {valid_thin_id(thin_id)} {valid_thin_id(origin)}")

    def _make(self, text: str) -> bool:
        try:
            self._tell(text)
        except MapperError as error:
            if error.code == errno.EEXIST:
                return False
            raise self.explained(error) from error
        self.refuse_unwritable()
        return True

    def delete(self, thin_id: int, *, patience: float = 0.0) -> None:
        """Nothing happens if there is none. Raises DeviceBusy while it is shown, PoolUnusable. Crash: there or not."""
        text = f"delete {valid_thin_id(thin_id)}"
        try:
            patiently(
                lambda: self._tell(text),
                patience,
                lambda: f"device {thin_id} of pool {self.record.name} is shown as {self._shown_as(thin_id)}",
            )
        except MapperError as error:
            if error.code == errno.ENODATA:
                return
            raise self.explained(error) from error
        self.refuse_unwritable()

    def _tell(self, text: str) -> None:
        self._put_to_use(lambda: self.mapper.message(self.record.name, text))

    def _shown_as(self, thin_id: int) -> str:
        return " and ".join(self.names_of(thin_id)) or "something that has just gone"

    def refuse_unwritable(self) -> None:
        """Raise PoolUnusable if nothing can be made or deleted in it.

        The kernel writes the metadata at once, but does not say whether it could.
        """
        status = self.status()
        if status.mode is Mode.FAIL or status.mode is Mode.READ_ONLY or status.needs_check:
            raise unusable(self.record.name, status)
        for wrong in self._wrong_files(status):
            raise wrong.error

    def names_of(self, thin_id: int) -> list[str]:
        """Every mapped device that shows this one, whoever has made it."""
        found, pool = [], self.numbers
        for name in self.mapper.names():
            try:
                found += [name for target in self.mapper.table(name) if shown_thin(target, pool) == thin_id]
            except MapperError:
                continue  # taken away meanwhile
        return found

    def explained(self, error: MapperError) -> ImageError:
        """A pool that cannot be written to answers everything with EINVAL or EOPNOTSUPP: that is not our argument's."""
        if error.code not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EIO, errno.ENOSPC):
            return error
        if (info := self.mapper.info(self.record.name)) is not None and info.suspended:
            with alone(self._root):  # whoever extends it at the moment has resumed it by then
                self._start()
            return DeviceBusy(f"pool {self.record.name} was suspended", hint="it was resumed, and is tried again")
        status = self.status()
        if status.mode is Mode.OUT_OF_DATA_SPACE or error.code == errno.ENOSPC:
            return NoSpace(
                f"pool {self.record.name} is full: {blocks_of(status)}", hint="holdfast gc, or holdfast pool extend"
            )
        if status.mode is not Mode.WRITE or status.needs_check:
            return unusable(self.record.name, status)
        return error

    # --- maintenance ---

    def extend(self, size: int | None = None) -> PoolStatus:
        """Give it more room, while it is used: files grow to `size`, of block devices one must have grown by itself.

        Crash: the old size or the new; a pool that was left suspended is resumed when it is next opened.
        """
        status = self.status()
        if status.needs_check or status.mode is Mode.FAIL:
            raise unusable(self.record.name, status)
        for wrong in self._wrong_files(status):
            raise wrong.error
        with alone(self._root):
            self._extend(status, size)
        self.refuse_unwritable()
        return self.room()

    def _extend(self, status: ThinPoolStatus, size: int | None) -> None:
        grow_files(self.record, status, size)
        target = self._target()
        present = status.total_data_blocks * self.record.block_sectors
        metadata_blocks = min(disk_at(self.record.metadata.open()).size, MOST_METADATA) // METADATA_BLOCK
        if target.length < present or (target.length == present and metadata_blocks <= status.total_metadata_blocks):
            if status.mode is Mode.READ_ONLY and not lacks_metadata(status):
                raise unusable(self.record.name, status)
            raise NoSpace(
                f"neither {self.record.data.path} nor {self.record.metadata.path} has grown: "
                f"{target.length * SECTOR} and {metadata_blocks * METADATA_BLOCK} bytes",
                hint=f"data grow in units of {self.record.block_sectors * SECTOR} bytes",
            )
        data, metadata = self.record.data.looked_at_again(), self.record.metadata.looked_at_again()
        self.record = msgspec.structs.replace(self.record, data=data, metadata=metadata)
        write_record(self._root, self.record)
        self.mapper.load(self.record.name, target)
        self.mapper.suspend(self.record.name)
        self.mapper.resume(self.record.name)
