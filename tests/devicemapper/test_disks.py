"""Disks that have changed places, or are somebody else's: nothing is written to them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices.block_device import disk_at, refuse_in_use
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Target
from holdfast_images.devices.pool_record import read_record, write_record
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import InvalidName, PoolUnusable
from tests.devicemapper.pools import DATA, METADATA, remove_everything

HALF = 256 << 20
LENGTH = 1 << 20
LETTER = b"a letter of somebody else" * 40
Loop = Callable[..., str]


class Cabinet:
    """Disks with names of their own, at paths that are dealt out anew."""

    def __init__(self) -> None:
        self._mapper = DeviceMapper()

    def put(self, path: str, serial: str, disk: str, *, start: int = 0, size: int) -> str:
        """A piece of a disk of the guest, as a disk that calls itself `serial`."""
        self._mapper.remove(path)
        self._mapper.create(path, serial, Target(0, size // SECTOR, "linear", f"{disk} {start // SECTOR}"))
        return f"/dev/mapper/{path}"


@pytest.fixture
def cabinet() -> Iterator[Cabinet]:
    remove_everything()
    for disk in (METADATA, DATA):
        with open(disk, "r+b") as file:
            file.write(bytes(LENGTH))
            file.seek(HALF if disk == DATA else 8 << 20)
            file.write(bytes(LENGTH))
    yield Cabinet()
    remove_everything()


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(LENGTH)


def write(path: str, text: bytes) -> None:
    with open(path, "r+b") as file:
        file.write(text)


def test_a_pool_does_not_start_on_a_data_disk_that_has_the_path_of_ours(cabinet: Cabinet, tmp_path: Path) -> None:
    metadata = cabinet.put("sdb", "serial-1", METADATA, size=8 << 20)
    data = cabinet.put("sdc", "serial-2", DATA, size=HALF)
    pool = ThinPool.create(tmp_path, metadata=metadata, data=data)
    pool.stop()
    cabinet.put("sdc", "serial-3", DATA, start=HALF, size=HALF)
    with pytest.raises(PoolUnusable, match="not the disk that the pool was made on"):
        ThinPool.open(tmp_path)
    started = pool.mapper.info(pool.record.name)
    cabinet.put("sdc", "serial-2", DATA, size=HALF)
    again = ThinPool.open(tmp_path)

    assert started is None
    assert again.status().transaction_id == pool.record.mark


def test_a_making_that_is_repeated_wipes_nothing_of_others(cabinet: Cabinet, tmp_path: Path) -> None:
    metadata = cabinet.put("sdb", "serial-1", METADATA, size=8 << 20)
    data = cabinet.put("sdc", "serial-2", DATA, size=HALF)
    pool = ThinPool.create(tmp_path, metadata=metadata, data=data)
    pool.stop()
    write_record(tmp_path, msgspec.structs.replace(pool.record, ready=False))  # as a crash would have left it
    cabinet.put("sdb", "serial-4", METADATA, start=8 << 20, size=8 << 20)
    write(metadata, LETTER)
    with pytest.raises(PoolUnusable, match="not the disk that the pool was made on"):
        ThinPool.create(tmp_path, metadata=metadata, data=data)
    other = read(metadata)
    cabinet.put("sdb", "serial-1", METADATA, size=8 << 20)
    again = ThinPool.create(tmp_path, metadata=metadata, data=data)

    assert other.startswith(LETTER)
    assert again.status().transaction_id == pool.record.mark


def test_a_making_that_is_repeated_wipes_nothing_that_was_put_there_meanwhile(cabinet: Cabinet, tmp_path: Path) -> None:
    metadata = cabinet.put("sdb", "serial-1", METADATA, size=8 << 20)
    data = cabinet.put("sdc", "serial-2", DATA, size=HALF)
    pool = ThinPool.create(tmp_path, metadata=metadata, data=data)
    pool.stop()
    write_record(tmp_path, msgspec.structs.replace(pool.record, ready=False))
    write(metadata, LETTER)

    with pytest.raises(PoolUnusable, match="holds something already"):
        ThinPool.create(tmp_path, metadata=metadata, data=data)
    assert read(metadata).startswith(LETTER)


def test_a_disk_without_a_name_is_known_by_its_size(cabinet: Cabinet, tmp_path: Path) -> None:
    pool = ThinPool.create(tmp_path, metadata=METADATA, data=DATA)
    pool.stop()
    record = read_record(tmp_path)
    assert record is not None
    nameless = msgspec.structs.replace(disk_at(DATA), name="")
    backing = msgspec.structs.replace(record.data, disk=msgspec.structs.replace(nameless, size=HALF))
    write_record(tmp_path, msgspec.structs.replace(record, data=backing))
    with pytest.raises(PoolUnusable, match="not the disk that the pool was made on"):
        ThinPool.open(tmp_path)
    backing = msgspec.structs.replace(record.data, disk=nameless)
    write_record(tmp_path, msgspec.structs.replace(record, data=backing))
    again = ThinPool.open(tmp_path)

    assert record.data.disk == disk_at(DATA)
    assert again.status().transaction_id == record.mark


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = []

    def loop(path: Path | str, size: int = 0) -> str:
        if size:
            with open(path, "wb") as file:
                file.truncate(size)
        command = ["losetup", "--find", "--show", str(path)]
        made.append(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
        return made[-1]

    remove_everything()
    yield loop
    remove_everything()
    for node in reversed(made):
        subprocess.run(["losetup", "--detach", node], check=False)


def test_a_disk_that_is_used_by_another_name_is_not_taken(loop: Loop, tmp_path: Path) -> None:
    metadata, other = loop(tmp_path / "m1", 4 << 20), loop(tmp_path / "m2", 4 << 20)
    data, third = loop(tmp_path / "data", 64 << 20), loop(tmp_path / "third", 64 << 20)
    above_third = loop(third)
    ThinPool.create(tmp_path / "one", name="one", metadata=metadata, data=data)
    (tmp_path / "link").hardlink_to(tmp_path / "data")
    above, linked = loop(data), loop(tmp_path / "link")

    for disk, why in (
        (data, "mounted, or a part"),
        (linked, f"shows the same file as {data}"),
        (above, f"shows {data}, which is in use"),
        (third, f"{above_third} shows it"),
    ):
        with pytest.raises(PoolUnusable, match=why):
            refuse_in_use(disk, patience=0)
        with pytest.raises(PoolUnusable, match=why):
            ThinPool.create(tmp_path / "two", name="two", metadata=other, data=disk, force=True)


def test_a_disk_that_a_process_has_open_is_not_taken(loop: Loop, tmp_path: Path) -> None:
    metadata, data = loop(tmp_path / "m", 4 << 20), loop(tmp_path / "data", 64 << 20)
    command = [sys.executable, "-c", f"file = open({data!r}, 'r+b'); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(PoolUnusable, match=f"process {process.pid} .* has it open"):
            refuse_in_use(data, patience=0)
        process.kill()

    ThinPool.create(tmp_path / "one", metadata=metadata, data=data)


def test_a_making_that_came_to_nothing_decides_nothing_for_the_next(loop: Loop, tmp_path: Path) -> None:
    metadata, data = loop(tmp_path / "m", 4 << 20), loop(tmp_path / "data", 64 << 20)
    for pair in ((loop(tmp_path / "m0", 64 << 10), data), (metadata, loop(tmp_path / "d0", 64 << 10))):
        with pytest.raises(InvalidName, match="too small for a pool"):
            ThinPool.create(tmp_path / "state", metadata=pair[0], data=pair[1])
    begun = ThinPool.create(tmp_path / "state", name="first", metadata=metadata, data=data)
    write_record(tmp_path / "state", msgspec.structs.replace(begun.record, ready=False))
    pool = ThinPool.create(tmp_path / "state", name="second", metadata=metadata, data=data, force=True)

    assert (pool.record.name, pool.mapper.info("first")) == ("second", None)
