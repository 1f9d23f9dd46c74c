"""Room for data and for metadata: told as it is, and refused before a pool is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices import loops
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Mode, Target
from holdfast_images.devices.protocol import Device, PoolHealth
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import NoSpace
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
        loops.detach(file)


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
