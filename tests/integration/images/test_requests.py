"""What the flows are asked by somebody who used no front end: refused before anything is touched."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Engine, JobState
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.schemas import (
    ActivateRequest,
    DeactivateRequest,
    DownloadRequest,
    ProcessRequest,
    RemoveRequest,
    UnpackRequest,
)
from holdfast_images.source.location import FileObject, HttpObject, S3Object
from tests.integration.images.conftest import Process
from tests.support.images.small_image import IMAGE_ID, request_for

IDS = ["../evil", "/abs/path", "..", "a/b", "", "x" * 64, "-x", "a\0b", "a\nb", "é"]
KEYS = ["../../../etc/passwd", "a/../b", "/a", "a//b", "x" * 1025, "a\x1b[31m", "", "%2e%2e/x", "s3://b/" + "k" * 5000]


def ended(engine: Engine, flow: str, request: Any) -> str:
    """The reason the job has failed for."""
    result = engine.wait(engine.submit(flow, request), timeout=60)

    assert result.state is JobState.FAILED, result
    return result.reason or ""


def everything_below(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*") if "holdfast.db" not in path.name}


@pytest.fixture
def request_of_the_file(source: Path) -> ProcessRequest:
    return request_for(source)


@pytest.mark.parametrize("image_id", IDS)
def test_an_image_id_that_is_none_is_refused_by_every_flow(
    engine: Engine, tmp_path: Path, request_of_the_file: ProcessRequest, image_id: str
) -> None:
    before = everything_below(tmp_path)
    location = request_of_the_file.location
    requests = {
        "download-image": DownloadRequest(s3_key="k", image_id=image_id, location=location),
        "unpack-image": UnpackRequest(image_id=image_id, local_path="/etc/passwd", checksum="0" * 64),
        "activate-image": ActivateRequest(image_id=image_id, device_id="1", device_name="thin-1"),
        "remove-image": RemoveRequest(image_id=image_id, force=True),
    }
    for flow, request in requests.items():
        assert "InvalidName" in ended(engine, flow, request), flow
    asked = msgspec.structs.replace(request_of_the_file, image_id=image_id)
    assert engine.wait(engine.submit("process-image", asked), timeout=60).state is JobState.FAILED

    assert everything_below(tmp_path) - before == set()
    assert not Path("/abs").exists()


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_is_none_is_refused(
    engine: Engine, ctx: FlowContext, request_of_the_file: ProcessRequest, key: str
) -> None:
    location = request_of_the_file.location
    named = DownloadRequest(s3_key=key, image_id="x", location=location)

    assert "InvalidName" in ended(engine, "download-image", named)
    if "://" not in key:
        meant = DownloadRequest(s3_key="k", image_id="x", location=S3Object(bucket="some-bucket", key=key))
        assert "InvalidName" in ended(engine, "download-image", meant)
    assert not ctx.images.exists()


@pytest.mark.parametrize(
    "location",
    [
        S3Object(bucket="../x", key="k"),
        S3Object(bucket="UPPER", key="k"),
        HttpObject(url="file:///etc/passwd"),
        HttpObject(url="https://host/a\nHost: other"),
        FileObject(path="relative"),
        FileObject(path="/a\0b"),
    ],
)
def test_a_location_that_is_none_is_refused(engine: Engine, location: Any) -> None:
    request = DownloadRequest(s3_key="k", image_id="x", location=location)

    assert "InvalidName" in ended(engine, "download-image", request)


@pytest.mark.parametrize(
    "flow, request_",
    [
        ("unpack-image", UnpackRequest(image_id=IMAGE_ID, local_path="", checksum="no digest")),
        ("unpack-image", UnpackRequest(image_id=IMAGE_ID, local_path="", checksum="0" * 64, device_size=1000)),
        ("unpack-image", UnpackRequest(image_id=IMAGE_ID, local_path="", checksum="0" * 64, pool_name="another")),
        ("activate-image", ActivateRequest(image_id=IMAGE_ID, device_id="x", device_name="thin-x")),
        ("activate-image", ActivateRequest(image_id=IMAGE_ID, device_id="5", device_name="thin-6")),
        (
            "activate-image",
            ActivateRequest(image_id=IMAGE_ID, device_id="5", device_name="thin-5", snapshot_name="../x"),
        ),
        ("deactivate-snapshot", DeactivateRequest(snapshot_name="../x", delete=True)),
    ],
)
def test_what_cannot_be_is_refused(engine: Engine, process: Process, flow: str, request_: Any) -> None:
    process()

    assert "InvalidName" in ended(engine, flow, request_)


def test_a_pool_is_not_chosen_for_a_snapshot_that_is_there_either(
    engine: Engine, process: Process, ctx: FlowContext
) -> None:
    process()
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    request = ActivateRequest(image_id=IMAGE_ID, device_id=row.device_id, device_name=row.device_name, pool_name="x")

    assert "InvalidName" in ended(engine, "activate-image", request)


def test_only_what_was_verified_is_unpacked_whoever_asks(
    engine: Engine, process: Process, ctx: FlowContext, tmp_path: Path
) -> None:
    """Another file, another checksum, a failed download, no download: nothing of it becomes a device."""
    process()
    image = ctx.catalog.get_image_by_id(IMAGE_ID)
    assert image is not None
    assert image.checksum is not None
    other = UnpackRequest(image_id=IMAGE_ID, local_path=str(tmp_path / "source.tar"), checksum="1" * 64)
    unknown = UnpackRequest(image_id="unknown", local_path=str(tmp_path / "source.tar"), checksum=image.checksum)

    assert "CatalogConflict" in ended(engine, "unpack-image", other)
    assert "CatalogConflict" in ended(engine, "unpack-image", unknown)
    with sqlite3.connect(tmp_path / "state/holdfast.db") as database:
        database.execute("UPDATE images SET download_status = 'failed'")
    failed = UnpackRequest(image_id=IMAGE_ID, local_path=image.local_path, checksum=image.checksum)
    assert "CatalogConflict" in ended(engine, "unpack-image", failed)


def test_a_path_in_a_request_is_not_believed(
    engine: Engine, process: Process, ctx: FlowContext, tmp_path: Path
) -> None:
    process()
    image = ctx.catalog.get_image_by_id(IMAGE_ID)
    assert image is not None
    row = ctx.catalog.get_unpacked_image_by_id(IMAGE_ID)
    assert row is not None
    shutil.rmtree(ctx.devices.path_of(row.device_name).parent)
    request = UnpackRequest(image_id=IMAGE_ID, local_path="/etc/shadow", checksum=image.checksum or "")
    result = engine.wait(engine.submit("unpack-image", request), timeout=60)

    assert result.state is JobState.SUCCEEDED
    assert (ctx.devices.path_of(row.device_name) / "rootfs/etc/hostname").exists()


def test_an_image_with_a_snapshot_in_use_is_recorded_as_active_again(
    process: Process, ctx: FlowContext, tmp_path: Path
) -> None:
    process()
    with sqlite3.connect(tmp_path / "state/holdfast.db") as database:
        database.execute("UPDATE images SET activation_status = 'inactive'")
    assert ctx.catalog.violations()

    process()
    assert ctx.catalog.violations() == []
