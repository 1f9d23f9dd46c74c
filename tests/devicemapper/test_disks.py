"""Disks that have changed places, or are somebody else's: nothing is written to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices.disks import disk_at
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Target
from holdfast_images.devices.pool_record import read_record, write_record
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import PoolUnusable
from tests.devicemapper.pools import DATA, METADATA, remove_everything

HALF = 256 << 20
LENGTH = 1 << 20
LETTER = b"a letter of somebody else" * 40


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
