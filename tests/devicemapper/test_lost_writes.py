"""What was promised is on the disks: from then on they may lose every write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices.block_device import disk_at
from holdfast_images.devices.consistency import check_metadata
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Target
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import DeviceLost
from tests.devicemapper.pools import DATA, METADATA, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)


class Disks:
    """The two disks of a pool, which can be told to lose what is written to them."""

    def __init__(self) -> None:
        self._mapper = DeviceMapper()
        self._disks = {"flaky-metadata": METADATA, "flaky-data": DATA}
        for name, disk in self._disks.items():
            self._mapper.create(name, name, self._target(disk, "3600 0"))

    def lose_writes(self) -> None:
        """From now on."""
        for name, disk in self._disks.items():
            self._change(name, self._target(disk, "0 3600 1 drop_writes"))

    def power_on(self, pool: str) -> None:
        """As after a power cut: the kernel knows nothing, and the disks have what they have kept."""
        for name in self._mapper.names():
            if name not in self._disks and name != pool:
                self._mapper.remove(name)
        self._mapper.remove(pool)
        for name, disk in self._disks.items():
            self._change(name, self._target(disk, "3600 0"))

    def _change(self, name: str, target: Target) -> None:
        self._mapper.load(name, target)
        self._mapper.suspend(name)
        self._mapper.resume(name)

    def _target(self, disk: str, how: str) -> Target:
        return Target(0, disk_at(disk).size // SECTOR, "flakey", f"{disk} 0 {how}")


@pytest.fixture
def disks() -> Iterator[Disks]:
    remove_everything()
    yield Disks()
    remove_everything()


@pytest.fixture
def devices(disks: Disks, tmp_path: Path) -> DeviceMapperDevices:
    ThinPool.create(
        tmp_path, metadata="/dev/mapper/flaky-metadata", data="/dev/mapper/flaky-data", low_water_bytes=0, force=True
    )
    return DeviceMapperDevices.open(tmp_path)


def test_a_sealed_device_and_its_snapshot_need_no_write_that_comes_later(
    disks: Disks, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    devices.create(SMALL)
    fill(devices.mount(SMALL), 100)
    usage = devices.seal(SMALL)
    devices.snapshot(SMALL, SNAPSHOT)
    disks.lose_writes()
    devices.thin_pool.create_thin(99)  # answered with success, and lost
    disks.power_on(devices.thin_pool.record.name)
    checked = check_metadata(tmp_path)
    again = DeviceMapperDevices.open(tmp_path)
    again.activate(SNAPSHOT)
    again.verify(SMALL, deep=True)
    again.verify(SNAPSHOT, deep=True)

    assert checked.status == 0
    assert again.usage(SMALL) == usage
    assert again.thin_pool.ids() == sorted([SMALL.id, SNAPSHOT.id])


def test_what_was_not_sealed_before_is_not_believed_after(
    disks: Disks, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    devices.create(SMALL)
    point = devices.mount(SMALL)
    disks.lose_writes()
    fill(point, 100)
    devices.seal(SMALL)  # the disks have said that all of it is kept
    disks.power_on(devices.thin_pool.record.name)
    again = DeviceMapperDevices.open(tmp_path)

    with pytest.raises(DeviceLost, match="is not as it was sealed"):
        again.verify(SMALL, deep=True)
