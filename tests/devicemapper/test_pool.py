"""The pool: made, found again, extended, judged; and what others have lost data or nights by, one test for each."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.command import CommandEntry
from holdfast.cli.main import main
from holdfast_images.cli.main import EXTENSION
from holdfast_images.devices import block_device
from holdfast_images.devices.consistency import check_metadata
from holdfast_images.devices.devicemapper import POINTS, DeviceMapperDevices
from holdfast_images.devices.dm_table import Mode, thin_target
from holdfast_images.devices.pool_record import read_record, write_record
from holdfast_images.devices.protocol import Device, Health, PoolHealth
from holdfast_images.devices.thin_pool import ThinPool
from holdfast_images.errors import DeviceBusy, DeviceLost, InvalidName, NoSpace, PoolUnusable
from tests.devicemapper.pools import DATA, METADATA, new_pool, remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill, make_origin, run_and_die
from tests.support.processes import join_all, start

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)


def dmsetup(*arguments: str) -> str:
    return subprocess.run(["dmsetup", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()
    for file in tmp_path.glob("*.img"):
        block_device.detach(file)


def sealed_small(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)


# --- made and found again -----------------------------------------------------------------------------------


def test_a_pool_on_files_is_found_again_after_a_reboot(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root)
    sealed_small(devices)
    remove_everything()
    for name in ("pool-metadata.img", "pool-data.img"):
        block_device.detach(root / name)
    again = DeviceMapperDevices.open(root)
    again.verify(SMALL, deep=True)

    assert len(block_device.attached(root / "pool-data.img")) == 1


def test_what_holds_something_is_not_made_a_pool_of(root: Path) -> None:
    new_pool(root / "first")
    remove_everything()

    with pytest.raises(PoolUnusable, match="holds something already"):
        ThinPool.create(root / "second", metadata=METADATA, data=DATA)
    assert ThinPool.open(root / "first").status().mode is Mode.WRITE


def test_there_is_one_pool_in_a_place(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)

    with pytest.raises(PoolUnusable, match="there is a pool"):
        ThinPool.create(root, size=64 << 20)
    with pytest.raises(PoolUnusable, match="there is no pool"):
        ThinPool.open(root / "elsewhere")
    with pytest.raises(InvalidName, match="no pool name"):
        ThinPool.create(root / "elsewhere", size=64 << 20, name="../evil pool")


def test_a_pool_whose_making_was_cut_short_is_finished(root: Path) -> None:
    pool = ThinPool.create(root, size=64 << 20)
    write_record(root, msgspec.structs.replace(pool.record, ready=False))
    remove_everything()
    with pytest.raises(PoolUnusable):
        ThinPool.open(root)
    again = ThinPool.create(root, size=64 << 20)

    assert again.status().transaction_id == pool.record.mark


def test_the_pool_of_another_day_or_disk_is_not_taken_for_ours(root: Path) -> None:
    new_pool(root)
    remove_everything()
    record = read_record(root)
    assert record is not None
    write_record(root, msgspec.structs.replace(record, mark=record.mark + 2))

    with pytest.raises(PoolUnusable, match="not the recorded one"):
        ThinPool.open(root)
    assert record.name not in dmsetup("ls"), "nothing was started"


def test_a_pool_that_does_not_zero_its_blocks_is_refused(root: Path) -> None:
    pool = new_pool(root)
    table = dmsetup("table", pool.record.name).split()
    plain = " ".join(table[:7])
    dmsetup("reload", pool.record.name, "--table", f"{plain} 2 skip_block_zeroing error_if_no_space")
    dmsetup("suspend", pool.record.name)
    dmsetup("resume", pool.record.name)

    with pytest.raises(PoolUnusable, match="does not zero"):
        ThinPool.open(root)


def test_a_pool_left_suspended_is_resumed(root: Path) -> None:
    new_pool(root)
    devices = DeviceMapperDevices.open(root)
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    dmsetup("suspend", "--nolockfs", SNAPSHOT.name)
    dmsetup("suspend", devices.thin_pool.record.name)
    again = DeviceMapperDevices.open(root)
    again.verify(SNAPSHOT, deep=True)

    assert "SUSPENDED" not in dmsetup("info")


# --- room -----------------------------------------------------------------------------------------------------


def test_a_pool_on_files_grows_while_it_is_used(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root)
    devices.create(SMALL)
    point = devices.mount(SMALL)
    before = devices.pool()
    after = devices.thin_pool.extend(96 << 20)
    (point / "file").write_bytes(b"x" * (70 << 20))
    devices.seal(SMALL)

    assert after.available_bytes - before.available_bytes == 32 << 20
    with pytest.raises(InvalidName, match="already"):
        devices.thin_pool.extend(1 << 20)
    devices.verify(SMALL, deep=True)


def test_a_block_device_that_has_not_grown_gives_no_more_room(root: Path) -> None:
    pool = new_pool(root)

    with pytest.raises(NoSpace, match="has grown"):
        pool.extend()
    with pytest.raises(InvalidName, match="no file of ours"):
        pool.extend(1 << 40)


def test_a_pool_says_that_it_is_nearly_full_and_then_that_it_is_full(root: Path) -> None:
    ThinPool.create(root, size=64 << 20, low_water_bytes=32 << 20)
    devices = DeviceMapperDevices.open(root)
    large = msgspec.structs.replace(SMALL, size=256 << 20)
    devices.create(large)
    first = devices.pool().health
    with open(f"/dev/mapper/{SMALL.name}", "r+b", buffering=0) as file:
        file.seek(70 << 20)
        file.write(b"x" * (40 << 20))
        os.fsync(file.fileno())
        second = devices.pool().health
        file.write(b"x" * (30 << 20))
        with pytest.raises(OSError, match=r"space|Input") as full:
            os.fsync(file.fileno())
    third = devices.pool()
    with pytest.raises(NoSpace, match="is full"):
        devices.create(Device(id=9, name="thin-9", uuid=ORIGIN.uuid, size=128 << 20))
    devices.delete(SMALL)
    last = devices.pool().health

    assert (first, second, third.health, last) == (PoolHealth.OK, PoolHealth.LOW, PoolHealth.FULL, PoolHealth.OK)
    assert full.value.errno in (errno.ENOSPC, errno.EIO), "at once, and not after a minute"
    assert "of 1024 blocks of data" in third.detail


def test_what_is_deleted_is_given_back_to_the_file_below(root: Path) -> None:
    ThinPool.create(root, size=64 << 20)
    devices = DeviceMapperDevices.open(root)
    devices.create(SMALL)
    (devices.mount(SMALL) / "file").write_bytes(os.urandom(20 << 20))
    devices.seal(SMALL)
    used = (root / "pool-data.img").stat().st_blocks * 512
    devices.delete(SMALL)
    left = (root / "pool-data.img").stat().st_blocks * 512

    assert used > 20 << 20
    assert left < 4 << 20


# --- checked ------------------------------------------------------------------------------------------------------


def test_the_metadata_of_a_pool_at_rest_are_checked(root: Path) -> None:
    new_pool(root)
    devices = DeviceMapperDevices.open(root)
    sealed_small(devices)
    answer = check_metadata(root)
    again = DeviceMapperDevices.open(root)
    again.verify(SMALL, deep=True)

    assert answer.status == 0


def test_a_pool_in_use_is_not_taken_away_to_be_checked(root: Path) -> None:
    new_pool(root)
    devices = DeviceMapperDevices.open(root)
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)

    with pytest.raises(DeviceBusy, match="in use"):
        check_metadata(root)
    devices.verify(SNAPSHOT)


def test_damaged_metadata_are_found_and_nothing_is_cleared(root: Path) -> None:
    new_pool(root)
    remove_everything()
    with open(METADATA, "r+b") as file:
        file.seek(8192)
        file.write(os.urandom(4096 * 40))
        file.flush()
        os.fsync(file.fileno())

    with pytest.raises(PoolUnusable, match="damaged"):
        check_metadata(root, repair=True)


def test_a_pool_that_must_be_checked_is_not_used_before(root: Path) -> None:
    new_pool(root)
    remove_everything()
    with open(METADATA, "r+b", buffering=0) as file:
        superblock = bytearray(file.read(4096))
        superblock[4] |= 1
        superblock[:4] = _checksum(bytes(superblock)).to_bytes(4, "little")
        file.seek(0)
        file.write(superblock)
        os.fsync(file.fileno())
    with pytest.raises(PoolUnusable, match="must be checked"):
        ThinPool.open(root)
    check_metadata(root, repair=True)

    assert ThinPool.open(root).status().needs_check is False


def _checksum(superblock: bytes) -> int:
    """CRC-32C of all but the checksum itself, exclusive-or'd with the kernel's salt for superblocks."""
    crc = 0xFFFFFFFF
    for byte in superblock[4:]:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 160774


# --- its devices --------------------------------------------------------------------------------------------------


def test_ids_are_listed_while_the_pool_is_used(root: Path) -> None:
    pool = new_pool(root)
    for thin_id in (3, 1, (1 << 24) - 1):
        pool.create_thin(thin_id)
    pool.mapper.message(pool.record.name, "reserve_metadata_snap")  # as a crash in the midst of it leaves it

    assert pool.ids() == [1, 3, (1 << 24) - 1]
    assert pool.status().held_root is None
    assert pool.create_thin(3) is False
    assert (pool.holds(3), pool.holds(4)) == (True, False)
    pool.delete(3)
    pool.delete(3)
    assert pool.ids() == [1, (1 << 24) - 1]


def test_a_new_device_shows_nothing_of_a_deleted_one(root: Path) -> None:
    pool = new_pool(root)
    seen = -1
    for thin_id in (1, 2):
        pool.create_thin(thin_id)
        pool.mapper.create("leak", "leak", thin_target(pool.numbers, thin_id, 8 << 20))
        with open("/dev/mapper/leak", "r+b", buffering=0) as file:
            seen = file.read(8 << 20).count(b"\xaa")
            file.seek(0)
            for _ in range(128):
                file.write(b"\xaa" * (65536 if thin_id == 1 else 512))
                file.seek(65024 if thin_id == 2 else 0, os.SEEK_CUR)
            os.fsync(file.fileno())
        pool.mapper.remove("leak")
        pool.delete(thin_id)

    assert seen == 0


def test_a_device_shown_with_another_length_is_not_believed(devices: DeviceMapperDevices) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    table = dmsetup("table", SNAPSHOT.name).split()
    dmsetup("reload", SNAPSHOT.name, "--table", f"0 {int(table[1]) // 2} {' '.join(table[2:])}")
    dmsetup("resume", SNAPSHOT.name)

    with pytest.raises(DeviceLost, match="not as it was recorded"):
        devices.verify(SNAPSHOT)


def test_a_name_that_another_program_has_taken_is_left_alone(devices: DeviceMapperDevices) -> None:
    sealed_small(devices)
    dmsetup("create", SNAPSHOT.name, "--table", "0 8 error")

    with pytest.raises(DeviceLost, match="another program's device"):
        devices.snapshot(SMALL, SNAPSHOT)
    assert "error" in dmsetup("table", SNAPSHOT.name)
    assert devices.thin_pool.ids() == [SMALL.id], "no snapshot is left in the pool"
    dmsetup("remove", SNAPSHOT.name)
    devices.snapshot(SMALL, SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)


def test_an_id_in_the_pool_that_nothing_of_ours_has_is_foreign(devices: DeviceMapperDevices) -> None:
    devices.thin_pool.create_thin(SMALL.id)

    assert devices.health(SMALL) is Health.FOREIGN
    with pytest.raises(DeviceLost, match="left as it is"):
        devices.create(SMALL)
    with pytest.raises(DeviceLost, match="left as it is"):
        devices.delete(SMALL)
    assert devices.thin_pool.ids() == [SMALL.id]


def test_nothing_is_written_to_a_file_system_after_it_was_made(devices: DeviceMapperDevices) -> None:
    devices.create(Device(id=5, name="thin-5", uuid=ORIGIN.uuid, size=10 << 30))
    devices.mount(Device(id=5, name="thin-5", uuid=ORIGIN.uuid, size=10 << 30))
    used = devices.thin_pool.status().used_data_blocks
    devices.unmount(Device(id=5, name="thin-5", uuid=ORIGIN.uuid, size=10 << 30))
    later = groups_written_later("/dev/mapper/thin-5")
    subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "/dev/mapper/thin-5"], check=True)
    otherwise = groups_written_later("/dev/mapper/thin-5")

    assert used < 60, "10 GiB with all inode tables written would be thousands"
    assert (later, otherwise) == (0, 80), "also where it is mounted without our options"


def groups_written_later(node: str) -> int:
    """How many parts of the inode table the kernel would write in the minutes after a mount, once they were used."""
    text = subprocess.run(["dumpe2fs", node], check=True, capture_output=True, text=True).stdout
    return sum("ITABLE_ZEROED" not in line for line in re.findall(r"^Group \d+:.*", text, re.MULTILINE))


def test_there_are_inodes_for_all_files_that_were_counted(devices: DeviceMapperDevices) -> None:
    devices.create(msgspec.structs.replace(SMALL, files=20_000))
    room = os.statvfs(devices.mount(SMALL))

    assert room.f_ffree > 20_000


def test_mounts_forbid_what_an_image_could_bring_and_are_not_passed_on(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    subprocess.run(["mount", "--make-rshared", "/"], check=True)  # as systemd does
    try:
        point = devices.mount(SMALL)
        [line] = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(point) in line]
        devices.unmount(SMALL)
    finally:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)

    assert {"nosuid", "nodev", "noexec", "noatime"} <= set(line.split()[5].split(","))
    assert "shared:" not in line


def test_a_suspended_snapshot_is_resumed_when_it_is_used(devices: DeviceMapperDevices) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    dmsetup("suspend", SNAPSHOT.name)
    devices.activate(SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)

    assert "SUSPENDED" not in dmsetup("info", SNAPSHOT.name)


def test_stacked_mounts_are_undone_newest_first(devices: DeviceMapperDevices) -> None:
    devices.create(SMALL)
    point = devices.mount(SMALL)
    subprocess.run(["mount", "--bind", str(point), str(point)], check=True)
    devices.unmount(SMALL)
    devices.delete(SMALL)

    assert devices.found() == []


def test_an_origin_that_is_mounted_gives_no_snapshot(devices: DeviceMapperDevices) -> None:
    make_origin(devices)
    devices.mount(ORIGIN)

    with pytest.raises(DeviceBusy, match="in use"):
        devices.snapshot(ORIGIN, SNAPSHOT)
    assert devices.health(SNAPSHOT) is Health.ABSENT


# --- held against each other, and the command -------------------------------------------------------------------


def test_what_differs_between_pool_records_and_device_mapper_is_told(devices: DeviceMapperDevices) -> None:
    sealed_small(devices)
    devices.snapshot(SMALL, SNAPSHOT)
    agreed = devices.disagreements()
    devices.thin_pool.create_thin(99)
    dmsetup("remove", SNAPSHOT.name)
    dmsetup("message", devices.thin_pool.record.name, "0", f"delete {SNAPSHOT.id}")
    found = {(each.code, each.subject) for each in devices.disagreements()}

    assert agreed == []
    assert found == {("device-lost", SNAPSHOT.name), ("unknown-id", "id 99")}


def test_a_pool_is_made_shown_extended_and_checked_by_the_command(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def holdfast(*arguments: str) -> tuple[int, str]:
        entries = {
            **EXTENSION.entries,
            "pool": CommandEntry("holdfast_images.cli.administration", "pool", "The thin pool."),
        }
        extension = EXTENSION._replace(entries=entries)
        status = main(["pool", *arguments, "--state", str(root / "state"), "--data", str(root)], extension=extension)
        return status, capsys.readouterr().out

    made = holdfast("create", "--size", "64M")
    shown = holdfast("status", "--json")
    extended = holdfast("extend", "--size", "80M")
    checked = holdfast("check", "--offline")
    again = holdfast("create", "--size", "64M")

    assert (made[0], shown[0], extended[0], checked[0]) == (0, 0, 0, 0)
    assert '"health":"ok"' in shown[1]
    assert "/1280" in extended[1]
    assert again[0] != 0


@pytest.mark.parametrize("point", POINTS)
def test_killed_where_only_this_backend_can_be_it_is_made_anew(
    devices: DeviceMapperDevices, tmp_path: Path, point: str
) -> None:
    code = join_all([start(run_and_die, "devicemapper", str(tmp_path), "create", point)])
    left = devices.thin_pool.ids()
    before = devices.health(ORIGIN)
    devices.create(ORIGIN)
    devices.seal(ORIGIN)

    assert code == [-9], "the point was passed"
    assert (left, before) == ([ORIGIN.id], Health.ABSENT), "half-made, known to be ours, and not believed"
    assert devices.thin_pool.ids() == [ORIGIN.id]
    assert devices.records.leftovers() == []
    assert devices.disagreements() == []


def test_several_processes_may_put_a_pool_to_use_at_once(root: Path) -> None:
    new_pool(root)
    remove_everything()
    codes = join_all([start(open_and_close, str(root)) for _ in range(3)])

    assert codes == [0, 0, 0]


def open_and_close(root: str) -> None:
    devices = DeviceMapperDevices.open(root)
    devices.thin_pool.ids()
    devices.close()


def test_a_file_system_that_the_pool_has_no_room_for_is_no_space(root: Path) -> None:
    ThinPool.create(root, size=16 << 20)
    devices = DeviceMapperDevices.open(root)
    pool = devices.thin_pool
    pool.create_thin(77)
    pool.mapper.create("filler", "filler", thin_target(pool.numbers, 77, 16 << 20))
    with open("/dev/mapper/filler", "r+b", buffering=0) as file:
        file.write(b"x" * (254 * 65536))
        os.fsync(file.fileno())
    pool.mapper.remove("filler")

    with pytest.raises(NoSpace, match="does not fit"):
        devices.create(SMALL)
    assert pool.ids() == [77], "what was begun is gone"
    assert devices.records.leftovers() == []
