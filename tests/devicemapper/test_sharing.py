"""Several threads, processes and users at one pool: nobody hides, sees or takes away what is another's."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices import mounting
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from tests.support.images.device_backends import ORIGIN

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
