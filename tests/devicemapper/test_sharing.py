"""Several threads, processes and users at one pool: nobody hides, sees or takes away what is another's."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices import mounts as mounting
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_table import thin_target
from holdfast_images.devices.lock import this_process
from holdfast_images.devices.protocol import Device
from holdfast_images.errors import DeviceBusy
from tests.support.images.device_backends import ORIGIN, open_backend
from tests.support.processes import kill, start
from tests.support.waiting import eventually

FIRST = msgspec.structs.replace(ORIGIN, size=128 << 20)
SECOND = msgspec.structs.replace(FIRST, id=FIRST.id + 1, name="thin-4712")


def test_two_first_mounts_at_once_hide_nothing_from_each_other(
    devices: DeviceMapperDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices.create(FIRST)
    devices.create(SECOND)
    look = mounting.mounts

    def look_and_dawdle(process: str = "self") -> list[mounting.Mount]:
        seen = look(process)
        time.sleep(0.2)  # between the look and what follows from it, where the other thread may do the same
        return seen

    monkeypatch.setattr(mounting, "mounts", look_and_dawdle)
    points: list[Path] = []
    threads = [
        threading.Thread(target=lambda each: points.append(devices.mount(each)), args=(each,))
        for each in (FIRST, SECOND)
    ]
    for number, thread in enumerate(threads):
        thread.start()
        time.sleep(0.1 * (1 - number))
    for thread in threads:
        thread.join()
    for point in points:
        (point / "here").touch()
    monkeypatch.undo()
    seen = [mount.point for mount in look()].count(str(devices.records.home))
    usage = [devices.seal(each) for each in (FIRST, SECOND)]

    assert len(points) == 2
    assert seen == 1, "one bind, through which both are seen"
    assert [each.files for each in usage] == [2, 2], "lost+found, and the file"


def seal_and_wait(root: str, ready: str) -> None:
    """Be the process that was cut off between sealing a device and recording it."""
    devices = open_backend("devicemapper", root)
    devices.seal(FIRST, stays_mounted=True)
    Path(ready).touch()
    signal.pause()


def test_who_was_cut_off_after_sealing_a_device_keeps_nobody_from_mounting_it(
    devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    devices.create(FIRST)
    ready = tmp_path / "ready"
    other = start(seal_and_wait, str(devices.records.home.parent), str(ready))
    eventually(ready.exists)
    mounted = devices.records.mounts_of(FIRST.name)
    own = devices.mount(FIRST)
    devices.seal(FIRST)
    kill(other)

    assert str(own) not in [mount.point for mount in mounted]
    assert devices.records.mounts_of(FIRST.name) == []
    devices.verify(FIRST, deep=True)


def test_a_look_of_a_dead_process_is_known_when_another_has_got_its_number(devices: DeviceMapperDevices) -> None:
    pool = devices.thin_pool
    pool.create_thin(1)
    mine = re.fullmatch(r"(\d+)-(\d+)", this_process())
    assert mine is not None
    for began in (mine[2], "1"):
        uuid = f"{pool.prefix}look-{mine[1]}-{began}-1"
        pool.mapper.create(f"look-{began}", uuid, thin_target(pool.numbers, 1, 4096), read_only=True)
    count = devices.showing.remove_dead()

    assert count == 1
    assert "look-1" not in pool.mapper.names()
    assert f"look-{mine[2]}" in pool.mapper.names(), "its process lives"


def test_a_snapshot_is_not_taken_for_a_look_by_its_name(devices: DeviceMapperDevices) -> None:
    devices.create(FIRST)
    devices.seal(FIRST)
    snapshot = Device(id=5, name=f"{devices.thin_pool.record.name}-look-999999-1", uuid=FIRST.uuid, size=FIRST.size)
    devices.snapshot(FIRST, snapshot)

    assert devices.collect() == 0
    devices.verify(snapshot)


def test_what_is_looked_through_is_open_to_nobody_else(devices: DeviceMapperDevices) -> None:
    devices.create(FIRST)
    devices.seal(FIRST)
    _, identity = devices.records.read(FIRST.name)
    assert identity is not None
    with devices.showing.looked_through(identity) as (parent, name):
        place = Path(os.readlink(f"/proc/self/fd/{parent}"))
        [line] = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{place}/{name} " in line]
        mode = place.stat().st_mode & 0o777

    assert place == devices.records.home
    assert mode == 0o700
    assert "shared:" not in line
    assert not (place / name).exists()
    assert devices.found()[0].name == FIRST.name


def test_a_look_that_somebody_is_in_is_busy_and_the_next_one_ends_it(devices: DeviceMapperDevices) -> None:
    devices.create(FIRST)
    devices.seal(FIRST)
    _, identity = devices.records.read(FIRST.name)
    assert identity is not None
    with pytest.raises(DeviceBusy, match="is in use"), devices.showing.looked_through(identity) as (parent, name):
        visitor = os.open(name, os.O_RDONLY, dir_fd=parent)
    os.close(visitor)
    devices.verify(FIRST, deep=True)

    assert [path.name for path in devices.records.home.iterdir()] == [FIRST.name]


def test_the_place_of_a_look_goes_with_its_process(devices: DeviceMapperDevices) -> None:
    (devices.records.home / ".look-1-1-1").mkdir()
    (devices.records.home / f".look-{this_process()}-1").mkdir()
    devices.collect()

    assert [path.name for path in devices.records.home.iterdir()] == [f".look-{this_process()}-1"]
