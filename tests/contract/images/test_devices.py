"""What every backend of devices promises."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec
import pytest

from holdfast_images.devices.protocol import Device, DeviceKind, Devices, Health, PoolHealth
from holdfast_images.errors import DeviceBusy, DeviceLost, ImageError
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill, make_origin, open_backend, work_in
from tests.support.images.device_tampering import TAMPERINGS, fill_for_tampering
from tests.support.processes import kill, start
from tests.support.waiting import eventually


def tree(content: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a faithful copy has to keep."""
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(content):
        for name in [".", *names, *files]:
            path = os.path.join(directory, name)
            there = os.lstat(path)
            body: object = None
            if stat.S_ISREG(there.st_mode):
                body = Path(path).read_bytes()
            elif stat.S_ISLNK(there.st_mode):
                body = os.readlink(path)
            links = 1 if stat.S_ISDIR(there.st_mode) else there.st_nlink
            attributes = (there.st_mode, there.st_uid, there.st_gid, links, there.st_mtime_ns, body)
            found[os.path.relpath(path, content)] = attributes
    return found


def test_what_was_never_made_is_absent(devices: Devices) -> None:
    assert devices.health(ORIGIN) is Health.ABSENT
    with pytest.raises(DeviceLost):
        devices.verify(ORIGIN)
    with pytest.raises(DeviceLost):
        devices.activate(ORIGIN)


def test_a_created_device_is_healthy_empty_and_not_yet_believed(devices: Devices) -> None:
    devices.create(ORIGIN)

    assert devices.health(ORIGIN) is Health.HEALTHY
    assert list(devices.mount(ORIGIN).iterdir()) == []
    with pytest.raises(DeviceLost, match="never finished"):
        devices.verify(ORIGIN)


def test_creating_again_keeps_what_is_there(devices: Devices) -> None:
    devices.create(ORIGIN)
    (devices.mount(ORIGIN) / "file").write_text("kept")
    devices.create(ORIGIN)

    assert (devices.mount(ORIGIN) / "file").read_text() == "kept"


@pytest.mark.parametrize("change", [{"id": 1}, {"uuid": "another"}])
def test_a_device_that_holds_something_else_is_foreign_and_left_alone(
    devices: Devices, change: dict[str, object]
) -> None:
    make_origin(devices)
    other = msgspec.structs.replace(ORIGIN, **change)

    assert devices.health(other) is Health.FOREIGN
    for use in (devices.create, devices.delete, devices.verify, devices.mount, devices.seal):
        with pytest.raises(DeviceLost):
            use(other)
    devices.verify(ORIGIN, deep=True)


def test_a_sealed_device_is_verified_and_unmounted(devices: Devices) -> None:
    make_origin(devices)
    devices.verify(ORIGIN)
    devices.verify(ORIGIN, deep=True)
    found = devices.found()

    assert [(one.name, one.id, one.kind, one.sealed, one.busy) for one in found] == [
        (ORIGIN.name, ORIGIN.id, DeviceKind.DEVICE, True, False)
    ]


def test_sealing_twice_is_sealing_once(devices: Devices) -> None:
    make_origin(devices)
    first = devices.seal(ORIGIN)
    second = devices.seal(ORIGIN)

    assert first == second
    assert first.files > 5
    assert first.used_bytes < first.apparent_bytes, "there is a sparse file in it"


@pytest.mark.sampled("tamper")
@pytest.mark.parametrize("tamper", TAMPERINGS)
def test_a_deep_look_finds_what_was_changed_after_sealing(devices: Devices, tamper: str) -> None:
    devices.create(ORIGIN)
    fill_for_tampering(devices.mount(ORIGIN))
    devices.seal(ORIGIN)
    devices.verify(ORIGIN, deep=True)
    TAMPERINGS[tamper](devices.mount(ORIGIN))
    devices.unmount(ORIGIN)

    devices.verify(ORIGIN)
    with pytest.raises(DeviceLost, match="not as it was sealed"):
        devices.verify(ORIGIN, deep=True)
    with pytest.raises(DeviceLost, match="not as it was sealed"):
        devices.snapshot(ORIGIN, SNAPSHOT)
    assert devices.health(SNAPSHOT) is Health.ABSENT
    devices.delete(ORIGIN)
    assert devices.found() == []


def test_a_snapshot_is_a_faithful_copy(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)

    assert tree(devices.mount(SNAPSHOT)) == tree(devices.mount(ORIGIN))
    assert devices.path_of(SNAPSHOT.name) == devices.activate(SNAPSHOT)
    assert {(one.name, one.kind, one.origin) for one in devices.found()} == {
        (ORIGIN.name, DeviceKind.DEVICE, None),
        (SNAPSHOT.name, DeviceKind.SNAPSHOT, ORIGIN.id),
    }


def test_holes_stay_holes_in_a_snapshot(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)

    assert devices.usage(SNAPSHOT).apparent_bytes == devices.usage(ORIGIN).apparent_bytes
    assert devices.usage(SNAPSHOT).used_bytes < devices.usage(SNAPSHOT).apparent_bytes


def test_whoever_writes_to_a_snapshot_does_not_change_its_origin(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    (devices.mount(SNAPSHOT) / "rootfs/etc/file-2").write_bytes(b"changed")
    devices.verify(ORIGIN, deep=True)
    devices.snapshot(ORIGIN, SNAPSHOT)

    assert (devices.mount(SNAPSHOT) / "rootfs/etc/file-2").read_bytes() == b"changed", "taken again, it is the same"


def test_a_snapshot_needs_a_sealed_origin(devices: Devices) -> None:
    with pytest.raises(DeviceLost):
        devices.snapshot(ORIGIN, SNAPSHOT)
    devices.create(ORIGIN)
    with pytest.raises(DeviceLost, match="never finished"):
        devices.snapshot(ORIGIN, SNAPSHOT)

    assert devices.health(SNAPSHOT) is Health.ABSENT


def test_a_snapshot_does_not_take_the_place_of_another_origins(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    other = Device(id=9, name="thin-9", uuid=ORIGIN.uuid)
    devices.create(other)
    devices.seal(other)

    with pytest.raises(DeviceLost):
        devices.snapshot(other, SNAPSHOT)


def test_a_snapshot_whose_record_cannot_be_read_keeps_what_was_written_to_it(devices: Devices, tmp_path: Path) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    (devices.mount(SNAPSHOT) / "precious").write_text("mine")
    devices.unmount(SNAPSHOT)
    (tmp_path / "devices" / SNAPSHOT.name / "identity.json").write_bytes(b"")
    before = devices.health(SNAPSHOT)
    devices.snapshot(ORIGIN, SNAPSHOT)
    devices.verify(SNAPSHOT)

    assert before is Health.HALF_MADE
    assert (devices.mount(SNAPSHOT) / "precious").read_text() == "mine"
    assert [one.name for one in devices.found()] == [SNAPSHOT.name, ORIGIN.name]


def test_a_snapshot_whose_record_cannot_be_read_can_be_deleted(devices: Devices, tmp_path: Path) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    (tmp_path / "devices" / SNAPSHOT.name / "identity.json").write_bytes(b"{")
    devices.deactivate(SNAPSHOT)
    devices.delete(SNAPSHOT)

    assert devices.health(SNAPSHOT) is Health.ABSENT
    assert [one.name for one in devices.found()] == [ORIGIN.name]
    assert devices.disagreements() == []


def test_deleting_is_complete_and_may_be_repeated(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    for _ in range(2):
        devices.delete(SNAPSHOT)
        devices.delete(ORIGIN)

    assert devices.found() == []
    assert devices.collect() == 0


def test_what_is_mounted_is_not_deleted_or_deactivated(devices: Devices) -> None:
    devices.create(ORIGIN)
    devices.mount(ORIGIN)

    with pytest.raises(DeviceBusy):
        devices.delete(ORIGIN)
    with pytest.raises(DeviceBusy):
        devices.deactivate(ORIGIN)
    devices.unmount(ORIGIN)
    devices.unmount(ORIGIN)
    devices.deactivate(ORIGIN)
    devices.delete(ORIGIN)
    assert devices.health(ORIGIN) is Health.ABSENT


def test_a_sealed_device_may_stay_mounted_until_it_is_put_away(devices: Devices) -> None:
    devices.create(ORIGIN)
    fill(devices.mount(ORIGIN))
    usage = devices.seal(ORIGIN, stays_mounted=True)
    there = tree(devices.mount(ORIGIN))
    devices.verify(ORIGIN)
    with pytest.raises(DeviceBusy):
        devices.deactivate(ORIGIN)
    if devices.backend == "devicemapper":
        with pytest.raises(OSError, match="Read-only"):
            (devices.mount(ORIGIN) / "late").touch()
    again = devices.seal(ORIGIN, stays_mounted=True)
    devices.unmount(ORIGIN)
    devices.deactivate(ORIGIN)
    devices.verify(ORIGIN, deep=True)
    devices.snapshot(ORIGIN, SNAPSHOT)

    assert usage == again
    assert tree(devices.mount(SNAPSHOT)) == there


def test_what_is_open_is_not_deleted_or_deactivated(devices: Devices) -> None:
    make_origin(devices)
    devices.snapshot(ORIGIN, SNAPSHOT)
    descriptor = os.open(devices.activate(SNAPSHOT), os.O_RDONLY)
    for use in (devices.delete, devices.deactivate):
        with pytest.raises(DeviceBusy, match=SNAPSHOT.name):
            use(SNAPSHOT)
    devices.verify(SNAPSHOT, deep=True)
    os.close(descriptor)
    devices.deactivate(SNAPSHOT)
    devices.delete(SNAPSHOT)

    assert devices.health(SNAPSHOT) is Health.ABSENT


def test_a_live_writer_fences_the_device_and_a_dead_one_does_not(
    devices: Devices, backend_name: str, tmp_path: Path
) -> None:
    devices.create(ORIGIN)
    ready = tmp_path / "ready"
    writer = start(work_in, backend_name, str(tmp_path), str(ready))
    eventually(lambda: ready.exists() and ready.read_text() != "")

    assert [one.busy for one in devices.found()] == [True]
    for use in (devices.create, devices.seal, devices.delete):
        with pytest.raises(DeviceBusy, match=ORIGIN.name):
            use(ORIGIN)
    devices.mount(ORIGIN)
    with pytest.raises(DeviceBusy):
        devices.create(ORIGIN)
    devices.unmount(ORIGIN)
    kill(writer)
    devices.create(ORIGIN)
    devices.delete(ORIGIN)
    assert devices.health(ORIGIN) is Health.ABSENT


def test_another_process_finds_the_same(devices: Devices, backend_name: str, tmp_path: Path) -> None:
    make_origin(devices)
    other = open_backend(backend_name, tmp_path)
    other.verify(ORIGIN, deep=True)

    assert other.found() == devices.found()
    assert other.usage(ORIGIN) == devices.usage(ORIGIN)


def test_the_pool_tells_how_much_room_there_is(devices: Devices) -> None:
    pool = devices.pool()

    assert pool.health in (PoolHealth.OK, PoolHealth.LOW)
    assert 0 < pool.available_bytes <= pool.capacity_bytes
    assert 0 < pool.used_bytes <= pool.capacity_bytes


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", ".hidden", "x" * 300, "nul\0"])
def test_a_name_that_leads_elsewhere_is_refused(devices: Devices, name: str) -> None:
    device = Device(id=1, name=name, uuid="u")

    for use in (devices.create, devices.delete, devices.health, devices.verify):
        with pytest.raises(ImageError):
            use(device)


def test_mode_000_and_deep_trees_are_deleted(devices: Devices) -> None:
    devices.create(ORIGIN)
    content = devices.mount(ORIGIN)
    fill(content)
    closed = content / "closed/inside"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0)
    closed.parent.chmod(0)
    descriptor = os.open(content, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("deep", dir_fd=descriptor)
        below = os.open("deep", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    devices.unmount(ORIGIN)
    devices.delete(ORIGIN)

    assert devices.found() == []
    assert devices.collect() == 0
