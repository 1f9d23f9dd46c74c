"""Devices that somebody has touched from outside: put right by the ordinary call, or told of and left alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import NODES
from holdfast_images.devices.protocol import Health
from holdfast_images.devices.record import Identity
from holdfast_images.errors import DeviceBusy, DeviceLost, NotAsSealed, PoolUnusable, SnapshotOverwritten
from tests.devicemapper.pools import remove_everything
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill

SMALL = msgspec.structs.replace(ORIGIN, size=128 << 20)
SECOND = msgspec.structs.replace(SNAPSHOT, id=816, name="second")


def dmsetup(*words: str) -> str:
    done = subprocess.run(["dmsetup", *words], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def made(devices: DeviceMapperDevices) -> DeviceMapperDevices:
    """With a sealed device and a snapshot of it in use."""
    devices.create(SMALL)
    fill(devices.mount(SMALL))
    devices.seal(SMALL)
    devices.snapshot(SMALL, SNAPSHOT)
    return devices


@pytest.fixture
def point(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "point").mkdir()
    yield tmp_path / "point"
    subprocess.run(["umount", str(tmp_path / "point")], capture_output=True, check=False)


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[str]:
    """A disk of somebody else's, behind a loop device: other tests mount the guest's own."""
    disk = tmp_path / "elsewhere.img"
    disk.write_bytes(bytes(1 << 20))
    done = subprocess.run(["losetup", "--find", "--show", disk], capture_output=True, text=True, check=True)
    yield done.stdout.strip()
    remove_everything()
    subprocess.run(["losetup", "--detach", done.stdout.strip()], check=True)


def mount(node: Path | str, point: Path) -> None:
    subprocess.run(["mount", str(node), str(point)], check=True)


def unmount(point: Path) -> None:
    subprocess.run(["umount", str(point)], check=True)


def identity_of(devices: DeviceMapperDevices, name: str) -> Identity:
    _, identity = devices.records.read(name)
    assert identity is not None
    return identity


def show_elsewhere(devices: DeviceMapperDevices, name: str) -> Path:
    identity = identity_of(devices, name)
    dmsetup("create", "holder", "--table", f"0 {identity.size // 512} thin {devices.thin_pool.numbers} {identity.id}")
    return NODES / "holder"


def codes(devices: DeviceMapperDevices) -> set[str]:
    return {each.code for each in devices.disagreements()}


# --- names ------------------------------------------------------------------------------------------------------


def test_a_renamed_snapshot_that_is_mounted_is_not_deleted(made: DeviceMapperDevices, point: Path) -> None:
    dmsetup("rename", SNAPSHOT.name, "renamed")
    mount(NODES / "renamed", point)
    (point / "precious").write_bytes(b"p" * 300_000)
    for remove in (made.deactivate, made.delete, made.delete):
        with pytest.raises(DeviceBusy, match="renamed is in use"):
            remove(SNAPSHOT)
    busy = {one.name: one.busy for one in made.found()}
    unmount(point)
    made.snapshot(SMALL, SNAPSHOT)
    mount(NODES / SNAPSHOT.name, point)

    assert busy[SNAPSHOT.name]
    assert (point / "precious").read_bytes() == b"p" * 300_000


def test_a_renamed_snapshot_gets_its_name_back_while_it_is_mounted(made: DeviceMapperDevices, point: Path) -> None:
    dmsetup("rename", SNAPSHOT.name, "renamed")
    mount(NODES / "renamed", point)
    found = codes(made)
    with pytest.raises(DeviceLost, match="is not active"):
        made.verify(SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)
    made.verify(SNAPSHOT)
    (point / "written").touch()

    assert found == {"renamed-device"}
    assert not os.path.lexists(NODES / "renamed")
    assert codes(made) == set()


def test_what_another_program_shows_is_neither_deleted_nor_taken_a_snapshot_of(made: DeviceMapperDevices) -> None:
    holder = show_elsewhere(made, SMALL.name)
    with holder.open("r+b", buffering=0) as file:
        file.seek(100 << 20)
        file.write(b"x" * 4096)
        with pytest.raises(DeviceBusy, match="is shown as holder"):
            made.snapshot(SMALL, SECOND)
        with pytest.raises(DeviceBusy, match="is shown as holder"):
            made.delete(SMALL)
    found = codes(made)
    dmsetup("remove", "holder")
    made.verify(SMALL, deep=True)
    made.snapshot(SMALL, SECOND)

    assert found == {"shown-elsewhere"}


def test_what_another_program_shows_over_a_disk_of_its_own_is_not_deleted(
    made: DeviceMapperDevices, elsewhere: str, point: Path
) -> None:
    identity = identity_of(made, SNAPSHOT.name)
    made.deactivate(SNAPSHOT)
    table = f"0 {identity.size // 512} thin {made.thin_pool.numbers} {identity.id} {elsewhere}"
    dmsetup("create", "holder", "--table", table)
    mount(NODES / "holder", point)
    (point / "precious").write_bytes(b"p" * 300_000)
    found = codes(made)
    with pytest.raises(DeviceBusy, match="is shown as holder"):
        made.delete(SNAPSHOT)
    unmount(point)
    dmsetup("remove", "holder")
    made.snapshot(SMALL, SNAPSHOT)
    mount(NODES / SNAPSHOT.name, point)

    assert found == {"shown-elsewhere"}
    assert (point / "precious").read_bytes() == b"p" * 300_000


def test_devices_of_others_may_be_called_anything(made: DeviceMapperDevices, elsewhere: str) -> None:
    for name in (b"gr\xc3\xbc\xc3\x9fe", b"\xff\xfe", b"with blank"):
        words = [
            b"dmsetup",
            b"--manglename",
            b"none",
            b"create",
            name,
            b"--table",
            f"0 8 linear {elsewhere} 0".encode(),
        ]
        subprocess.run(words, check=True)
    made.snapshot(SMALL, SECOND)
    made.delete(SECOND)

    assert codes(made) == set()


def test_a_name_that_another_program_has_taken_is_told(made: DeviceMapperDevices, elsewhere: str) -> None:
    made.deactivate(SNAPSHOT)
    dmsetup("create", SNAPSHOT.name, "--table", f"0 8 linear {elsewhere} 0")
    with pytest.raises(DeviceLost, match="another program's device"):
        made.snapshot(SMALL, SNAPSHOT)
    dmsetup("remove", SNAPSHOT.name)
    made.snapshot(SMALL, SNAPSHOT)

    made.verify(SNAPSHOT, deep=True)


# --- tables and nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_open", [False, True])
def test_a_wiped_table_is_put_right(made: DeviceMapperDevices, is_open: bool) -> None:
    held = os.open(NODES / SNAPSHOT.name, os.O_RDONLY) if is_open else None
    dmsetup("wipe_table", SNAPSHOT.name)
    found = codes(made)
    with pytest.raises(DeviceLost, match="error"):
        made.verify(SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)
    made.verify(SNAPSHOT, deep=True)
    if held is not None:
        os.close(held)

    assert found == {"wrong-table"}
    assert codes(made) == set()


def test_a_wiped_table_is_put_right_below_a_file_system_that_was_written_to(
    made: DeviceMapperDevices, point: Path
) -> None:
    mount(NODES / SNAPSHOT.name, point)
    (point / "unsaved").write_bytes(b"u" * 300_000)
    dmsetup("wipe_table", SNAPSHOT.name)
    made.snapshot(SMALL, SNAPSHOT)
    unmount(point)
    made.verify(SNAPSHOT)

    assert codes(made) == set()


def test_a_snapshot_that_was_made_read_only_can_be_written_to_again(made: DeviceMapperDevices, point: Path) -> None:
    dmsetup("load", "--readonly", SNAPSHOT.name, "--table", dmsetup("table", SNAPSHOT.name).strip())
    dmsetup("resume", SNAPSHOT.name)
    subprocess.run(["mount", "-o", "ro", str(NODES / SNAPSHOT.name), str(point)], check=True)
    found = codes(made)
    with pytest.raises(DeviceLost, match="read-only") as told:
        made.verify(SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)
    unmount(point)
    mount(NODES / SNAPSHOT.name, point)
    (point / "written").touch()

    assert found == {"wrong-table"}
    assert told.value.hint == f"holdfast snapshot activate {SNAPSHOT.name}"
    assert codes(made) == set()


def test_a_table_of_something_else_is_put_right_when_nobody_has_it_open(
    made: DeviceMapperDevices, elsewhere: str
) -> None:
    dmsetup("load", SNAPSHOT.name, "--table", f"0 8 linear {elsewhere} 0")
    dmsetup("resume", SNAPSHOT.name)
    with (NODES / SNAPSHOT.name).open("rb"), pytest.raises(DeviceBusy, match="linear"):
        made.snapshot(SMALL, SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)

    made.verify(SNAPSHOT, deep=True)


def test_a_missing_node_is_made_again(made: DeviceMapperDevices) -> None:
    (NODES / SNAPSHOT.name).unlink()
    found = codes(made)
    with pytest.raises(DeviceLost, match="is gone"):
        made.verify(SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)
    made.verify(SNAPSHOT, deep=True)

    assert found == {"missing-node"}
    assert codes(made) == set()


def test_a_node_that_leads_elsewhere_is_put_right(made: DeviceMapperDevices) -> None:
    (NODES / SNAPSHOT.name).unlink()
    (NODES / SNAPSHOT.name).symlink_to("/dev/null")
    made.snapshot(SMALL, SNAPSHOT)
    made.verify(SNAPSHOT, deep=True)

    assert (NODES / SNAPSHOT.name).is_block_device()


def test_a_directory_in_the_place_of_a_node_gives_way_if_nothing_is_in_it(made: DeviceMapperDevices) -> None:
    node = NODES / SNAPSHOT.name
    node.unlink()
    (node / "something").mkdir(parents=True)
    with pytest.raises(PoolUnusable, match="is a directory"):
        made.snapshot(SMALL, SNAPSHOT)
    (node / "something").rmdir()
    made.snapshot(SMALL, SNAPSHOT)

    made.verify(SNAPSHOT, deep=True)


def test_a_record_that_cannot_be_read_is_one_finding(made: DeviceMapperDevices) -> None:
    (made.records.home / SNAPSHOT.name / "identity.json").write_bytes(b"")

    assert [each.code for each in made.disagreements()] == ["unreadable-record"]


# --- content ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["another UUID", "another file system", "zeros"])
def test_a_snapshot_with_another_file_system_is_told_of_and_kept(made: DeviceMapperDevices, how: str) -> None:
    node = str(NODES / SNAPSHOT.name)
    if how == "another UUID":
        subprocess.run(["e2fsck", "-fy", node], capture_output=True, check=False)
        subprocess.run(["tune2fs", "-f", "-U", "random", node], check=True)
    elif how == "another file system":
        subprocess.run(["mkfs.ext4", "-q", "-F", node], check=True)
    else:
        with open(node, "r+b", buffering=0) as file:
            file.write(bytes(1 << 20))
    with pytest.raises(SnapshotOverwritten, match="it is kept"):
        made.verify(SNAPSHOT)
    with pytest.raises(SnapshotOverwritten, match="it is kept") as told:
        made.snapshot(SMALL, SNAPSHOT)

    assert f"snapshot deactivate {SNAPSHOT.name} --delete" in (told.value.hint or "")
    made.deactivate(SNAPSHOT)
    made.delete(SNAPSHOT)
    made.snapshot(SMALL, SNAPSHOT)
    made.verify(SNAPSHOT, deep=True)


@pytest.mark.parametrize("read_origins", [False, True])
def test_a_sealed_device_that_was_only_mounted_or_checked_is_as_good_as_before(
    made: DeviceMapperDevices, point: Path, read_origins: bool
) -> None:
    made._read_origins = read_origins
    holder = show_elsewhere(made, SMALL.name)
    mount(holder, point)
    unmount(point)
    subprocess.run(["e2fsck", "-fy", str(holder)], capture_output=True, check=False)
    dmsetup("remove", "holder")
    made.verify(SMALL, deep=True)
    made.snapshot(SMALL, SECOND)
    made.verify(SECOND, deep=True)

    assert codes(made) == set()


def test_a_sealed_device_that_was_not_unmounted_is_not_as_it_was_sealed(made: DeviceMapperDevices, point: Path) -> None:
    holder = show_elsewhere(made, SMALL.name)
    mount(holder, point)
    (point / "rootfs/evil").touch()
    subprocess.run(["sync", "-f", str(point)], check=True)
    raw = holder.read_bytes()[1024:2048]  # with the mark that there is a journal to be replayed
    unmount(point)
    (point / "x").touch()
    with holder.open("r+b", buffering=0) as file:
        file.seek(1024)
        file.write(raw)
        os.fsync(file.fileno())
    dmsetup("remove", "holder")
    with pytest.raises(NotAsSealed):
        made.verify(SMALL, deep=True)
    with pytest.raises(NotAsSealed):
        made.snapshot(SMALL, SECOND)


def test_a_block_that_rots_is_found_before_a_snapshot_is_made(made: DeviceMapperDevices) -> None:
    made.create(msgspec.structs.replace(SMALL, id=5, name="thin-5"))
    rotten = msgspec.structs.replace(SMALL, id=5, name="thin-5")
    (made.mount(rotten) / "file").write_bytes(b"\x07" * 8192)
    made.seal(rotten)
    holder = show_elsewhere(made, rotten.name)
    with holder.open("r+b", buffering=0) as file:
        at = next(at for at in range(0, rotten.size, 4096) if (file.seek(at), file.read(4096))[1] == b"\x07" * 4096)
        file.seek(at + 100)
        file.write(b"\x06")
        os.fsync(file.fileno())
    dmsetup("remove", "holder")
    made.verify(rotten)
    with pytest.raises(NotAsSealed):
        made.verify(rotten, deep=True)
    with pytest.raises(NotAsSealed):
        made.snapshot(rotten, SECOND)

    assert made.health(SECOND) is Health.ABSENT
    assert made.records.leftovers() == []


@pytest.mark.parametrize("start", [4096, 64 << 10], ids=["all but the superblock", "all but its descriptors"])
def test_a_file_system_that_was_zeroed_behind_its_superblock_is_not_as_it_was_sealed(
    made: DeviceMapperDevices, start: int
) -> None:
    holder = show_elsewhere(made, SMALL.name)
    with holder.open("r+b", buffering=0) as file:
        file.seek(start)
        file.write(bytes((16 << 20) - start))
        os.fsync(file.fileno())
    dmsetup("remove", "holder")
    with pytest.raises(NotAsSealed):
        made.verify(SMALL, deep=True)
    with pytest.raises(NotAsSealed):
        made.snapshot(SMALL, SECOND)

    assert made.records.leftovers() == []
    assert codes(made) == set()


def test_a_device_may_have_any_size(devices: DeviceMapperDevices) -> None:
    odd = msgspec.structs.replace(SMALL, size=(128 << 20) + 77)
    devices.create(odd)
    devices.seal(odd)
    devices.verify(odd, deep=True)

    assert identity_of(devices, odd.name).size == (128 << 20) + 4096
