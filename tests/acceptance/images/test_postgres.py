"""The image commands on PostgreSQL: the same, with files and devices of this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.images.driving import FIELDS, ImageHoldfast
from tests.support.backends import PostgresBackend


@pytest.fixture
def fleet(holdfast: ImageHoldfast, tmp_path: Path) -> Iterator[ImageHoldfast]:
    backend = PostgresBackend(tmp_path / "postgres")
    holdfast.environment |= {"HOLDFAST_STORE": backend.place, "HOLDFAST_DATA": str(holdfast.state)}
    del holdfast.environment["HOLDFAST_STATE"]
    yield holdfast
    backend.close()


def test_an_image_is_processed_found_again_verified_and_removed(fleet: ImageHoldfast) -> None:
    source = fleet.source()
    first = fleet.process(source, "--image-id", "demo")
    again = fleet.process(source, "--image-id", "demo")

    assert list(first) == FIELDS
    assert {stage["outcome"] for stage in first["stages"].values()} == {"completed"}
    assert {stage["outcome"] for stage in again["stages"].values()} == {"handoff"}
    assert fleet.json("verify-system", "--deep")["findings"] == []
    assert fleet.json("gc", "--dry-run")["actions"] == []
    fleet.ok("image", "remove", "demo", "--force")
    assert fleet.left() == []


def test_flows_carry_the_host_so_that_no_other_host_runs_them(fleet: ImageHoldfast) -> None:
    fleet.process(fleet.source(), HOLDFAST_HOST="rack-7")
    jobs = fleet.json("jobs")["jobs"]

    assert {job["flow"] for job in jobs} == {
        "process-image.rack-7",
        "download-image.rack-7",
        "unpack-image.rack-7",
        "activate-image.rack-7",
    }


def test_each_host_has_its_own_images(fleet: ImageHoldfast) -> None:
    fleet.process(fleet.source(), "--image-id", "demo", HOLDFAST_HOST="one")

    assert len(fleet.json("images", HOLDFAST_HOST="one")["images"]) == 1
    assert fleet.json("images", HOLDFAST_HOST="two")["images"] == []


def test_leftovers_are_collected(fleet: ImageHoldfast) -> None:
    fleet.process(fleet.source(), "--image-id", "demo")
    (fleet.state / "images" / "lost.tar").write_bytes(b"x")
    (fleet.state / "devices" / "thin-77").mkdir()

    assert sorted(each["kind"] for each in fleet.json("gc")["actions"]) == ["device", "file"]
    assert fleet.json("gc")["actions"] == []


def test_a_worker_of_this_host_does_the_work(fleet: ImageHoldfast) -> None:
    with fleet.worker() as worker:
        data = fleet.process(fleet.source())
        job = fleet.json("job", "show", data["stages"]["unpack"]["job_id"])

    assert job["executions"][0]["lease_owner"].split(":")[1] == str(worker.process.pid)
