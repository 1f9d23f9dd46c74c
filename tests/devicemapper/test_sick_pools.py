"""Pools that are read-only, must be checked, have failed or were taken away: told of, and healed if that can be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images import ImageManager
from holdfast_images.devices import block_device as loops
from holdfast_images.devices import devicemapper
from holdfast_images.devices.block_device import disk_at
from holdfast_images.devices.consistency import check_metadata
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.dm_table import SECTOR, Mode, Target
from holdfast_images.devices.pool_record import write_record
from holdfast_images.devices.protocol import Health, PoolHealth
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import DeviceBusy, NoSpace, PoolUnusable
from holdfast_images.settings import Backend, Settings
from tests.devicemapper.pools import DATA, METADATA, change_pool, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)
OTHER = msgspec.structs.replace(SMALL, id=9, name="thin-9")
GOOD, NO_WRITES, NOTHING = "3600 0", "0 3600 1 error_writes", "0 3600"


class Sick:
    """Devices of a pool whose metadata disk can be told to fail."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mapper = DeviceMapper()
        self._mapper.create("flaky", "flaky", self._target(GOOD))
        ThinPool.create(root, metadata="/dev/mapper/flaky", data=DATA, force=True)
        self.devices = DeviceMapperDevices.open(root, patience=0.3)
        self.pool = self.devices.thin_pool
        self.devices.create(SMALL)
        fill(self.devices.mount(SMALL))
        self.devices.seal(SMALL)

    def disk(self, how: str) -> None:
        """From now on the metadata's disk is so."""
        self._mapper.load("flaky", self._target(how))
        self._mapper.suspend("flaky")
        self._mapper.resume("flaky")

    def change_pool(self, features: str) -> None:
        """The administrator, behind our back."""
        change_pool(self.pool, features)

    def findings(self) -> set[str]:
        """As `holdfast verify-system` reports them."""
        settings = Settings(backend=Backend.DEVICEMAPPER, data=str(self.root))
        with ImageManager.open(self.root / "state", settings) as images:
            assert images.engine.findings == []  # and the database is made
            return {each.code for each in images.verify()}

    def _target(self, how: str) -> Target:
        return Target(0, disk_at(METADATA).size // SECTOR, "flakey", f"{METADATA} 0 {how}")


@pytest.fixture
def sick(tmp_path: Path) -> Iterator[Sick]:
    remove_everything()
    sick = Sick(tmp_path)
    yield sick
    sick.disk(GOOD)
    remove_everything()


def test_a_read_only_pool_is_looked_at_and_told_of(sick: Sick, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devicemapper, "MANY", 0)
    sick.change_pool("2 error_if_no_space read_only")
    [found] = sick.devices.found()
    [difference] = sick.devices.disagreements()
    sick.devices.verify(SMALL, deep=True)

    assert found.health is Health.HEALTHY
    assert sick.pool.room().health is PoolHealth.READ_ONLY
    assert (difference.code, "is ro" in difference.message) == ("pool-unlisted", True)
    assert {"pool-unusable", "pool-unlisted"} <= sick.findings()
    for make in (lambda: sick.pool.create_thin(5), lambda: sick.pool.delete(SMALL.id), sick.pool.ids, sick.pool.extend):
        with pytest.raises(PoolUnusable, match="is ro"):
            make()
    with pytest.raises(PoolUnusable, match="is read-only"):
        sick.devices.snapshot(SMALL, SNAPSHOT)


def test_a_pool_whose_metadata_disk_fails_is_read_only_and_usable_again_when_it_was_checked(sick: Sick) -> None:
    sick.disk(NO_WRITES)
    with pytest.raises(PoolUnusable, match="must be checked"):
        sick.devices.create(OTHER)
    status = sick.pool.status()
    codes = sick.findings()
    with pytest.raises(PoolUnusable, match="must be checked"):
        sick.pool.extend()
    sick.disk(GOOD)
    sick.pool.mapper.remove(sick.pool.record.name)
    with pytest.raises(PoolUnusable, match="must be checked"):
        ThinPool.open(sick.root)
    check_metadata(sick.root, repair=True)
    again = DeviceMapperDevices.open(sick.root, patience=0.3)
    again.verify(SMALL, deep=True)
    again.create(OTHER)

    assert (status.mode, status.needs_check) == (Mode.READ_ONLY, True)
    assert {"pool-unusable", "pool-unlisted"} <= codes
    assert sorted(again.thin_pool.ids()) == [OTHER.id, SMALL.id]


def test_a_pool_that_has_failed_is_told_of_and_nothing_else_is_claimed(sick: Sick) -> None:
    sick.disk(NOTHING)
    with pytest.raises(PoolUnusable, match="is Fail"):
        sick.devices.create(OTHER)
    status = sick.pool.status()

    assert status.mode is Mode.FAIL
    assert {"pool-unusable", "not-checked"} <= sick.findings()
    with pytest.raises(PoolUnusable, match="is Fail"):
        sick.devices.found()


def test_a_pool_that_was_taken_away_is_put_to_use_by_who_needs_it(sick: Sick) -> None:
    for need in (lambda: sick.devices.create(OTHER), sick.pool.ids, lambda: sick.devices.delete(OTHER)):
        sick.devices.deactivate(OTHER)
        check_metadata(sick.root)
        need()
    sick.pool.mapper.remove(sick.pool.record.name)
    sick.pool.create_thin(77)

    assert sick.pool.ids() == [77, SMALL.id]


def test_a_pool_that_lets_writers_hang_is_refused(sick: Sick) -> None:
    sick.change_pool("0")

    with pytest.raises(PoolUnusable, match="lets writers hang"):
        ThinPool.open(sick.root)


def test_what_a_suspended_pool_refuses_is_tried_again(sick: Sick) -> None:
    sick.devices.snapshot(SMALL, SNAPSHOT)
    sick.devices.deactivate(SNAPSHOT)
    sick.pool.mapper.suspend(sick.pool.record.name)  # as a process leaves it that dies while it extends
    with pytest.raises(DeviceBusy, match="was suspended"):
        sick.devices.activate(SNAPSHOT)
    sick.devices.activate(SNAPSHOT)

    sick.devices.verify(SNAPSHOT, deep=True)


def test_a_pool_that_is_nearly_full_is_in_the_log_of_who_makes_something_in_it(
    sick: Sick, caplog: pytest.LogCaptureFixture
) -> None:
    sick.pool.record = msgspec.structs.replace(sick.pool.record, low_water_bytes=1 << 40)
    sick.devices.create(OTHER)
    sick.devices.snapshot(SMALL, SNAPSHOT)

    assert [record.levelname for record in caplog.records if "nearly full" in record.message] == ["WARNING"] * 2


def test_a_pool_is_put_to_use_as_others_have_extended_it(sick: Sick) -> None:
    nameless = msgspec.structs.replace(disk_at(DATA), name="")
    before = msgspec.structs.replace(sick.pool.record.data, disk=msgspec.structs.replace(nameless, size=1 << 20))
    after = msgspec.structs.replace(sick.pool.record.data, disk=nameless)
    write_record(sick.root, msgspec.structs.replace(sick.pool.record, data=after))  # as another process extends it
    sick.pool.record = msgspec.structs.replace(sick.pool.record, data=before)
    sick.pool.mapper.remove(sick.pool.record.name)

    assert sick.pool.ids() == [SMALL.id]


def test_a_renamed_pool_gets_its_name_back(sick: Sick) -> None:
    name = sick.pool.record.name
    sick.devices.snapshot(SMALL, SNAPSHOT)
    sick.pool.mapper.rename(name, "renamed")
    again = DeviceMapperDevices.open(sick.root, patience=0.3)
    again.verify(SNAPSHOT, deep=True)

    assert again.thin_pool.mapper.info(name) is not None
    assert again.thin_pool.mapper.info("renamed") is None


def test_a_wiped_pool_gets_its_table_again(sick: Sick) -> None:
    name = sick.pool.record.name
    sick.pool.mapper.load(name, Target(0, 8, "error", ""))
    sick.pool.mapper.resume(name)
    again = DeviceMapperDevices.open(sick.root, patience=0.3)
    again.snapshot(SMALL, SNAPSHOT)
    again.verify(SNAPSHOT, deep=True)

    assert again.thin_pool.table().length > 8


def test_a_pool_that_is_read_only_deletes_nothing_and_forgets_nothing(sick: Sick) -> None:
    sick.devices.snapshot(SMALL, SNAPSHOT)
    sick.change_pool("2 error_if_no_space read_only")
    with pytest.raises(PoolUnusable, match="is ro") as told:
        sick.devices.delete(SNAPSHOT)
    kept = sick.devices.look(SNAPSHOT.name)
    sick.devices.deactivate(SNAPSHOT)
    check_metadata(sick.root, repair=True)
    again = DeviceMapperDevices.open(sick.root, patience=0.3)
    again.snapshot(SMALL, SNAPSHOT)
    again.delete(SNAPSHOT)

    assert "pool check --repair" in (told.value.hint or "")
    assert kept is not None
    assert sick.devices.records.leftovers() == []


def test_a_pool_whose_metadata_are_full_is_extended_and_usable_again(tmp_path: Path) -> None:
    remove_everything()
    pool = ThinPool.create(tmp_path, size=64 << 20)
    devices = DeviceMapperDevices.open(tmp_path, patience=0.3)
    number = 0
    while pool.status().mode is Mode.WRITE:
        try:
            pool.create_thin(number := number + 1)
        except (PoolUnusable, NoSpace):
            break
        assert number < 5000
    full = pool.room()
    listed = [each.code for each in devices.disagreements()]
    with pytest.raises((PoolUnusable, NoSpace), match="metadata") as told:
        devices.create(SMALL)
    extended = pool.extend()
    devices.create(SMALL)

    assert full.health is PoolHealth.FULL
    assert "pool extend" in full.detail
    assert "pool extend" in (told.value.hint or "")
    assert "pool-unlisted" in listed
    assert extended.health is not PoolHealth.FULL
    assert pool.status().mode is Mode.WRITE
    assert pool.status().total_metadata_blocks > 512
    remove_everything()
    for file in tmp_path.glob("*.img"):
        loops.detach(file)
