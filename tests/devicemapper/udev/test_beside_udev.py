"""Beside a udevd that opens each new device and makes its node: the guest of these tests has one."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import NODES, UDEV
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, make_origin

ROUNDS = 3


def known_to_udev() -> set[str]:
    """The mapped devices that udev has written down."""
    subprocess.run(["/run/udevadm", "settle", "--timeout=30"], check=True)
    texts = [path.read_text() for path in Path("/run/udev/data").glob("b*")]
    return {name for text in texts for name in re.findall(r"^E:DM_NAME=(.+)$", text, re.MULTILINE)}


def test_udev_makes_the_node_and_takes_it_away(devices: DeviceMapperDevices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    node = devices.activate(SNAPSHOT)
    known, made = known_to_udev(), os.readlink(node)
    devices.deactivate(SNAPSHOT)
    devices.delete(SNAPSHOT)

    assert UDEV.exists(), "there is a udevd"
    assert SNAPSHOT.name in known
    assert made.startswith("../dm-"), "a link, as udev makes it"
    assert node == NODES / SNAPSHOT.name
    assert not os.path.lexists(node)
    assert SNAPSHOT.name not in known_to_udev()


def test_a_node_or_a_name_that_somebody_has_taken_away_comes_back(devices: DeviceMapperDevices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    known_to_udev()
    (NODES / SNAPSHOT.name).unlink()
    devices.snapshot(ORIGIN, SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)
    subprocess.run(["dmsetup", "rename", SNAPSHOT.name, "renamed"], check=True)
    known_to_udev()
    devices.snapshot(ORIGIN, SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)
    known = known_to_udev()

    assert SNAPSHOT.name in known
    assert not os.path.lexists(NODES / "renamed")
    assert devices.disagreements() == []


def test_udev_does_not_look_into_what_an_image_holds(devices: DeviceMapperDevices) -> None:
    """Snapshots share the UUID of their file system, which an image's maker might have chosen: no link may say it."""
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    node = devices.activate(SNAPSHOT)
    known_to_udev()
    told = subprocess.run(["/run/udevadm", "info", str(node)], check=True, capture_output=True, text=True).stdout

    assert "DM_UDEV_DISABLE_OTHER_RULES_FLAG=1" in told
    assert "ID_FS_UUID" not in told
    assert "/dev/disk/by-uuid" not in told


def test_what_udev_has_just_opened_is_removed_all_the_same(devices: DeviceMapperDevices) -> None:
    """Each new device is opened by udev to see what is in it, and cannot be removed in that moment."""
    make_origin(devices)
    for _ in range(ROUNDS):
        devices.snapshot(ORIGIN, SNAPSHOT)
        devices.deactivate(SNAPSHOT)
        devices.delete(SNAPSHOT)

    assert devices.disagreements() == []
    assert devices.thin_pool.ids() == [ORIGIN.id]
