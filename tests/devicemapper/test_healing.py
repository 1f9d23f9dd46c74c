"""What crashes and others have left: found, healed or removed, and never a reason to stop looking at the rest."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.app import Images, open_devices
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.settings import Backend, Settings
from holdfast_images.upkeep.collecting import Collected, collect, plan
from holdfast_images.upkeep.facts import gather
from tests.devicemapper.pools import new_pool, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()


def dmsetup(*arguments: str) -> str:
    """The administrator, behind our back."""
    return subprocess.run(["dmsetup", *arguments], check=True, capture_output=True, text=True).stdout


def sealed_small(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)


def collected(root: Path) -> list[Collected]:
    """As `holdfast gc` does it."""
    with Images.open(root / "state", Settings(backend=Backend.DEVICEMAPPER, data=str(root))) as images:
        return collect(images, plan(gather(images)))


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
