"""images, snapshots, image, snapshot and inspect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.images.driving import HONEST, HOSTILE, Gate, ImageHoldfast, ended


def test_images_are_listed_with_device_and_snapshots(processed: ImageHoldfast) -> None:
    [image] = processed.json("images")["images"]

    assert image["image_id"] == "demo"
    assert image["download_status"] == "completed"
    assert image["activation_status"] == "active"
    assert image["snapshots"] == ["snap-demo"]
    assert image["device_name"].startswith("thin-")
    assert isinstance(image["created_at"], int)
    assert "demo" in processed.ok("images")


def test_only_images_of_one_status_are_listed(processed: ImageHoldfast) -> None:
    processed("process-image", "--source", processed.source(HOSTILE, "bad.tar"), "--image-id", "bad")

    assert [each["image_id"] for each in processed.json("images", "--status", "failed")["images"]] == ["bad"]
    assert len(processed.json("images")["images"]) == 2


def test_an_image_is_shown_with_everything_about_it(processed: ImageHoldfast) -> None:
    data = processed.json("image", "show", "demo")

    assert list(data) == ["image", "verification", "device", "snapshots", "lock", "jobs"]
    assert data["verification"]["policy"] == "strict"
    assert data["verification"]["warnings"] == []
    assert data["device"]["file_count"] == 2
    assert [each["snapshot_name"] for each in data["snapshots"]] == ["snap-demo"]
    assert data["lock"] is None
    assert {job["flow"] for job in data["jobs"]} == {
        "process-image",
        "download-image",
        "unpack-image",
        "activate-image",
    }
    assert "policy strict" in processed.ok("image", "show", "demo")


@pytest.mark.parametrize("text", ["abc", "-1", "[1]", '[{"code":1}]'])
def test_an_image_is_shown_whatever_its_warnings_were_made(processed: ImageHoldfast, text: str) -> None:
    processed.tamper(f"UPDATE image_verifications SET warnings = '{text}'")

    assert processed.json("image", "show", "demo")["verification"]["warnings"] is None
    assert "cannot be read: holdfast verify-system" in processed.ok("image", "show", "demo")
    assert processed("verify-system").code == 7
    assert processed("process-image", "--source", processed.source(), "--image-id", "demo").code == 0
    assert processed.json("image", "show", "demo")["verification"]["warnings"] == []


def test_an_unknown_image_is_not_found(processed: ImageHoldfast) -> None:
    for words in (
        ("image", "show", "x"),
        ("image", "verify", "x"),
        ("image", "remove", "x"),
        ("snapshot", "create", "x", "y"),
    ):
        done = processed(*words, "--json")

        assert (done.code, done.error["type"]) == (4, "UnknownImage")


def test_looking_without_a_state_makes_none(holdfast: ImageHoldfast) -> None:
    for words in (("images",), ("snapshots",), ("image", "show", "x"), ("gc", "--dry-run"), ("verify-system",)):
        assert holdfast(*words).code == 6
    assert not holdfast.state.exists()


def test_a_snapshot_is_made_and_found_again(processed: ImageHoldfast) -> None:
    first = processed.json("snapshot", "create", "demo", "vm-1")
    again = processed.json("snapshot", "create", "demo", "vm-1")

    assert first["created"]
    assert not again["created"]
    assert first["snapshot_path"] == again["snapshot_path"]
    assert Path(first["snapshot_path"], "rootfs/etc/hostname").exists()


def test_a_snapshot_goes_out_of_use_and_its_image_with_the_last(processed: ImageHoldfast) -> None:
    done = processed.json("snapshot", "deactivate", "snap-demo")
    [snapshot] = processed.json("snapshots")["snapshots"]

    assert done["deactivated"]
    assert not done["deleted"]
    assert not snapshot["active"]
    assert processed.json("snapshots", "--active")["snapshots"] == []
    assert processed.json("images")["images"][0]["activation_status"] == "inactive"


def test_a_deleted_snapshot_is_gone(processed: ImageHoldfast) -> None:
    processed.ok("snapshot", "deactivate", "snap-demo", "--delete")

    assert processed.json("snapshots")["snapshots"] == []
    assert "snap-demo" not in processed.left()


def test_an_unknown_snapshot_is_not_found(processed: ImageHoldfast) -> None:
    assert processed("snapshot", "deactivate", "nope").code == 4


def test_an_image_with_snapshots_stays(processed: ImageHoldfast) -> None:
    before = processed.left()
    done = processed("image", "remove", "demo", "--json")

    assert done.code == 1
    assert done.error["type"] == "CatalogConflict"
    assert "snap-demo" in done.error["message"]
    assert processed.left() == before


def test_a_removed_image_leaves_nothing(processed: ImageHoldfast) -> None:
    data = processed.json("image", "remove", "demo", "--force")

    assert data["snapshots"] == ["snap-demo"]
    assert processed.left() == []
    assert processed.json("images")["images"] == []
    assert processed.json("verify-system")["findings"] == []


def test_a_removed_image_can_be_processed_again(processed: ImageHoldfast) -> None:
    processed.ok("image", "remove", "demo", "--force")
    data = processed.process(processed.source(), "--image-id", "demo")

    assert {stage["outcome"] for stage in data["stages"].values()} == {"completed"}


def test_a_refused_image_can_be_removed(holdfast: ImageHoldfast) -> None:
    holdfast("process-image", "--source", holdfast.source(HOSTILE), "--image-id", "bad")
    holdfast.ok("image", "remove", "bad")

    assert holdfast.json("images")["images"] == []


# --- inspect --------------------------------------------------------------------------------------------------


def test_inspect_tells_every_finding_and_touches_nothing(holdfast: ImageHoldfast) -> None:
    holdfast.source(HOSTILE)
    done = holdfast("inspect", "image.tar", "--json")

    assert done.code == 3
    assert {"acceptable", "policy", "entries", "total_bytes", "findings"} <= set(done.data)
    assert not done.data["acceptable"]
    assert done.data["policy"] == "strict"
    assert all(set(each) == {"code", "severity", "path", "offset", "detail"} for each in done.data["findings"])
    assert len({each["path"] for each in done.data["findings"]}) == 2
    assert not holdfast.state.exists()


def test_inspect_finds_nothing_wrong_with_an_honest_image(holdfast: ImageHoldfast) -> None:
    holdfast.source(HONEST)
    done = holdfast("inspect", "image.tar")

    assert done.code == 0
    assert done.out == ""
    assert "acceptable by policy strict" in done.err


def test_inspect_of_nothing_is_not_found(holdfast: ImageHoldfast) -> None:
    assert holdfast("inspect", "nowhere.tar").code == 4


def test_an_image_on_its_way_is_shown_with_its_step(holdfast: ImageHoldfast, gate: Gate) -> None:
    process = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo")
    try:
        assert gate.asked.wait(30), "the download has not begun"
        data = holdfast.json("image", "show", "demo")
        text = holdfast.ok("image", "show", "demo")
    finally:
        gate.open()
        ended(process)

    assert data["image"] is None
    [current] = [job["current"] for job in data["jobs"] if job["flow"] == "download-image"]
    assert current["step"] == "download"
    assert "it is on its way" in text
    assert "download" in text
