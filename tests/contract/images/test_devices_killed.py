"""SIGKILL at every named point and at any other instant: repeated, the end is the same, and nothing is left over."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast_images.devices.lock import POINTS
from holdfast_images.devices.protocol import Devices, Health
from tests.support.images.device_backends import (
    ORIGIN,
    SCENARIOS,
    SNAPSHOT,
    make_origin,
    open_backend,
    prepare,
    run_and_die,
    run_in_rounds,
)
from tests.support.processes import join_all, kill, start
from tests.support.waiting import eventually


def names(devices: Devices) -> set[str]:
    return {one.name for one in devices.found()}


def names_on_disk(root: Path) -> set[str]:
    return {path.name for path in (root / "devices").iterdir()}


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_point_it_is_recognised_and_repeated(
    devices: Devices, backend_name: str, tmp_path: Path, point: str
) -> None:
    scenario = point.partition(".")[0]
    prepare(devices, scenario)
    code = join_all([start(run_and_die, backend_name, str(tmp_path), scenario, point)])
    again = open_backend(backend_name, tmp_path)
    between = {again.health(ORIGIN), again.health(SNAPSHOT)}
    SCENARIOS[scenario](again)

    assert code == [-9], "the point was passed"
    assert between <= {Health.ABSENT, Health.HEALTHY}
    expected = {ORIGIN.name, SNAPSHOT.name} if scenario == "snapshot" else {ORIGIN.name}
    assert names(again) == expected
    assert names_on_disk(tmp_path) == expected
    if scenario != "create":
        again.verify(ORIGIN, deep=True)
    if scenario == "snapshot":
        again.verify(SNAPSHOT, deep=True)


def test_killed_at_any_instant_the_next_one_ends_where_it_should(
    backend_name: str, tmp_path: Path, rng: random.Random
) -> None:
    for number in range(6):
        ready = tmp_path / f"ready-{number}"
        process = start(run_in_rounds, backend_name, str(tmp_path / "root"), str(ready))
        eventually(ready.exists)
        time.sleep(rng.random() * 0.2)
        kill(process)

    devices = open_backend(backend_name, tmp_path / "root")
    devices.delete(SNAPSHOT)
    devices.delete(ORIGIN)
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    devices.verify(ORIGIN, deep=True)
    devices.verify(SNAPSHOT, deep=True)
    assert names_on_disk(tmp_path / "root") == {ORIGIN.name, SNAPSHOT.name}
