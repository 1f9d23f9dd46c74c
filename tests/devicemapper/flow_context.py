"""The image manager on the guest's disks, and what it looks like from outside."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from holdfast_images.archive.entry import Policy
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_table import run
from holdfast_images.devices.mounts import mounts
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.schemas import Judging, ProcessRequest
from holdfast_images.source.location import location_of
from tests.devicemapper.pools import STATE
from tests.support.images import archives
from tests.support.images.small_image import tree_of

IMAGE_ID = "measured"
SNAPSHOT = f"snap-{IMAGE_ID}"
DEVICE_SIZE = 256 << 20


def image_of(files: int, size: int) -> bytes:
    """A root file system with this many files of this size."""
    directories = [b"rootfs", b"rootfs/etc", b"rootfs/usr", b"rootfs/var"]
    directories += [b"rootfs/usr/%d" % number for number in range(0, files, 50)]
    return archives.archive(
        *map(archives.directory, directories),
        *(
            archives.member(b"rootfs/usr/%d/file-%d" % (number - number % 50, number), bytes([number % 251]) * size)
            for number in range(files)
        ),
        archives.symlink(b"rootfs/etc/link", b"hostname"),
        archives.hardlink(b"rootfs/usr/again", b"rootfs/usr/0/file-0"),
    )


def mount_state(point: Path) -> Path:
    """The disk with the database, which survives the guest as the pool does."""
    point.mkdir(parents=True, exist_ok=True)
    if not any(mount.point == str(point) for mount in mounts()):
        arguments = (os.fsencode(STATE), os.fsencode(point), b"ext4", ctypes.c_ulong(0), b"")
        if ctypes.CDLL(None, use_errno=True).mount(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "the state disk cannot be mounted")
    return point


def context(state: Path, devices: DeviceMapperDevices) -> FlowContext:
    return FlowContext(catalog=Catalog.open(state), devices=devices, images=state / "images", device_size=DEVICE_SIZE)


def request_for(file: Path, *, snapshot: str = "", verify: bool = False) -> ProcessRequest:
    return ProcessRequest(
        s3_key="images/measured.tar",
        image_id=IMAGE_ID,
        location=location_of(f"file://{file}"),
        snapshot_name=snapshot,
        judging=Judging(policy=Policy.STRICT, verify=verify),
    )


def content_of(devices: DeviceMapperDevices, name: str) -> dict[str, object]:
    """Every file of a device, by a look that changes nothing."""
    _, identity = devices.records.read(name)
    assert identity is not None, f"{name} has no record"
    with devices.showing.looked_through(identity) as (parent, point):
        tree = tree_of(Path(f"/proc/self/fd/{parent}", point))
    tree.pop("lost+found", None)
    return tree


def faults(ctx: FlowContext, devices: DeviceMapperDevices) -> list[str]:
    """Everything that is left over, leaked or damaged: nothing must be, whatever has happened before."""
    catalog, pool = ctx.catalog, devices.thin_pool
    rows = {int(row.device_id): row.device_name for row in catalog.list_unpacked_images()}
    rows |= {int(row.snapshot_id): row.snapshot_name for row in catalog.list_snapshots()}
    active = {row.snapshot_name for row in catalog.list_snapshots() if row.active}
    shown = {info.name for info in devices.showing.ours()} - {pool.record.name}
    numbers = {info.numbers for info in devices.showing.ours()}
    found = [f"violation: {one}" for one in catalog.violations()]
    found += [f"lock: {lock}" for lock in catalog.list_image_locks()]
    found += [f"leftover: {name}" for name in devices.records.leftovers()]
    found += [f"mount: {mount.point}" for mount in mounts() if mount.device in numbers]
    if set(pool.ids()) != set(rows):
        found.append(f"the pool has {pool.ids()}, the catalog {sorted(rows)}")
    if {one.name for one in devices.found()} != set(rows.values()):
        found.append(f"recorded are {devices.found()}, the catalog has {rows}")
    if shown != active:
        found.append(f"shown are {sorted(shown)}, active in the catalog {sorted(active)}")
    if {row.device_id for row in catalog.list_reservations()} != set(rows):
        found.append(f"reserved are {catalog.list_reservations()}, the catalog has {rows}")
    for name in sorted(rows.values()):
        _, identity = devices.records.read(name)
        if identity is not None:
            with devices.showing._passing_by(identity, read_only=True) as node:
                checked = run("e2fsck", "-f", "-n", node, timeout=720, accept=(0, 1, 2, 4, 8, 12))
                if checked.status != 0:
                    found.append(f"{name}: {(checked.output + checked.errors).strip()}")
    return found


def seen(ctx: FlowContext, devices: DeviceMapperDevices) -> dict[str, Any]:
    """What an image has become, ids and content."""
    catalog = ctx.catalog
    unpacked = catalog.get_unpacked_image_by_id(IMAGE_ID)
    snapshots = catalog.list_snapshots()
    image = catalog.get_image_by_id(IMAGE_ID)
    names = ([unpacked.device_name] if unpacked else []) + [row.snapshot_name for row in snapshots]
    return {
        "image": image and [image.checksum, image.download_status, image.activation_status],
        "unpacked": unpacked and [unpacked.device_id, unpacked.file_count, unpacked.layout_verified],
        "snapshots": [[row.snapshot_id, row.snapshot_name, row.active] for row in snapshots],
        "trees": {name: content_of(devices, name) for name in names},
    }
