"""The whole pipeline on real thin devices: made, handed off, healed, refused, removed."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.core.records import JobResult
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.dm_control import DeviceMapper
from holdfast_images.devices.lock import set_hook
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import DeactivateRequest, RemoveRequest, key_of
from tests.devicemapper.conftest import Process
from tests.devicemapper.flow_context import (
    DEVICE_SIZE,
    IMAGE_ID,
    SNAPSHOT,
    content_of,
    context,
    faults,
    image_of,
    mount_state,
    request_for,
)
from tests.devicemapper.pools import STATE, change_pool, remove_everything

STAGES = ("download", "unpack", "activate")


def outcomes(results: dict[str, JobResult]) -> list[str | None]:
    return [results[stage].outcome for stage in STAGES]


def dmsetup(*arguments: str) -> str:
    """The administrator, behind our back."""
    return subprocess.run(["dmsetup", *arguments], check=True, capture_output=True, text=True).stdout


def device_of(ctx: FlowContext) -> tuple[str, str]:
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    return row.device_id, row.device_name


def test_an_image_becomes_a_snapshot_that_can_be_mounted(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    results = process()
    _, name = device_of(ctx)
    point = tmp_path / "user"
    point.mkdir()
    subprocess.run(["mount", f"/dev/mapper/{SNAPSHOT}", str(point)], check=True)
    size = (point / "rootfs/usr/0/file-7").stat().st_size
    subprocess.run(["umount", str(point)], check=True)

    assert outcomes(results) == ["completed"] * 3
    assert size == 20_000
    assert content_of(devices, name) == content_of(devices, SNAPSHOT)
    assert int(dmsetup("table", SNAPSHOT).split()[1]) * 512 == DEVICE_SIZE
    assert "thin-" not in dmsetup("ls"), "a sealed device is inactive"
    assert faults(ctx, devices) == []


def test_what_is_done_is_handed_off_and_changes_no_device(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process()
    source.unlink()
    table, status = dmsetup("table", SNAPSHOT), devices.thin_pool.status()
    caplog.set_level(logging.DEBUG, "holdfast_images.devices")
    again = process()
    calls = [record.message for record in caplog.records if record.name == "holdfast_images.devices"]

    assert outcomes(again) == ["handoff"] * 3
    assert (dmsetup("table", SNAPSHOT), devices.thin_pool.status()) == (table, status)
    assert any(call.startswith("dmsetup info") for call in calls), "what is asked of the kernel is in the log"
    changes = ("dmsetup message", "dmsetup suspend", "dmsetup resume", "dmsetup reload", "mount", "umount", "mkfs")
    assert [call for call in calls if call.startswith(changes)] == []
    assert faults(ctx, devices) == []


def test_a_snapshot_removed_by_dmsetup_is_activated_again_with_what_was_written_to_it(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    process()
    point = tmp_path / "user"
    point.mkdir()
    subprocess.run(["mount", f"/dev/mapper/{SNAPSHOT}", str(point)], check=True)
    (point / "written").write_text("by the user")
    subprocess.run(["umount", str(point)], check=True)
    dmsetup("remove", SNAPSHOT)
    healed = process()

    assert outcomes(healed) == ["handoff", "handoff", "completed"]
    assert "written" in content_of(devices, SNAPSHOT)
    assert faults(ctx, devices) == []


def test_a_snapshot_deleted_from_the_pool_is_made_again(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices
) -> None:
    process()
    [row] = ctx.catalog.list_snapshots()
    dmsetup("remove", SNAPSHOT)
    dmsetup("message", devices.thin_pool.record.name, "0", f"delete {row.snapshot_id}")
    healed = process()

    assert outcomes(healed) == ["handoff", "handoff", "completed"]
    assert content_of(devices, SNAPSHOT) == content_of(devices, device_of(ctx)[1])
    assert faults(ctx, devices) == []


def test_a_device_deleted_from_the_pool_is_unpacked_again(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices
) -> None:
    process()
    device_id, name = device_of(ctx)
    whole = content_of(devices, name)
    dmsetup("message", devices.thin_pool.record.name, "0", f"delete {device_id}")
    healed = process()

    assert outcomes(healed) == ["handoff", "completed", "handoff"]
    assert content_of(devices, name) == whole
    assert faults(ctx, devices) == []


def test_a_device_written_to_behind_our_back_is_found_by_a_deep_look_and_made_again(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    process()
    device_id, name = device_of(ctx)
    whole = content_of(devices, name)
    pool = dmsetup("info", "-c", "--noheadings", "-o", "major,minor", "--separator", ":", devices.thin_pool.record.name)
    dmsetup("create", "evil", "--table", f"0 {DEVICE_SIZE // 512} thin {pool.strip()} {device_id}")
    (tmp_path / "evil").mkdir()
    subprocess.run(["mount", "/dev/mapper/evil", str(tmp_path / "evil")], check=True)
    (tmp_path / "evil/rootfs/etc/added").touch()
    subprocess.run(["umount", str(tmp_path / "evil")], check=True)
    dmsetup("remove", "evil")
    torn = process(snapshot="second")
    healed = process(verify=True)

    assert "not as it was sealed" in (torn["activate"].reason or "")
    assert outcomes(healed)[:2] == ["handoff", "completed"]
    assert content_of(devices, name) == whole


def test_after_a_reboot_everything_is_put_to_use_again(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, tmp_path: Path
) -> None:
    process()
    before = content_of(devices, SNAPSHOT)
    remove_everything()  # as a reboot does: the kernel knows nothing any more
    again = DeviceMapperDevices.open(tmp_path)
    healed = process()

    assert outcomes(healed) == ["handoff", "handoff", "completed"]
    assert content_of(again, SNAPSHOT) == before
    assert faults(ctx, again) == []


def test_an_id_that_somebody_else_uses_is_left_alone_and_another_taken(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, engine: Engine
) -> None:
    process()
    device_id, _ = device_of(ctx)
    removal = engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID, force=True))
    engine.wait(removal, timeout=60)
    dmsetup("message", devices.thin_pool.record.name, "0", f"create_thin {device_id}")
    results = process()

    assert outcomes(results) == ["completed"] * 3
    assert device_of(ctx)[0] != device_id
    assert int(device_id) in devices.thin_pool.ids(), "it is not ours to delete"


def test_removing_an_image_leaves_nothing_in_the_pool(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, engine: Engine
) -> None:
    process()
    process(snapshot="vm-2")
    removal = engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID, force=True))
    result = engine.wait(removal, timeout=60)

    assert result.state is JobState.SUCCEEDED
    assert devices.thin_pool.ids() == []
    assert devices.thin_pool.status().used_data_blocks == 0
    assert faults(ctx, devices) == []


def test_a_snapshot_that_a_user_has_mounted_is_not_taken_away(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, engine: Engine, tmp_path: Path
) -> None:
    process()
    point = tmp_path / "user"
    point.mkdir()
    subprocess.run(["mount", f"/dev/mapper/{SNAPSHOT}", str(point)], check=True)
    request = DeactivateRequest(snapshot_name=SNAPSHOT, delete=True)
    job = engine.submit("deactivate-snapshot", request)
    result = engine.wait(job, timeout=90)
    names = sorted(path.name for path in point.iterdir())
    subprocess.run(["umount", str(point)], check=True)

    assert result.state is not JobState.SUCCEEDED
    assert str(point) in (result.reason or ""), "the error says who holds it"
    assert "rootfs" in names


def test_an_image_that_cannot_fit_is_refused_with_the_numbers_before_anything_is_made(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, source: Path
) -> None:
    dmsetup_fill(devices, leave=20)
    source.write_bytes(image_of(100, 40_000))
    refused = process()

    assert (refused["unpack"].reason or "").startswith("NoSpace: ")
    assert "bytes, and" in (refused["unpack"].reason or "")
    assert ctx.catalog.list_unpacked_images() == []
    assert devices.found() == []


def test_a_read_only_pool_is_told_before_anything_is_made(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices
) -> None:
    change_pool(devices.thin_pool, "2 error_if_no_space read_only")
    refused = process()
    change_pool(devices.thin_pool, "1 error_if_no_space")

    assert (refused["unpack"].reason or "").startswith("PoolUnusable: ")
    assert outcomes(process())[1:] == ["completed"] * 2
    assert faults(ctx, devices) == []


def dmsetup_fill(devices: DeviceMapperDevices, *, leave: int) -> None:
    """Use up the pool but for some blocks, as another device of it might."""
    pool = devices.thin_pool
    status = pool.status()
    blocks = status.total_data_blocks - status.used_data_blocks - leave
    pool.create_thin(77)
    mapper = DeviceMapper()
    from holdfast_images.devices.dm_table import thin_target

    mapper.create("filler", "filler", thin_target(pool.numbers, 77, blocks * 65536))
    with open("/dev/mapper/filler", "r+b", buffering=0) as file:
        for number in range(blocks):
            file.seek(number * 65536)
            file.write(b"full")
    mapper.remove("filler")
    mapper.close()


def test_a_pool_that_fills_up_in_the_midst_aborts_cleanly_and_stays_usable(
    process: Process, ctx: FlowContext, devices: DeviceMapperDevices, source: Path
) -> None:
    """It was let in, and then somebody else has used up the room."""
    source.write_bytes(image_of(200, 40_000))
    set_hook(lambda point: dmsetup_fill(devices, leave=50) if point == "create.renamed" else None)
    failed = process()
    set_hook(None)
    devices.thin_pool.delete(77)
    healed = process()

    assert (failed["unpack"].reason or "").startswith("NoSpace: ")
    assert outcomes(healed)[1:] == ["completed"] * 2
    assert faults(ctx, devices) == []


def test_the_database_can_live_on_a_disk_of_its_own(tmp_path: Path, devices: DeviceMapperDevices, source: Path) -> None:
    state = mount_state(tmp_path / "state-disk")
    home = state / "probe"
    ctx = context(home, devices)
    with Engine.open(home, flows=all_flows(ctx)) as engine, engine.worker(concurrency=2):
        request = request_for(source)
        result = engine.wait(engine.submit("process-image", request, key=key_of(request)), timeout=100)
    found = faults(ctx, devices)
    ctx.catalog.close()
    files = {path.stat().st_dev for path in home.rglob("*") if path.is_file()}

    assert result.state is JobState.SUCCEEDED
    assert found == []
    assert files == {os.stat(STATE).st_rdev}, "database and image, all of it"
