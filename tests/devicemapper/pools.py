"""A pool on the guest's own disks, as often anew as tests want one."""

from __future__ import annotations

from pathlib import Path

from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import Target
from holdfast_images.devices.mounts import mounts, unmount_point
from holdfast_images.devices.thin_pool import ThinPool

STATE = "/dev/ubda"
METADATA = "/dev/ubdb"
DATA = "/dev/ubdc"


def open_devices(root: Path, *, patience: float = 5.0) -> DeviceMapperDevices:
    """The devices at a root; at one that has no pool yet, a new pool takes the place of all others."""
    if not (root / "pool.json").exists():
        new_pool(root)
    return DeviceMapperDevices.open(root, patience=patience)


def new_pool(root: Path) -> ThinPool:
    """A pool with nothing in it."""
    remove_everything()
    return ThinPool.create(root, metadata=METADATA, data=DATA, low_water_bytes=64 << 20, force=True)


def remove_everything() -> None:
    """No mount of a mapped device, and no mapped device."""
    mapper = DeviceMapper()
    while infos := [info for name in mapper.names() if (info := mapper.info(name)) is not None]:
        numbers = {info.numbers for info in infos}
        for mount in reversed(mounts()):
            if mount.device in numbers:
                unmount_point(mount.point)
        # Devices that others are made of come after those.
        free = [info for info in infos if mapper.info(info.name).open_count == 0]  # type: ignore[union-attr]
        assert free, f"in use: {infos}"
        for info in free:
            mapper.remove(info.name)
    mapper.close()


def change_pool(pool: ThinPool, features: str) -> None:
    """The administrator, behind our back."""
    name = pool.record.name
    [table] = pool.mapper.table(name)
    text = f"{' '.join(table.text.split()[:4])} {features}"
    pool.mapper.load(name, Target(0, table.length, "thin-pool", text))
    pool.mapper.suspend(name)
    pool.mapper.resume(name)
