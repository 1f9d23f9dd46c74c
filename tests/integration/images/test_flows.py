"""The flows on real parts: handed off when done, healed when broken, refused when they must be."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine, JobState, crash_points
from holdfast.core.records import JobResult
from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.catalog.catalog import Catalog
from holdfast_images.catalog.tables import DownloadStatus, Image, UnpackedImage
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.protocol import Device
from holdfast_images.errors import DeviceBusy, ImageRefused
from holdfast_images.flows.context import FlowContext, Timeouts
from holdfast_images.flows.process import QUEUE_LIMITS, all_flows
from holdfast_images.flows.schemas import ActivateRequest, DeactivateRequest, RemoveRequest, key_of
from tests.integration.images.conftest import Process
from tests.support.images.archives import member, symlink
from tests.support.images.small_image import IMAGE_ID, context_at, context_with, request_for, small_image, tree_of
from tests.support.waiting import eventually

STAGES = ("download", "unpack", "activate")


def outcomes(results: dict[str, JobResult]) -> list[str | None]:
    return [results[stage].outcome for stage in STAGES]


def reason(result: JobResult) -> str:
    assert result.state is JobState.FAILED, result
    return result.reason or ""


def hint(result: JobResult) -> str:
    assert result.error is not None, result
    return result.error.hint or ""


def device_path(ctx: FlowContext) -> Path:
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    return Path(row.device_path)


def snapshot_path(ctx: FlowContext, name: str = f"snap-{IMAGE_ID}") -> Path:
    row = ctx.catalog.check_snapshot_exists(IMAGE_ID, name)
    assert row is not None
    return Path(row.device_path)


def assert_consistent(ctx: FlowContext) -> None:
    """Nothing is left that no row knows, and no row is left that nothing stands for."""
    rows = {row.snapshot_name for row in ctx.catalog.list_snapshots()}
    rows |= {row.device_name for row in ctx.catalog.list_unpacked_images()}

    assert {found.name for found in ctx.devices.found()} == rows
    assert ctx.catalog.violations() == []
    assert ctx.catalog.list_image_locks() == []
    assert not [path for path in ctx.images.iterdir() if path.name.startswith(".")]


# --- done before --------------------------------------------------------------------------------------------


def test_an_image_becomes_a_snapshot(process: Process, ctx: FlowContext) -> None:
    results = process()
    tree = tree_of(snapshot_path(ctx))

    assert outcomes(results) == ["completed"] * 3
    assert (snapshot_path(ctx) / "rootfs/etc/hostname").read_bytes() == b"small\n"
    assert tree == tree_of(device_path(ctx))
    assert_consistent(ctx)


def test_what_is_done_is_handed_off(process: Process, ctx: FlowContext, source: Path) -> None:
    process()
    source.unlink()  # nothing is to be read from there again
    again = process()

    assert outcomes(again) == ["handoff"] * 3
    assert_consistent(ctx)


def test_another_snapshot_of_the_same_image_is_only_activated(process: Process, ctx: FlowContext) -> None:
    process()
    second = process(snapshot="vm-2")
    (snapshot_path(ctx, "vm-2") / "rootfs/etc/hostname").write_bytes(b"changed\n")

    assert outcomes(second) == ["handoff", "handoff", "completed"]
    assert (snapshot_path(ctx) / "rootfs/etc/hostname").read_bytes() == b"small\n"
    assert (device_path(ctx) / "rootfs/etc/hostname").read_bytes() == b"small\n"
    assert_consistent(ctx)


# --- healed -------------------------------------------------------------------------------------------------


def test_who_undoes_the_work_each_time_is_told_of_and_not_fought_for_ever(process: Process, ctx: FlowContext) -> None:
    undone = []

    def undo(point: str) -> None:
        if point == "effect.snapshot.after":
            shutil.rmtree(ctx.devices.path_of(f"snap-{IMAGE_ID}").parent)
            undone.append(point)

    crash_points.set_hook(undo)
    try:
        results = process()
    finally:
        crash_points.set_hook(None)
    healed = process()

    assert reason(results["activate"]).startswith("DeviceLost: ")
    assert 1 < len(undone) < 10
    assert outcomes(healed) == ["handoff", "handoff", "completed"]
    assert_consistent(ctx)


def test_a_lost_snapshot_that_cannot_be_made_stays_wanted(process: Process, ctx: FlowContext) -> None:
    process()
    file = device_path(ctx) / "rootfs/etc/hostname"
    there = file.stat()
    file.write_bytes(b"smalL\n")
    os.utime(file, ns=(there.st_atime_ns, there.st_mtime_ns))
    shutil.rmtree(snapshot_path(ctx).parent)
    refused = process()
    row = ctx.catalog.check_snapshot_exists(IMAGE_ID, f"snap-{IMAGE_ID}")
    told = [violation for violation in ctx.catalog.violations() if violation.rule == 4]
    healed = process()

    assert "not as it was sealed" in reason(refused["activate"])
    assert row is not None
    assert row.active
    assert told == []
    assert healed["activate"].state is JobState.SUCCEEDED
    assert_consistent(ctx)


def test_an_origin_that_was_changed_gives_no_snapshot_and_is_unpacked_again(process: Process, ctx: FlowContext) -> None:
    process()
    first = tree_of(snapshot_path(ctx))
    file = device_path(ctx) / "rootfs/etc/hostname"
    there = file.stat()
    file.write_bytes(b"smalL\n")
    os.utime(file, ns=(there.st_atime_ns, there.st_mtime_ns))
    refused = process(snapshot="vm-2")
    row = ctx.catalog.check_snapshot_exists(IMAGE_ID, "vm-2")
    reserved = {each.snapshot_name for each in ctx.catalog.list_reservations()}
    healed = process(snapshot="vm-2")

    assert "not as it was sealed" in reason(refused["activate"])
    assert "process the image again" in hint(refused["activate"])
    assert (row, "vm-2" in reserved) == (None, False), "nothing is left of it"
    assert outcomes(healed) == ["handoff", "completed", "completed"]
    assert tree_of(snapshot_path(ctx, "vm-2")) == first
    assert_consistent(ctx)


def test_a_device_that_was_deleted_behind_our_back_is_made_again(process: Process, ctx: FlowContext) -> None:
    process()
    whole = tree_of(snapshot_path(ctx))
    shutil.rmtree(device_path(ctx).parent)
    healed = process()

    assert outcomes(healed) == ["handoff", "completed", "handoff"]
    assert tree_of(device_path(ctx)) == whole
    assert_consistent(ctx)


def test_a_device_without_snapshots_is_forgotten_and_made_again(
    process: Process, ctx: FlowContext, engine: Engine
) -> None:
    process()
    job = engine.submit("deactivate-snapshot", DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True))
    engine.wait(job, timeout=30)
    shutil.rmtree(device_path(ctx).parent)
    healed = process()

    assert outcomes(healed) == ["handoff", "completed", "completed"]
    assert_consistent(ctx)


def test_a_device_that_is_made_again_has_room_for_as_many_files(
    process: Process, ctx: FlowContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Device] = []
    create = DirectoryDevices.create

    def create_and_note(devices: DirectoryDevices, device: Device) -> None:
        made.append(device)
        create(devices, device)

    monkeypatch.setattr(DirectoryDevices, "create", create_and_note)
    process()
    shutil.rmtree(device_path(ctx).parent)
    process()

    assert [device.files for device in made] == [8, 8]


def test_a_device_is_put_away_when_it_is_recorded_and_not_before(
    process: Process, ctx: FlowContext, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    deactivate = DirectoryDevices.deactivate

    def deactivate_and_note(devices: DirectoryDevices, device: Device) -> None:
        deactivate(devices, device)
        rows = ctx.catalog.list_unpacked_images()
        asked.append(f"{device.name}, {len(rows)} recorded, locked {ctx.catalog.is_image_locked(IMAGE_ID)}")
        raise DeviceBusy(f"{device.name} is open")  # an administrator looks into it

    monkeypatch.setattr(DirectoryDevices, "deactivate", deactivate_and_note)
    crash_points.set_hook(lambda name: asked.append(f"mounted {_is_held(ctx)}") if name == MOMENT else None)
    try:
        results = process()
    finally:
        crash_points.set_hook(None)

    assert outcomes(results) == ["completed", "completed", "completed"]
    assert asked == ["mounted True", f"{ctx.devices.found()[-1].name}, 0 recorded, locked True"]
    assert "stays active" in caplog.text
    assert not _is_held(ctx)


MOMENT = "step.verify-layout.after"


def _is_held(ctx: FlowContext) -> bool:
    return any(each.busy for each in ctx.devices.found())


def test_a_snapshot_that_was_deleted_behind_our_back_is_made_again(process: Process, ctx: FlowContext) -> None:
    process()
    shutil.rmtree(snapshot_path(ctx).parent)
    healed = process()

    assert outcomes(healed) == ["handoff", "handoff", "completed"]
    assert tree_of(snapshot_path(ctx)) == tree_of(device_path(ctx))
    assert_consistent(ctx)


def test_a_file_that_was_deleted_is_downloaded_again(process: Process, ctx: FlowContext) -> None:
    process()
    ctx.file_of(IMAGE_ID).unlink()
    healed = process()

    assert outcomes(healed) == ["completed", "handoff", "handoff"]
    assert_consistent(ctx)


def test_a_file_that_was_changed_in_place_is_downloaded_again(process: Process, ctx: FlowContext, source: Path) -> None:
    process()
    file = ctx.file_of(IMAGE_ID)
    with file.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"!")
    healed = process()

    assert outcomes(healed) == ["completed", "handoff", "handoff"]
    assert file.read_bytes() == source.read_bytes()


def test_a_file_that_was_only_touched_is_read_once_and_believed(process: Process, ctx: FlowContext) -> None:
    process()
    os.utime(ctx.file_of(IMAGE_ID))
    again = process()
    verification = ctx.catalog.get_verification(IMAGE_ID)

    assert outcomes(again) == ["handoff"] * 3
    assert verification is not None
    assert verification.mtime_ns == ctx.file_of(IMAGE_ID).stat().st_mtime_ns


def test_verifying_finds_a_device_that_was_tampered_with(process: Process, ctx: FlowContext) -> None:
    process()
    (device_path(ctx) / "rootfs/etc/hostname").write_bytes(b"evil!\n")
    believed = process()
    verified = process(verify=True)

    assert outcomes(believed) == ["handoff"] * 3
    assert outcomes(verified) == ["handoff", "completed", "handoff"]
    assert (device_path(ctx) / "rootfs/etc/hostname").read_bytes() == b"small\n"


def test_a_file_that_goes_while_it_is_judged_again_is_downloaded_again(
    process: Process, ctx: FlowContext, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_bytes(small_image(symlink(b"rootfs/etc/mtab", b"/proc/mounts")))
    process(policy=Policy.DISTRO)
    find_refusal = Catalog.find_refusal

    def find_and_lose(catalog: Catalog, *key: Any, **content: Any) -> ImageRefused | None:
        # The last that is asked before the file is handed to the step that judges it.
        ctx.file_of(IMAGE_ID).unlink(missing_ok=True)
        return find_refusal(catalog, *key, **content)

    monkeypatch.setattr(Catalog, "find_refusal", find_and_lose)
    judged = process(policy=Policy.STRICT)

    assert reason(judged["download"]).startswith("ImageRefused: ")


# --- locks --------------------------------------------------------------------------------------------------


def test_a_lock_whose_owner_is_not_live_is_taken_over_and_journaled(
    process: Process, ctx: FlowContext, engine: Engine
) -> None:
    ctx.catalog.acquire_image_lock(IMAGE_ID, "job:01ARZ3NDEKTSV4RRFFQ69G5FAV")
    results = process()
    reasons = [entry.reason for entry in engine.store.journal(results["download"].job_id)]

    assert outcomes(results) == ["completed"] * 3
    assert any("took over the lock of job:01ARZ3NDEKTSV4RRFFQ69G5FAV" in reason for reason in reasons)
    assert_consistent(ctx)


def test_a_lock_whose_owner_is_live_is_waited_for(process: Process, ctx: FlowContext, engine: Engine) -> None:
    request = msgspec.structs.replace(request_for(Path("/nowhere")), image_id="other", s3_key="other")
    live = engine.submit("process-image", request, delay=3600)
    ctx.catalog.acquire_image_lock(IMAGE_ID, f"job:{live}")
    results: list[dict[str, JobResult]] = []
    waiting = threading.Thread(target=lambda: results.append(process()))
    waiting.start()
    eventually(lambda: _waits_for(engine, live), "the download waits for the owner of the lock")
    assert not results
    engine.cancel(live, reason="the test goes on")
    waiting.join(60)

    assert outcomes(results[0]) == ["completed"] * 3
    assert_consistent(ctx)


def test_what_is_done_waits_for_no_lock(process: Process, ctx: FlowContext, engine: Engine) -> None:
    process()
    request = msgspec.structs.replace(request_for(Path("/nowhere")), image_id="other", s3_key="other")
    live = engine.submit("process-image", request, delay=3600)
    ctx.catalog.acquire_image_lock(IMAGE_ID, f"job:{live}")

    assert outcomes(process()) == ["handoff"] * 3


def _waits_for(engine: Engine, job_id: str) -> bool:
    return any(job.flow == "download-image" and job.waits_for == job_id for job in engine.store.jobs(limit=50))


# --- refused ------------------------------------------------------------------------------------------------


def test_a_refused_image_leaves_nothing_and_is_refused_again_at_once(
    process: Process, ctx: FlowContext, source: Path
) -> None:
    source.write_bytes(small_image(member(b"rootfs/usr/su", b"", mode=0o4755)))
    first = process()
    [refusal] = ctx.catalog.list_refusals()
    again = process()
    image = ctx.catalog.get_image_by_id(IMAGE_ID)

    assert reason(first["download"]) == reason(again["download"])
    assert reason(first["download"]).startswith(f"ImageRefused: {refusal.code} at rootfs/usr/su")
    assert list(ctx.images.iterdir()) == []
    assert image is not None
    assert image.download_status is DownloadStatus.FAILED
    assert ctx.catalog.list_reservations() == []


def test_raised_limits_let_through_what_was_refused_by_lower_ones(
    process: Process, ctx: FlowContext, tmp_path: Path, source: Path
) -> None:
    narrow = context_with(ctx, limits=Limits(entries=3))
    with Engine.open(tmp_path / "other", flows=all_flows(narrow)) as engine, engine.worker(concurrency=2):
        job = engine.submit("process-image", request_for(source), key="narrow")
        engine.wait(job, timeout=30)
        [download] = engine.store.children(job)
        refused = reason(engine.wait(download.job_id))

    assert refused.startswith("ImageRefused: TOO_MANY_ENTRIES")
    assert outcomes(process()) == ["completed"] * 3


def test_an_image_that_was_made_harmless_is_taken(process: Process, ctx: FlowContext, source: Path) -> None:
    source.write_bytes(small_image(member(b"rootfs/usr/su", b"", mode=0o4755)))
    process()
    source.write_bytes(small_image())
    again = process()

    assert outcomes(again) == ["completed"] * 3
    assert ctx.catalog.list_refusals() == []


def test_stricter_rules_refuse_what_laxer_ones_took_and_harm_nothing(
    process: Process, ctx: FlowContext, source: Path
) -> None:
    source.write_bytes(small_image(symlink(b"rootfs/etc/mtab", b"/proc/mounts")))
    taken = process(policy=Policy.DISTRO)
    refused = process(policy=Policy.STRICT)
    again = process(policy=Policy.DISTRO)

    assert outcomes(taken) == ["completed"] * 3
    assert reason(refused["download"]).startswith("ImageRefused: ")
    assert outcomes(again) == ["handoff"] * 3
    assert_consistent(ctx)


def test_stricter_rules_that_come_at_the_same_time_harm_nothing(
    process: Process, ctx: FlowContext, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.write_bytes(small_image(symlink(b"rootfs/etc/mtab", b"/proc/mounts")))
    check = Catalog.check_image_downloaded
    taken: list[dict[str, JobResult]] = []
    asked = threading.Event()

    def take_meanwhile(catalog: Catalog, s3_key: str) -> Image | None:
        # The strict job has just been told that there is no such image.
        found = check(catalog, s3_key)
        if not asked.is_set():
            asked.set()
            taken.append(process(policy=Policy.DISTRO))
        return found

    monkeypatch.setattr(Catalog, "check_image_downloaded", take_meanwhile)
    refused = process(policy=Policy.STRICT)

    assert outcomes(taken[0]) == ["completed"] * 3
    assert reason(refused["download"]).startswith("ImageRefused: ")
    assert ctx.file_of(IMAGE_ID).read_bytes() == source.read_bytes()
    assert outcomes(process(policy=Policy.DISTRO)) == ["handoff"] * 3
    assert_consistent(ctx)


def test_a_job_that_waits_for_the_lock_removes_nothing_when_it_is_cancelled(
    process: Process, ctx: FlowContext, source: Path, engine: Engine
) -> None:
    request = msgspec.structs.replace(request_for(Path("/nowhere")), image_id="other", s3_key="other")
    live = engine.submit("process-image", request, delay=3600)
    ctx.catalog.acquire_image_lock(IMAGE_ID, f"job:{live}")
    ctx.images.mkdir(parents=True, exist_ok=True)
    partial = ctx.images / f".{IMAGE_ID}.tar.token.partial"
    partial.write_bytes(b"of the job that has the lock")
    request = request_for(source)
    job = engine.submit("process-image", request, key=key_of(request))
    eventually(lambda: _waits_for(engine, live), "the download waits for the owner of the lock")
    [download] = engine.store.children(job)
    engine.cancel(download.job_id, reason="the test wants it")
    ended = engine.wait(download.job_id, timeout=30)
    lock = ctx.catalog.get_image_lock(IMAGE_ID)

    assert ended.state is JobState.FAILED
    assert partial.exists()
    assert lock is not None
    assert lock.locked_by == f"job:{live}"


def test_judging_an_archive_has_its_time_and_no_more(tmp_path: Path, source: Path) -> None:
    hurried = context_with(context_at(tmp_path), timeouts=Timeouts(extract=0.001))
    with Engine.open(tmp_path / "state", flows=all_flows(hurried)) as engine, engine.worker(concurrency=2):
        request = request_for(source)
        job = engine.submit("process-image", request, key=key_of(request))
        engine.wait(job, timeout=30)
        [download] = engine.store.children(job)
        judged = engine.wait(download.job_id).reason or ""
    hurried.catalog.close()

    assert "step validate ran longer than its timeout" in judged or judged.startswith("ExtractionTimedOut: ")


def test_small_files_need_more_space_than_their_content(tmp_path: Path, source: Path) -> None:
    source.write_bytes(small_image(*(member(b"rootfs/usr/%d" % number, b"x") for number in range(500))))
    ctx = context_with(context_at(tmp_path), device_size=1 << 20)
    with Engine.open(tmp_path / "state", flows=all_flows(ctx)) as engine, engine.worker(concurrency=2):
        request = request_for(source)
        job = engine.submit("process-image", request, key=key_of(request))
        engine.wait(job, timeout=30)
        refused = reason(engine.wait(engine.store.children(job)[-1].job_id))
    ctx.catalog.close()

    assert refused.startswith("NoSpace: ")


def test_a_pinned_digest_is_the_only_content_that_is_taken(process: Process, ctx: FlowContext) -> None:
    wrong = process(sha256="0" * 64)

    assert reason(wrong["download"]).startswith("ChecksumMismatch: ")
    assert list(ctx.images.iterdir()) == []


def test_an_image_without_a_root_file_system_is_refused_and_its_device_removed(
    process: Process, ctx: FlowContext, source: Path
) -> None:
    from tests.support.images.archives import archive

    source.write_bytes(archive(member(b"file", b"x")))
    results = process()
    again = process()

    assert reason(results["unpack"]).startswith("ImageRefused: LAYOUT_NO_ROOTFS")
    assert reason(again["download"]) == reason(results["unpack"])
    assert ctx.devices.found() == []
    assert ctx.catalog.list_reservations() == []
    assert ctx.catalog.list_image_locks() == []


def test_an_image_id_that_is_recorded_under_another_key_is_refused_and_harms_nothing(
    process: Process, ctx: FlowContext, engine: Engine, tmp_path: Path
) -> None:
    process()
    before = ctx.file_of(IMAGE_ID).read_bytes()
    other = tmp_path / "other.tar"
    reasons = []
    for content in (small_image(member(b"rootfs/etc/other", b"other")), small_image(member(b"rootfs/su", mode=0o4755))):
        other.write_bytes(content)
        request = msgspec.structs.replace(request_for(other), s3_key="other/key.tar")
        job = engine.submit("process-image", request, key="another key")
        engine.wait(job, timeout=30)
        [download] = engine.store.children(job)
        reasons.append(reason(engine.wait(download.job_id)))

    assert all(text.startswith("CatalogConflict: ") and "images/small.tar" in text for text in reasons)
    assert ctx.file_of(IMAGE_ID).read_bytes() == before
    assert outcomes(process()) == ["handoff"] * 3
    assert_consistent(ctx)


def test_the_same_key_from_elsewhere_is_not_taken_for_what_was_downloaded(
    process: Process, ctx: FlowContext, engine: Engine, tmp_path: Path
) -> None:
    process()
    other = tmp_path / "other.tar"
    other.write_bytes(small_image(member(b"rootfs/etc/other", b"other")))
    job = engine.submit("process-image", request_for(other), key="another key")
    engine.wait(job, timeout=30)
    [download] = engine.store.children(job)
    refused = reason(engine.wait(download.job_id))

    assert refused.startswith("CatalogConflict: ")
    assert f"from file://{tmp_path / 'source.tar'}, not from file://{other}" in refused
    assert outcomes(process()) == ["handoff"] * 3
    assert_consistent(ctx)


def test_what_was_refused_when_it_was_unpacked_is_judged_again_if_asked_for(
    process: Process, ctx: FlowContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(content: Path) -> None:
        raise ImageRefused("LAYOUT_NO_ROOTFS", "by rules of an older version")

    with monkeypatch.context() as older:
        older.setattr("holdfast_images.flows.unpack.judge_layout", refuse)
        process()
    remembered, verified, taken = process(), process(verify=True), process()

    assert reason(remembered["download"]).endswith("by rules of an older version")
    assert verified["process"].state is JobState.SUCCEEDED
    assert outcomes(taken) == ["handoff"] * 3
    assert ctx.catalog.list_refusals() == []


def test_other_content_under_the_same_name_is_refused_while_snapshots_of_the_first_exist(
    process: Process, ctx: FlowContext, source: Path, engine: Engine
) -> None:
    process()
    source.write_bytes(small_image(member(b"rootfs/etc/new", b"new")))
    ctx.file_of(IMAGE_ID).unlink()
    refused = process()
    engine.wait(engine.submit("deactivate-snapshot", DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)))
    taken = process()

    assert reason(refused["download"]).startswith("CatalogConflict: ")
    assert outcomes(taken) == ["completed"] * 3
    assert (snapshot_path(ctx) / "rootfs/etc/new").read_bytes() == b"new"
    assert_consistent(ctx)


# --- undone -------------------------------------------------------------------------------------------------


def test_a_deactivated_snapshot_keeps_what_was_written_to_it(
    process: Process, ctx: FlowContext, engine: Engine
) -> None:
    process()
    (snapshot_path(ctx) / "rootfs/etc/mine").write_bytes(b"mine")
    engine.wait(engine.submit("deactivate-snapshot", DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}")), timeout=30)
    inactive = ctx.catalog.get_image_by_id(IMAGE_ID)
    again = process()

    assert inactive is not None
    assert inactive.activation_status == "inactive"
    assert outcomes(again) == ["handoff", "handoff", "completed"]
    assert (snapshot_path(ctx) / "rootfs/etc/mine").read_bytes() == b"mine"


def test_an_image_with_snapshots_is_removed_only_by_force(process: Process, ctx: FlowContext, engine: Engine) -> None:
    process()
    refused = engine.wait(engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID)), timeout=30)
    kept = tree_of(snapshot_path(ctx))
    forced = engine.wait(engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID, force=True)), timeout=30)

    assert "has snapshots" in reason(refused)
    assert kept
    assert forced.state is JobState.SUCCEEDED
    assert ctx.catalog.list_images() == []
    assert ctx.devices.found() == []
    assert list(ctx.images.iterdir()) == []
    assert ctx.catalog.list_reservations() == []
    assert ctx.catalog.list_image_locks() == []


def test_a_snapshot_of_a_device_that_is_gone_is_aborted(process: Process, ctx: FlowContext, engine: Engine) -> None:
    process()
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    shutil.rmtree(device_path(ctx).parent)
    request = ActivateRequest(
        image_id=IMAGE_ID, device_id=row.device_id, device_name=row.device_name, snapshot_name="late"
    )
    result = engine.wait(engine.submit("activate-image", request), timeout=30)

    assert reason(result).startswith("DeviceLost: ")
    assert ctx.catalog.check_snapshot_exists(IMAGE_ID, "late") is None


def test_a_snapshot_that_is_made_meanwhile_outlives_a_removal_or_is_not_made(
    process: Process, ctx: FlowContext, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    process()
    engine.wait(engine.submit("deactivate-snapshot", DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)))
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    request = ActivateRequest(
        image_id=IMAGE_ID, device_id=row.device_id, device_name=row.device_name, snapshot_name="vm-1"
    )
    activating: list[str] = []
    look = Catalog.get_unpacked_image_by_id

    def activate_now(catalog: Catalog, image_id: str) -> UnpackedImage | None:
        # The removal has just seen that there are no snapshots.
        if not activating:
            activating.append(engine.submit("activate-image", request))
            eventually(lambda: _waits_or_has_ended(engine, activating[0]), "the activation waits for the removal")
        return look(catalog, image_id)

    monkeypatch.setattr(Catalog, "get_unpacked_image_by_id", activate_now)
    removed = engine.wait(engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID)), timeout=30)
    activated = engine.wait(activating[0], timeout=30)

    assert removed.state is JobState.SUCCEEDED
    assert reason(activated).startswith("DeviceLost: ")
    assert ctx.catalog.list_reservations() == []
    assert_consistent(ctx)


def test_a_snapshot_is_not_recorded_while_its_image_is_being_removed(
    process: Process, ctx: FlowContext, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    process()
    engine.wait(engine.submit("deactivate-snapshot", DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)))
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    removing: list[str] = []
    activate = DirectoryDevices.activate

    def remove_now(devices: DirectoryDevices, device: Device) -> Path:
        # The snapshot is made, and not recorded yet.
        if not removing:
            removing.append(engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID)))
            eventually(lambda: ctx.catalog.is_image_locked(IMAGE_ID), "the removal has begun")
        return activate(devices, device)

    monkeypatch.setattr(DirectoryDevices, "activate", remove_now)
    request = ActivateRequest(
        image_id=IMAGE_ID, device_id=row.device_id, device_name=row.device_name, snapshot_name="vm-1"
    )
    activated = engine.wait(engine.submit("activate-image", request), timeout=30)
    removed = engine.wait(removing[0], timeout=30)

    assert removed.state is JobState.SUCCEEDED
    assert reason(activated).startswith("DeviceLost: ")
    assert ctx.catalog.list_images() == []
    assert ctx.catalog.list_snapshots() == []
    assert ctx.catalog.list_image_locks() == []
    assert [found.name for found in ctx.devices.found()] == ["vm-1"]  # gc's: no row knows it


def _waits_or_has_ended(engine: Engine, job_id: str) -> bool:
    job = engine.store.job(job_id)
    return job.waits_for is not None or job.state in (JobState.SUCCEEDED, JobState.FAILED)


# --- many at once -------------------------------------------------------------------------------------------


def test_ten_requests_for_one_image_do_the_work_once(engine: Engine, source: Path, ctx: FlowContext) -> None:
    jobs: list[str] = []
    request = request_for(source)

    def ask() -> None:
        jobs.append(engine.submit("process-image", request, key=key_of(request)))

    threads = [threading.Thread(target=ask) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    states = {engine.wait(job, timeout=60).state for job in jobs}
    done = [engine.wait(job.job_id) for job in engine.store.jobs(limit=100)]

    assert len(jobs) == 10
    assert states == {JobState.SUCCEEDED}
    assert sum(result.outcome == "completed" and 'downloaded":true' in (result.response or "") for result in done) <= 2
    assert [job.flow for job in engine.store.jobs(limit=100)].count("download-image") == len(set(jobs))
    assert len(ctx.catalog.list_snapshots()) == 1
    assert_consistent(ctx)


def test_requests_for_ten_snapshots_of_one_image_share_its_download_and_unpacking(
    engine: Engine, source: Path, ctx: FlowContext
) -> None:
    requests = [request_for(source, snapshot=f"vm-{number}") for number in range(10)]
    jobs = [engine.submit("process-image", request, key=key_of(request)) for request in requests]
    states = {engine.wait(job, timeout=60).state for job in jobs}
    completed = [job.flow for job in engine.store.jobs(limit=100) if engine.wait(job.job_id).outcome == "completed"]

    assert states == {JobState.SUCCEEDED}
    assert completed.count("download-image") == completed.count("unpack-image") == 1
    assert len(ctx.catalog.list_snapshots()) == 10
    assert_consistent(ctx)


def test_ten_images_keep_to_the_limits_of_the_queues(engine: Engine, source: Path, ctx: FlowContext) -> None:
    jobs = []
    for number in range(10):
        request = msgspec.structs.replace(request_for(source), image_id=f"image-{number}", s3_key=f"key-{number}")
        jobs.append(engine.submit("process-image", request, key=key_of(request)))
    most = dict.fromkeys(QUEUE_LIMITS, 0)
    deadline = time.monotonic() + 90
    while any(engine.store.job(job).state in ("pending", "running") for job in jobs):
        assert time.monotonic() < deadline
        for queue in engine.store.queues():
            if queue.name in most:
                most[queue.name] = max(most[queue.name], queue.running)
    states = {engine.wait(job).state for job in jobs}

    assert states == {JobState.SUCCEEDED}
    assert 1 <= most["downloads"] <= 5
    assert 1 <= most["unpacking"] <= 2
    assert len(ctx.catalog.list_snapshots()) == 10
    assert_consistent(ctx)


def test_a_cancelled_unpacking_leaves_no_device_no_lock_and_no_process(
    engine: Engine, ctx: FlowContext, source: Path
) -> None:
    # So many that the cancellation comes long before the end.
    big = b"".join(member(b"rootfs/usr/%d" % number, b"x") for number in range(60_000))
    source.write_bytes(small_image(big))
    request = request_for(source)
    job = engine.submit("process-image", request, key=key_of(request))
    eventually(lambda: _is_extracting(ctx), "the extraction has begun")
    [unpacking] = [each for each in engine.store.jobs(limit=20) if each.flow == "unpack-image"]
    engine.cancel(unpacking.job_id, reason="the test wants it")
    result = engine.wait(unpacking.job_id, timeout=30)
    engine.wait(job, timeout=30)

    assert result.state is JobState.FAILED
    assert ctx.devices.found() == []
    assert ctx.catalog.list_image_locks() == []


def _is_extracting(ctx: FlowContext) -> bool:
    return any(any(path.iterdir()) for path in (ctx.images.parent / "devices").glob("thin-*/content/rootfs/usr"))
