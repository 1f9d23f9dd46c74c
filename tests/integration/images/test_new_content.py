"""New content under the name of an image: file, row and device change together, or nothing changes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine, JobState
from holdfast_images.archive.entry import Policy
from holdfast_images.flows.context import FlowContext, uuids_of
from holdfast_images.flows.schemas import DeactivateRequest, DownloadRequest, RemoveRequest, UnpackRequest
from holdfast_images.source.location import location_of
from tests.integration.images.conftest import Process
from tests.integration.images.test_flows import assert_consistent, device_path, hint, outcomes, reason, snapshot_path
from tests.support.images.archives import member
from tests.support.images.small_image import IMAGE_ID, request_for, small_image, tree_of

OLD = small_image()
NEW = small_image(member(b"rootfs/etc/new", b"new"))
REFUSED = small_image(member(b"rootfs/usr/bin/su", b"", mode=0o4755))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def everything(ctx: FlowContext) -> dict[str, Any]:
    """What the catalog says of the image, and what is on disk."""
    catalog = ctx.catalog
    return {
        "image": catalog.get_image_by_id(IMAGE_ID),
        "verification": catalog.get_verification(IMAGE_ID),
        "device": catalog.get_unpacked_image_by_id(IMAGE_ID),
        "snapshots": catalog.list_snapshots(),
        "files": {path.name: path.read_bytes() for path in ctx.images.iterdir()},
        "devices": [found.name for found in ctx.devices.found()],
        "tree": tree_of(device_path(ctx)),
        "reservations": [(row.device_id, row.snapshot_name) for row in catalog.list_reservations()],
        "updates": catalog.list_updates(),
    }


def without_times(row: Any) -> Any:
    names = ("updated_at", "verified_at", "asked_at", "activated_at", "activation_status")
    return row and {key: value for key, value in msgspec.structs.asdict(row).items() if key not in names}


def unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in ("image", "verification", "device"):
        assert without_times(after[name]) == without_times(before[name])
    for name in ("files", "devices", "tree", "reservations", "updates"):
        assert after[name] == before[name], name


def is_the_content(ctx: FlowContext, content: bytes) -> None:
    image, row = ctx.catalog.get_image_by_id(IMAGE_ID), ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert image is not None
    assert row is not None
    found = ctx.devices.look(row.device_name)
    assert found is not None

    assert image.checksum == digest(content)
    assert ctx.recorded_file(image).read_bytes() == content
    assert [path.name for path in ctx.images.iterdir()] == [ctx.recorded_file(image).name]
    assert found.uuid in uuids_of(IMAGE_ID, digest(content))
    assert (device_path(ctx) / "rootfs/etc/new").exists() == (content == NEW)
    assert ctx.catalog.list_updates() == []
    assert_consistent(ctx)


@pytest.fixture
def without_snapshots(process: Process, engine: Engine) -> None:
    """The image is unpacked, and nobody has a snapshot of it."""
    process()
    request = DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)
    assert engine.wait(engine.submit("deactivate-snapshot", request), timeout=60).state is JobState.SUCCEEDED


ASKED = [{"sha256": digest(NEW)}, {"refresh": True}, {"verify": True}, {"refresh": True, "sha256": digest(NEW)}]


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_nothing_changes_while_there_are_snapshots_of_the_old(
    process: Process, ctx: FlowContext, source: Path, asked: dict[str, Any]
) -> None:
    process()
    before = everything(ctx)
    source.write_bytes(NEW)
    refused = process(**asked)

    assert "another --image-id" in hint(refused["download"])
    unchanged(before, everything(ctx))
    assert outcomes(process()) == ["handoff"] * 3
    assert outcomes(process(sha256=digest(OLD))) == ["handoff"] * 3
    assert_consistent(ctx)


@pytest.mark.parametrize("asked", ASKED, ids=str)
@pytest.mark.usefixtures("without_snapshots")
def test_file_row_and_device_change_together(
    process: Process, ctx: FlowContext, source: Path, asked: dict[str, Any]
) -> None:
    source.write_bytes(NEW)
    results = process(**asked)

    assert outcomes(results) == ["completed"] * 3
    assert (snapshot_path(ctx) / "rootfs/etc/new").read_bytes() == b"new"
    is_the_content(ctx, NEW)
    assert outcomes(process()) == ["handoff"] * 3


@pytest.mark.usefixtures("without_snapshots")
def test_content_may_change_again_and_back(process: Process, ctx: FlowContext, source: Path, engine: Engine) -> None:
    for content in (NEW, OLD, NEW):
        source.write_bytes(content)
        assert outcomes(process(sha256=digest(content))) == ["completed"] * 3
        is_the_content(ctx, content)
        request = DeactivateRequest(snapshot_name=f"snap-{IMAGE_ID}", delete=True)
        engine.wait(engine.submit("deactivate-snapshot", request), timeout=60)


@pytest.mark.parametrize("new", [REFUSED, b"no archive", small_image(member(b"rootfs/etc", b"", mode=0o777))], ids=len)
@pytest.mark.usefixtures("without_snapshots")
def test_new_content_that_is_refused_changes_nothing(
    process: Process, ctx: FlowContext, source: Path, new: bytes
) -> None:
    before = everything(ctx)
    source.write_bytes(new)
    results = process(sha256=digest(new))

    assert "ImageRefused" in reason(results["download"])
    unchanged(before, everything(ctx))
    assert outcomes(process()) == ["handoff", "handoff", "completed"]


@pytest.mark.usefixtures("without_snapshots")
def test_new_content_that_cannot_be_unpacked_changes_nothing(
    engine: Engine, ctx: FlowContext, source: Path, process: Process
) -> None:
    before = everything(ctx)
    source.write_bytes(NEW)
    download = DownloadRequest(
        **{
            field: getattr(request_for(source, sha256=digest(NEW)), field)
            for field in ("s3_key", "image_id", "location", "judging")
        }
    )
    assert engine.wait(engine.submit("download-image", download), timeout=60).state is JobState.SUCCEEDED
    [staged] = ctx.catalog.list_updates()
    assert without_times(ctx.catalog.get_image_by_id(IMAGE_ID)) == without_times(before["image"])
    tiny = UnpackRequest(image_id=IMAGE_ID, local_path="", checksum=staged.checksum, device_size=4096)
    result = engine.wait(engine.submit("unpack-image", tiny), timeout=60)

    assert "NoSpace" in reason(result)
    unchanged(before, everything(ctx))
    assert outcomes(process()) == ["handoff", "handoff", "completed"]


@pytest.mark.usefixtures("without_snapshots")
def test_the_same_content_by_other_rules_replaces_the_device_only(process: Process, ctx: FlowContext) -> None:
    before = everything(ctx)
    results = process(policy=Policy.DISTRO, keep_setuid=True)

    assert outcomes(results) == ["handoff", "completed", "completed"]
    assert without_times(ctx.catalog.get_image_by_id(IMAGE_ID)) == without_times(before["image"])
    is_the_content(ctx, OLD)


def test_an_object_that_has_not_changed_is_not_fetched_again(process: Process, ctx: FlowContext, source: Path) -> None:
    process()
    before = ctx.catalog.get_verification(IMAGE_ID)
    fresh = process(refresh=True)
    after = ctx.catalog.get_verification(IMAGE_ID)

    assert before is not None
    assert after is not None
    assert before.etag == after.etag is not None
    assert outcomes(fresh) == ["handoff"] * 3
    assert after.asked_at is not None
    assert before.asked_at is not None
    assert after.asked_at >= before.asked_at


def test_the_same_bytes_under_another_etag_are_the_same_image(process: Process, ctx: FlowContext, source: Path) -> None:
    process()
    before = everything(ctx)
    source.unlink()
    source.write_bytes(OLD)
    results = process(refresh=True)
    after = everything(ctx)

    assert outcomes(results) == ["completed", "handoff", "handoff"]
    assert after["files"] == before["files"]
    assert after["verification"].etag != before["verification"].etag
    assert outcomes(process(refresh=True)) == ["handoff"] * 3
    assert_consistent(ctx)


def test_an_object_that_is_gone_is_told_when_it_is_asked_for(process: Process, source: Path) -> None:
    process()
    source.unlink()

    assert "ObjectNotFound" in reason(process(refresh=True)["download"])
    assert outcomes(process()) == ["handoff"] * 3


def test_a_second_image_id_makes_a_second_image_of_the_same_object(
    process: Process, ctx: FlowContext, engine: Engine, source: Path
) -> None:
    process()
    source.write_bytes(NEW)
    second = msgspec.structs.replace(request_for(source), image_id="second")
    result = engine.wait(engine.submit("process-image", second), timeout=60)

    assert result.state is JobState.SUCCEEDED, result
    rows = {row.image_id: row for row in ctx.catalog.list_images()}
    assert rows["second"].checksum == digest(NEW)
    assert rows[IMAGE_ID].checksum == digest(OLD)
    assert rows["second"].s3_key == str(location_of(f"file://{source}"))
    assert_consistent(ctx)


@pytest.mark.usefixtures("without_snapshots")
def test_removing_an_image_removes_new_content_that_was_not_in_use_yet(
    engine: Engine, ctx: FlowContext, source: Path
) -> None:
    source.write_bytes(NEW)
    asked = request_for(source, sha256=digest(NEW))
    download = DownloadRequest(
        s3_key=asked.s3_key, image_id=asked.image_id, location=asked.location, judging=asked.judging
    )
    engine.wait(engine.submit("download-image", download), timeout=60)
    assert len(list(ctx.images.iterdir())) == 2
    result = engine.wait(engine.submit("remove-image", RemoveRequest(image_id=IMAGE_ID)), timeout=60)

    assert result.state is JobState.SUCCEEDED
    assert list(ctx.images.iterdir()) == []
    assert ctx.devices.found() == []
    assert ctx.catalog.list_updates() == []
    assert ctx.catalog.list_reservations() == []


@pytest.mark.usefixtures("without_snapshots")
def test_an_update_and_a_snapshot_at_the_same_time_never_mix(
    process: Process, ctx: FlowContext, source: Path, engine: Engine
) -> None:
    """A snapshot of the old content that comes while the new is unpacked stops the new content, and nothing else."""
    source.write_bytes(NEW)
    asked = request_for(source, sha256=digest(NEW))
    download = DownloadRequest(
        s3_key=asked.s3_key, image_id=asked.image_id, location=asked.location, judging=asked.judging
    )
    engine.wait(engine.submit("download-image", download), timeout=60)
    process()  # the old content is in use again: its snapshot is made
    before = everything(ctx)
    unpack = UnpackRequest(image_id=IMAGE_ID, local_path="", checksum=digest(NEW))
    result = engine.wait(engine.submit("unpack-image", unpack), timeout=60)

    assert "CatalogConflict" in reason(result)
    after = everything(ctx)
    assert after["image"] == before["image"]
    assert after["tree"] == before["tree"]
    assert outcomes(process()) == ["handoff"] * 3
