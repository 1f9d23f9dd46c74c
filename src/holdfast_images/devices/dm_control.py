"""The kernel's device mapper, through its control device. Errors are told as the dmsetup command that would fail alike.

A call takes well under a millisecond, where a dmsetup process takes a few; nothing waits for udev's cookies.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast_images.devices.dm_table import Target
from holdfast_images.errors import DeviceBusy, ImageError, PoolUnusable

if TYPE_CHECKING:
    from holdfast import ErrorRecord

log = logging.getLogger("holdfast_images.devices")

CONTROL = Path("/dev/mapper/control")
NODES = Path("/dev/mapper")
UDEV = Path("/run/udev/control")
NODE_PATIENCE = 5.0
PAUSE = 0.005

# struct dm_ioctl and struct dm_target_spec of linux/dm-ioctl.h, version 4: fixed-width, equal on all machines.
_HEADER = struct.Struct("=3I I I I i I I I Q 128s 129s 7x")
_TARGET = struct.Struct("=Q Q i I 16s")
_CREATE, _REMOVE, _RENAME, _SUSPEND, _INFO, _LOAD, _STATUS, _MESSAGE, _LIST = 3, 4, 5, 6, 7, 9, 12, 14, 2
_READ_ONLY, _SUSPENDED, _TABLE, _ACTIVE, _BUFFER_FULL, _NO_FREEZE, _NO_FLUSH = 1, 2, 16, 32, 256, 1024, 2048
_LEFT_ALONE = (0x02 | 0x04 | 0x08 | 0x40) << 16
"""For udev: make the node, and let no other rule look into what an image holds. No link by the UUID of its file system,
which is the same in all snapshots; no volume manager, no automatic mount."""
_BUFFER = 16384
_MOST_BUFFER = 64 << 20


class MapperError(ImageError):
    """The device mapper refused; `code` is the error number."""

    def __init__(self, code: int, command: str) -> None:
        super().__init__(f"{command}: {os.strerror(code)}")
        self.code = code
        self.command = command

    @property
    def facts(self) -> dict[str, object]:
        """For those who read errors by program."""
        return {"code": self.code, "command": self.command}

    @classmethod
    def from_record(cls, record: ErrorRecord) -> ImageError:
        """The same, of a job that has kept it as data."""
        code, command = record.facts.get("code"), record.facts.get("command")
        return cls(code, str(command)) if isinstance(code, int) else ImageError(record.message, hint=record.hint)


def patiently(call: Callable[[], None], patience: float, why: Callable[[], str]) -> None:
    """Repeat it while the kernel says EBUSY: udev and blkid open what is new, file systems are still being closed.

    Raises DeviceBusy after so many seconds, with `why`.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return call()
        except MapperError as error:
            if error.code != errno.EBUSY:
                raise
            if time.monotonic() >= deadline:
                raise DeviceBusy(why(), hint="unmount or close it; it will be tried again") from error
        time.sleep(PAUSE)


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of a mapped device."""

    name: str
    uuid: str
    major: int
    minor: int
    open_count: int
    suspended: bool
    has_table: bool
    read_only: bool = False

    @property
    def numbers(self) -> str:
        """As tables and mountinfo have it."""
        return f"{self.major}:{self.minor}"


class DeviceMapper:
    """Verbs of dmsetup."""

    def __init__(self) -> None:
        try:
            self._control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise ImageError(
                f"the device mapper cannot be used: {CONTROL}: {error.strerror}",
                hint="modprobe dm-thin-pool; be root; or use the backend directory",
            ) from error

    def close(self) -> None:
        """Give the control device up."""
        os.close(self._control)

    # --- looking ---

    def info(self, name: str) -> Info | None:
        """One device; None if there is none of this name."""
        try:
            header, _ = self._call(_INFO, name, f"dmsetup info {name}")
        except MapperError as error:
            if error.code == errno.ENXIO:
                return None
            raise
        return header

    def find(self, uuid: str) -> Info | None:
        """The device with this UUID, whatever name it has been given; None if there is none."""
        try:
            header, _ = self._call(_INFO, "", f"dmsetup info --uuid {uuid}", uuid=uuid)
        except MapperError as error:
            if error.code == errno.ENXIO:
                return None
            raise
        return header

    def numbers(self, name: str) -> str:
        """The major:minor of a device. Raises MapperError ENXIO if there is none."""
        header, _ = self._call(_INFO, name, f"dmsetup info {name}")
        return header.numbers

    def names(self) -> list[str]:
        """Every mapped device, ours or not."""
        _, data = self._call(_LIST, "", "dmsetup ls")
        names, at = [], 0
        # struct dm_name_list: device number, offset of the next entry, name; a number of 0 means that there is none.
        while len(data) >= at + 12:
            number, following = struct.unpack_from("=Q I", data, at)
            if number == 0:
                break
            names.append(_text(data[at + 12 :]))
            if following == 0:
                break
            at += following
        return names

    def table(self, name: str) -> list[Target]:
        """The table of a device, devices in it as major:minor."""
        return self._targets(name, _TABLE, f"dmsetup table {name}")

    def status(self, name: str) -> list[Target]:
        """Without a flush: that would write to a pool that is only asked how it is, and hang on a sick one."""
        return self._targets(name, _NO_FLUSH, f"dmsetup status --noflush {name}")

    # --- changing ---

    def create(self, name: str, uuid: str, target: Target, *, read_only: bool = False, node: bool = True) -> Info:
        """A new device with a table, in use at once, with its node. Crash: without a table, or without a node."""
        command = f"dmsetup create {name} --uuid {uuid} --table '{target}'{' --readonly' if read_only else ''}"
        flags = _READ_ONLY if read_only else 0
        self._call(_CREATE, name, command, uuid=uuid, flags=flags)
        try:
            self.load(name, target, read_only=read_only, command=command)
            info, _ = self._call(_SUSPEND, name, command, event=_LEFT_ALONE)
            if node:
                _make_node(info)
        except BaseException:
            self.remove(name)
            raise
        return info

    def probe(self, name: str, uuid: str, target: Target) -> None:
        """Would the device mapper take this table? Raises MapperError if not. Crash: a device without a table."""
        command = f"dmsetup create {name} --notable; dmsetup load {name} --table '{target}'"
        self._call(_CREATE, name, command, uuid=uuid, flags=_READ_ONLY)
        try:
            self.load(name, target, read_only=True, command=command)
        finally:
            self.remove(name)

    def load(self, name: str, target: Target, *, read_only: bool = False, command: str = "") -> None:
        """A table that `resume` will put in the place of the present one."""
        text = target.text.encode("ascii") + b"\0"
        length = (_TARGET.size + len(text) + 7) & ~7
        header = _TARGET.pack(target.start, target.length, 0, length, target.kind.encode("ascii"))
        self._call(
            _LOAD,
            name,
            command or f"dmsetup reload {name} --table '{target}'",
            payload=(header + text).ljust(length, b"\0"),
            targets=1,
            flags=_READ_ONLY if read_only else 0,
        )

    def suspend(self, name: str) -> None:
        """Hold back everything that is written to it, until it is resumed. Crash: it stays so."""
        self._call(_SUSPEND, name, f"dmsetup suspend {name}", flags=_SUSPENDED)

    def resume(self, name: str, *, at_once: bool = False) -> None:
        """Let it go on, with the table that was loaded last.

        `at_once`: the file system on it is not asked to write first what the table before would only fail.
        """
        flags = _NO_FREEZE | _NO_FLUSH if at_once else 0
        info, _ = self._call(_SUSPEND, name, f"dmsetup resume {name}", event=_LEFT_ALONE, flags=flags)
        _make_node(info)

    def rename(self, name: str, wanted: str) -> None:
        """Give a device another name, whoever has it open. Crash: the old one or the new."""
        payload = wanted.encode("ascii") + b"\0"
        self._call(_RENAME, name, f"dmsetup rename {name} {wanted}", payload=payload, event=_LEFT_ALONE)
        _remove_node(name)
        if (info := self.info(wanted)) is not None:
            _make_node(info)

    def ensure_node(self, info: Info) -> None:
        """Make the node of a device that is there, if somebody has removed it or a crash came before it."""
        if not _leads_to(NODES / info.name, info):
            _make_node(info)

    def has_node(self, info: Info) -> bool:
        """Does the path of a device lead to it?"""
        return _leads_to(NODES / info.name, info)

    def remove(self, name: str) -> None:
        """Take a device away; what it shows stays. Nothing happens if there is none. Raises MapperError EBUSY."""
        try:
            self._call(_REMOVE, name, f"dmsetup remove {name}")
        except MapperError as error:
            if error.code != errno.ENXIO:
                raise
        _remove_node(name)

    def message(self, name: str, text: str) -> None:
        """Tell a target something."""
        payload = struct.pack("=Q", 0) + text.encode("ascii") + b"\0"
        self._call(_MESSAGE, name, f"dmsetup message {name} 0 '{text}'", payload=payload)

    # --- inside ---

    def _targets(self, name: str, flags: int, command: str) -> list[Target]:
        header, data = self._call(_STATUS, name, command, flags=flags)
        targets: list[Target] = []
        at = 0
        while len(data) >= at + _TARGET.size and len(targets) < header.targets:
            start, length, _, following, kind = _TARGET.unpack_from(data, at)
            targets.append(Target(start, length, _text(kind), _text(data[at + _TARGET.size :])))
            at = following
        return targets

    def _call(
        self,
        number: int,
        name: str,
        command: str,
        *,
        uuid: str = "",
        payload: bytes = b"",
        targets: int = 0,
        flags: int = 0,
        event: int = 0,
    ) -> tuple[_Header, bytes]:
        size = max(_BUFFER, _HEADER.size + len(payload))
        while True:
            buffer = bytearray(size)
            names = os.fsencode(name), os.fsencode(uuid)  # others call theirs as they like
            _HEADER.pack_into(buffer, 0, 4, 0, 0, size, _HEADER.size, targets, 0, flags, event, 0, 0, *names)
            buffer[_HEADER.size : _HEADER.size + len(payload)] = payload
            begin = time.monotonic()
            try:
                fcntl.ioctl(self._control, 0xC0000000 | _HEADER.size << 16 | 0xFD00 | number, buffer)
            except OSError as error:
                log.info("%s: %s after %.4f s", command, error.strerror, time.monotonic() - begin)
                raise MapperError(error.errno or 0, command) from error
            log.debug("%s: done after %.4f s", command, time.monotonic() - begin)
            header = _header_of(buffer)
            if not header.buffer_full or size >= _MOST_BUFFER:
                return header, bytes(buffer[header.data_start : header.data_size])
            size *= 8


class _Header(Info, frozen=True, kw_only=True):
    targets: int
    data_start: int
    data_size: int
    buffer_full: bool


def _header_of(buffer: bytearray) -> _Header:
    fields = _HEADER.unpack_from(buffer)
    data_size, data_start, targets, open_count, flags = fields[3:8]
    number, name, uuid = fields[10:13]
    return _Header(
        name=_text(name),
        uuid=_text(uuid),
        # As the kernel's huge_encode_dev packs a device number.
        major=(number >> 8) & 0xFFF,
        minor=(number & 0xFF) | ((number >> 12) & 0xFFF00),
        open_count=open_count,
        suspended=bool(flags & _SUSPENDED),
        has_table=bool(flags & _ACTIVE),
        read_only=bool(flags & _READ_ONLY),
        targets=targets,
        data_start=data_start,
        data_size=data_size,
        buffer_full=bool(flags & _BUFFER_FULL),
    )


def _text(raw: bytes) -> str:
    return os.fsdecode(raw.split(b"\0", 1)[0])


def _make_node(info: Info) -> None:
    """Wait for udev to make the node; where there is no udev, or it does not, make what it would have made."""
    node = NODES / info.name
    deadline = time.monotonic() + (NODE_PATIENCE if UDEV.exists() else 0)
    while True:
        if _leads_to(node, info):
            return
        if time.monotonic() >= deadline:
            break
        time.sleep(PAUSE)
    aside = NODES / f".{info.name}.{os.getpid()}"
    aside.unlink(missing_ok=True)
    kernels = Path(f"/dev/dm-{info.minor}")
    if _leads_to(kernels, info):
        aside.symlink_to(f"../{kernels.name}")
    else:
        os.mknod(aside, 0o60600, os.makedev(info.major, info.minor))
    _clear_the_way(node)
    aside.replace(node)


def _clear_the_way(node: Path) -> None:
    """A directory is not replaced by a rename; one with something in it is somebody's."""
    if not node.is_dir() or node.is_symlink():
        return
    try:
        node.rmdir()
    except OSError as error:
        raise PoolUnusable(
            f"{node} is a directory: {error.strerror}", hint=f"move it away: mv {node} /root/"
        ) from error


def _leads_to(node: Path, info: Info) -> bool:
    try:
        number = node.stat().st_rdev
    except OSError:
        return False
    return (os.major(number), os.minor(number)) == (info.major, info.minor)


def _remove_node(name: str) -> None:
    """udev takes away what it has made; what is left, or was ours, goes."""
    deadline = time.monotonic() + (NODE_PATIENCE / 5 if UDEV.exists() else 0)
    node = NODES / name
    while os.path.lexists(node) and time.monotonic() < deadline:
        time.sleep(PAUSE)
    _clear_the_way(node)
    node.unlink(missing_ok=True)
