"""Room for data and for metadata: told as it is, and refused before a pool is damaged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices import block_device
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Mode, Target
from holdfast_images.devices.protocol import Device, PoolHealth
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import NoSpace, PoolUnusable
from tests.devicemapper.pools import DATA, METADATA, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)
OTHER = Device(id=9, name="thin-9", uuid=ORIGIN.uuid, size=128 << 20)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()
    for file in tmp_path.glob("*.img"):
        block_device.detach(file)


def small_metadata(mapper: DeviceMapper, size: int) -> str:
    target = Target(0, size // SECTOR, "linear", f"{METADATA} 0")
    if mapper.info("small-metadata") is None:
        mapper.create("small-metadata", "small-metadata", target)
    else:
        mapper.load("small-metadata", target)
        mapper.suspend("small-metadata")
        mapper.resume("small-metadata")
    return "/dev/mapper/small-metadata"


def test_nothing_is_made_with_the_last_metadata_and_more_of_them_heal_it(root: Path) -> None:
    mapper = DeviceMapper()
    metadata = small_metadata(mapper, 2 << 20)
    pool = ThinPool.create(root, metadata=metadata, data=DATA, force=True)
    devices = DeviceMapperDevices.open(root)
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)
    for thin_id in range(10_000, 10_600):
        if pool.room().health not in (PoolHealth.OK, PoolHealth.LOW):
            break
        pool.create_thin(thin_id)  # each takes a block of metadata
    full = pool.room()
    with pytest.raises(NoSpace, match=r"metadata of pool .* is full"):
        devices.create(OTHER)
    with pytest.raises(NoSpace, match=r"metadata of pool .* is full"):
        devices.snapshot(SMALL, SNAPSHOT)
    with pytest.raises(NoSpace, match="has grown"):
        pool.extend()
    small_metadata(mapper, 4 << 20)
    extended = pool.extend()
    devices.snapshot(SMALL, SNAPSHOT)

    assert (full.health, extended.health) == (PoolHealth.FULL, PoolHealth.OK)
    assert pool.status().mode is Mode.WRITE
    assert pool.status().total_metadata_blocks == 1024
    devices.verify(SNAPSHOT, deep=True)


@pytest.fixture
def small_disk(root: Path) -> Iterator[Path]:
    place = root / "small-disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)], check=True)
    yield place
    remove_everything()
    for file in place.glob("*.img"):
        block_device.detach(file)
    subprocess.run(["umount", str(place)], check=True)


def test_a_pool_on_a_file_promises_no_more_than_the_disk_below_has(small_disk: Path) -> None:
    pool = ThinPool.create(small_disk, size=1 << 30, low_water_bytes=20 << 20)
    metadata = (small_disk / "pool-metadata.img").stat()
    first = pool.room()
    (small_disk / "another's").write_bytes(bytes(20 << 20))
    second = pool.room()

    assert metadata.st_blocks * 512 >= metadata.st_size, "there is room for all of it"
    assert first.health is PoolHealth.OK
    assert first.available_bytes < 40 << 20
    assert second.health is PoolHealth.LOW
    assert "bytes are left below" in second.detail
    assert second.available_bytes <= first.available_bytes - (20 << 20)


def test_a_pool_whose_metadata_do_not_fit_is_not_made(small_disk: Path) -> None:
    with pytest.raises(NoSpace, match="there is no room"):
        ThinPool.create(small_disk, size=40 << 30)
    assert not (small_disk / "pool.json").exists()


def test_what_is_deleted_is_given_back_to_a_disk_that_takes_it(root: Path) -> None:
    file = root / "disk.img"
    with file.open("wb") as disk:
        disk.truncate(256 << 20)
    ThinPool.create(root, metadata=METADATA, data=block_device.attach(file), force=True)
    devices = DeviceMapperDevices.open(root)
    devices.create(SMALL)
    (devices.mount(SMALL) / "file").write_bytes(os.urandom(20 << 20))
    devices.seal(SMALL)
    used = file.stat().st_blocks * 512
    devices.delete(SMALL)
    left = file.stat().st_blocks * 512

    assert used > 20 << 20
    assert left < 4 << 20


def test_a_file_with_two_loop_devices_is_refused_with_what_to_do(root: Path) -> None:
    file = root / "twice.img"
    with file.open("wb") as disk:
        disk.truncate(1 << 20)
    nodes = [subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True).stdout
             for _ in range(2)]  # fmt: skip

    with pytest.raises(PoolUnusable, match="at once") as refused:
        block_device.attach(file)
    assert f"losetup --detach {max(nodes).strip()}" in (refused.value.hint or "")
