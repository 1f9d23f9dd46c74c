"""What crashes and others have left: found, healed or removed, and never a reason to stop looking at the rest."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from holdfast_images import ImageManager
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices import block_device
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_table import CommandFailed, run
from holdfast_images.devices.lock import set_hook
from holdfast_images.devices.protocol import Device, Health, PoolHealth
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import DeviceBusy, NoSpace, Permanent, PoolUnusable
from holdfast_images.gc import Collected
from holdfast_images.host import open_devices
from holdfast_images.settings import Backend, Settings
from tests.devicemapper.pools import new_pool, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)
OTHER = msgspec.structs.replace(SMALL, id=9, name="thin-9")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()
    for file in tmp_path.glob("*.img"):
        block_device.detach(file)


def dmsetup(*arguments: str) -> str:
    """The administrator, behind our back."""
    return subprocess.run(["dmsetup", *arguments], check=True, capture_output=True, text=True).stdout


def sealed_small(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)


def collected(root: Path) -> list[Collected]:
    """As `holdfast gc` does it."""
    with ImageManager.open(root / "state", Settings(backend=Backend.DEVICEMAPPER, data=str(root))) as images:
        assert images.engine.findings == []  # and the database is made
        return list(images.collect().done)


def test_the_product_resumes_at_its_start_what_a_crash_has_left_suspended(root: Path) -> None:
    new_pool(root)
    devices = DeviceMapperDevices.open(root)
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    dmsetup("suspend", SNAPSHOT.name)
    again = open_devices(root, Settings(backend=Backend.DEVICEMAPPER, data=str(root)))
    state = dmsetup("info", SNAPSHOT.name)
    dmsetup("resume", SNAPSHOT.name)
    again.verify(SNAPSHOT)
    again.close()

    assert "SUSPENDED" not in state


def test_a_look_at_a_suspended_snapshot_does_not_hang(devices: DeviceMapperDevices) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    _, identity = devices.records.read(SNAPSHOT.name)
    assert identity is not None
    dmsetup("suspend", SNAPSHOT.name)
    with devices.showing.looked_at(identity):
        state = dmsetup("info", SNAPSHOT.name)
    dmsetup("resume", SNAPSHOT.name)

    assert "SUSPENDED" not in state


def test_a_record_whose_device_is_gone_from_the_pool_is_removed_by_gc(
    devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    dmsetup("remove", SNAPSHOT.name)
    dmsetup("message", devices.thin_pool.record.name, "0", f"delete {SNAPSHOT.id}")
    done = collected(tmp_path)

    assert {(each.action.kind, each.action.subject): each.reason for each in done} == {
        ("snapshot", SNAPSHOT.name): "",
        ("device", SMALL.name): "",
    }
    assert devices.found() == []
    assert devices.disagreements() == []


def show_behind_our_back(devices: DeviceMapperDevices, thin_id: int) -> None:
    dmsetup("create", "holder", "--table", f"0 8 thin {devices.thin_pool.numbers} {thin_id}")


def trashed(devices: DeviceMapperDevices, device: Device) -> None:
    """As a process leaves it that dies while it deletes."""
    devices.create(device)
    devices.seal(device)
    devices.records.trash(device.name)


def test_a_device_that_another_shows_is_busy_and_stops_nobody_from_collecting_the_rest(
    devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    trashed(devices, SMALL)
    trashed(devices, OTHER)
    show_behind_our_back(devices, SMALL.id)
    first = devices.collect()
    left = devices.thin_pool.ids()
    with pytest.raises(DeviceBusy, match=rf"device {SMALL.id} of pool .* is shown as holder"):
        devices.thin_pool.delete(SMALL.id)
    with pytest.raises(DeviceBusy, match="is shown as holder"):
        devices.create(SMALL)
    dmsetup("remove", "holder")
    second = devices.collect()

    assert (first, left) == (1, [SMALL.id])
    assert (second, devices.thin_pool.ids()) == (1, [])


def test_what_a_killed_process_was_deleting_is_collected_at_once(devices: DeviceMapperDevices) -> None:
    trashed(devices, SMALL)
    table = f"0 8 thin {devices.thin_pool.numbers} {SMALL.id}"
    dmsetup("create", "abandoned", "--uuid", f"{devices.thin_pool.prefix}look-1-1-1", "--table", table)
    count = devices.collect()

    assert count == 2
    assert devices.thin_pool.ids() == []
    assert devices.disagreements() == []


def test_a_device_that_is_shown_for_a_moment_is_deleted_after_it(devices: DeviceMapperDevices) -> None:
    devices.thin_pool.create_thin(7)
    show_behind_our_back(devices, 7)
    timer = threading.Timer(0.2, dmsetup, ("remove", "holder"))
    timer.start()
    devices.thin_pool.delete(7, patience=20.0)
    timer.join()

    assert devices.thin_pool.ids() == []


def test_what_cannot_be_undone_does_not_hide_why_it_was_to_be(devices: DeviceMapperDevices) -> None:
    def fail(point: str) -> None:
        if point == "create.thin-made":
            show_behind_our_back(devices, SMALL.id)
            raise RuntimeError("the disk is on fire")

    set_hook(fail)
    try:
        with pytest.raises(RuntimeError, match="on fire"):
            devices.create(SMALL)
    finally:
        set_hook(None)
    dmsetup("remove", "holder")

    assert devices.health(SMALL) is Health.ABSENT
    assert devices.collect() == 1
    assert devices.thin_pool.ids() == []


def test_a_device_that_is_being_deleted_is_not_made_meanwhile(devices: DeviceMapperDevices) -> None:
    trashed(devices, SMALL)
    [hidden] = devices.records.leftovers()
    with devices.records.abandoned(hidden), pytest.raises(DeviceBusy, match=f"{hidden} is in use"):
        devices.create(SMALL)
    devices.create(SMALL)

    assert devices.thin_pool.ids() == [SMALL.id]
    assert devices.records.leftovers() == []


def test_a_device_whose_record_cannot_be_read_is_made_anew_and_its_snapshot_is_kept(
    devices: DeviceMapperDevices,
) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    for device in (SMALL, SNAPSHOT):
        (devices.records.home / device.name / "identity.json").write_text("{")
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)
    devices.snapshot(SMALL, SNAPSHOT)

    devices.verify(SNAPSHOT)
    assert devices.thin_pool.ids() == [SNAPSHOT.id, SMALL.id]
    assert devices.disagreements() == []


def test_a_record_that_cannot_be_read_frees_the_id_that_was_reserved_for_it_and_no_other(
    devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    with Catalog.open(tmp_path / "state") as catalog:
        catalog.reserve_device_id("box", [SMALL.id])
    for device in (msgspec.structs.replace(SMALL, id=0, name="thin-0"), SMALL, OTHER):
        devices.create(device)
        devices.seal(device)
        if device.id:
            (devices.records.home / device.name / "identity.json").write_text("{")
    done = {each.action.subject: each.removed for each in collected(tmp_path)}

    assert done == {"thin-0": True, SMALL.name: True, OTHER.name: True}
    assert devices.thin_pool.ids() == [OTHER.id], "nobody knows whose it is"
    assert devices.records.names() == []


def test_a_program_that_waits_for_a_disk_for_ever_is_not_waited_for(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    dmsetup("suspend", SMALL.name)
    timer = threading.Timer(20.0, dmsetup, ("resume", SMALL.name))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(CommandFailed, match="did not end within 1 s"):
        run("e2fsck", "-f", "-n", str(devices.path_of(SMALL.name)), timeout=1.0)
    seconds = time.monotonic() - begin
    timer.cancel()
    dmsetup("resume", SMALL.name)

    assert seconds < 15


def test_what_cannot_be_trimmed_is_deleted_all_the_same(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root, patience=0.3)
    sealed_small(devices)

    @contextmanager
    def busy(*_: object, **__: object) -> Iterator[str]:
        raise DeviceBusy("somebody looks at it")
        yield ""

    devices.showing._passing_by = busy  # type: ignore[method-assign]
    devices.delete(SMALL)

    assert devices.thin_pool.ids() == []
    assert devices.records.leftovers() == []


def test_an_extension_that_was_cut_short_is_repeated(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    pool = ThinPool.open(root)
    os.truncate(root / "pool-data.img", 96 << 20)  # as a kill before the loop device was told leaves it
    extended = pool.extend(96 << 20)

    assert extended.available_bytes == 96 << 20
    with pytest.raises(NoSpace, match="has grown"):
        pool.extend(96 << 20)


def test_a_device_too_small_for_its_file_system_is_not_tried_again(devices: DeviceMapperDevices) -> None:
    with pytest.raises(NoSpace, match="too small") as refused:
        devices.create(msgspec.structs.replace(SMALL, size=32 << 20))

    assert isinstance(refused.value, Permanent)
    assert "device_size" in (refused.value.hint or "")
    assert devices.thin_pool.ids() == []


@pytest.mark.parametrize("name", ["pool-data.img", "pool-metadata.img"])
def test_a_file_that_is_removed_below_a_pool_in_use_is_told_of_and_can_be_put_back(root: Path, name: str) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root, patience=0.3)
    sealed_small(devices)
    (root / name).unlink()
    room = devices.pool()
    [found] = devices.disagreements()
    with pytest.raises(PoolUnusable, match="not the file that the pool is using"):
        devices.snapshot(SMALL, SNAPSHOT)
    node = found.message.rpartition("losetup --detach ")[2].partition(",")[0]
    dmsetup("remove", devices.thin_pool.record.name)
    subprocess.run(["cp", "--sparse=always", node, str(root / name)], check=True)
    subprocess.run(["losetup", "--detach", node], check=True)
    devices.snapshot(SMALL, SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)

    assert (room.health, found.code) == (PoolHealth.FAILED, "pool-file-replaced")
    assert found.message in room.detail
    assert devices.disagreements() == []


def test_a_file_that_is_cut_off_below_a_pool_in_use_is_told_of_and_made_as_long_again(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root, patience=0.3)
    sealed_small(devices)
    os.truncate(root / "pool-data.img", 1 << 20)
    room = devices.pool()
    [found] = devices.disagreements()
    with pytest.raises(PoolUnusable, match="was cut off"):
        devices.snapshot(SMALL, SNAPSHOT)
    os.truncate(root / "pool-data.img", 64 << 20)

    assert (room.health, found.code) == (PoolHealth.FAILED, "pool-file-cut-off")
    assert f"truncate --size={64 << 20}" in found.message
    assert devices.pool().health is PoolHealth.OK
    assert devices.disagreements() == []


def test_a_pool_on_files_moves_with_its_place(root: Path) -> None:
    pool = ThinPool.create(root / "before", size=64 << 20)
    sealed_small(DeviceMapperDevices.open(root / "before", patience=0.3))
    pool.stop()
    (root / "before").rename(root / "after")
    devices = DeviceMapperDevices.open(root / "after", patience=0.3)
    devices.verify(SMALL, deep=True)
    found = devices.disagreements()
    devices.thin_pool.stop()

    assert found == []
