"""Several images by one command, images left to a worker, and objects that change."""

from __future__ import annotations

from tests.acceptance.images.driving import HOSTILE, Gate, ImageHoldfast
from tests.support.images.archives import archive, directory, member

CHANGED = archive(
    *(directory(name) for name in (b"rootfs/", b"rootfs/etc/", b"rootfs/usr/", b"rootfs/var/")),
    member(b"rootfs/etc/hostname", b"changed\n"),
)


def test_several_images_are_processed_by_one_command(holdfast: ImageHoldfast) -> None:
    sources = [holdfast.source(name=f"{name}.tar") for name in ("one", "two", "three")]
    words = [word for source in sources for word in ("--source", source)]
    first = holdfast.json("process-image", *words)["images"]
    again = holdfast.json("process-image", *words)["images"]

    assert [each["s3_key"] for each in first] == sources
    assert {stage["outcome"] for each in first for stage in each["stages"].values()} == {"completed"}
    assert {stage["outcome"] for each in again for stage in each["stages"].values()} == {"handoff"}
    assert len(holdfast.json("images")["images"]) == 3


def test_of_several_images_each_tells_how_it_ended(holdfast: ImageHoldfast) -> None:
    good, bad = holdfast.source(), holdfast.source(HOSTILE, "bad.tar")
    gone = f"file://{holdfast.directory}/gone.tar"
    ended = holdfast("process-image", "--source", good, "--source", gone, "--source", bad, "--json")
    answers = ended.data["images"]

    assert ended.code == 4  # the first that failed decides
    assert [each.get("error", {}).get("type") for each in answers] == [None, "ObjectNotFound", "ImageRefused"]
    assert answers[0]["snapshot_path"]


def test_what_is_for_one_image_is_refused_for_several(holdfast: ImageHoldfast) -> None:
    for option in ("--image-id", "--snapshot", "--sha256"):
        ended = holdfast("process-image", "--source", "file:///a", "--source", "file:///b", option, "x")
        assert (ended.code, option in ended.err) == (2, True)


def test_detached_images_are_left_to_a_worker(holdfast: ImageHoldfast) -> None:
    source = holdfast.source()
    detached = holdfast("process-image", "--source", source, "--image-id", "demo", "--detach", "--json")
    [job] = detached.data["jobs"]
    alone = holdfast("process-image", "--source", source, "--image-id", "demo", "--detach")

    assert job["image_id"] == "demo"
    assert alone.out.strip() == job["job_id"]
    assert "holdfast worker" in alone.err
    assert holdfast.json("job", "show", job["job_id"])["job"]["state"] == "pending"
    holdfast.run_all()
    assert holdfast.json("image", "status", "--s3-key", source)["status"][0]["snapshot_active"]


def test_the_age_of_what_is_done_is_told_and_a_refresh_asks(processed: ImageHoldfast) -> None:
    source = f"file://{processed.directory}/image.tar"
    done = processed("process-image", "--source", source, "--image-id", "demo")
    before = processed.process(source, "--image-id", "demo")["asked_at"]
    fresh = processed.process(source, "--image-id", "demo", "--refresh")

    assert "last asked" in done.err
    assert "--refresh" in done.err
    assert before > 0
    assert fresh["asked_at"] >= before
    assert fresh["stages"]["download"]["outcome"] == "handoff"


def test_a_changed_object_is_noticed_and_changes_nothing_while_it_is_in_use(processed: ImageHoldfast) -> None:
    source = processed.source(CHANGED)
    before = processed.json("image", "show", "demo")
    for flag in ("--refresh", "--verify"):
        ended = processed("process-image", "--source", source, "--image-id", "demo", flag)
        assert ended.code == 1
        assert "snap-demo" in ended.err
    after = processed.json("image", "show", "demo")

    assert {**after, "jobs": [], "verification": None} == {**before, "jobs": [], "verification": None}
    assert processed.json("verify-system", "--deep")["findings"] == []
    second = processed.process(source, "--image-id", "demo-2")
    assert second["checksum"] != before["image"]["checksum"]


def test_a_changed_object_is_taken_when_nothing_is_in_use(processed: ImageHoldfast) -> None:
    old = processed.json("image", "show", "demo")
    source = processed.source(CHANGED)
    processed.ok("snapshot", "deactivate", "snap-demo", "--delete")
    new = processed.process(source, "--image-id", "demo", "--refresh")

    assert new["checksum"] != old["image"]["checksum"]
    assert new["device_id"] != old["device"]["device_id"]
    assert processed.json("verify-system", "--deep")["findings"] == []
    assert processed.json("gc")["actions"] == []
    assert processed.left() == sorted([new["local_path"].rpartition("/")[2], new["device_name"], new["snapshot_name"]])


def test_a_status_is_found_by_key(processed: ImageHoldfast) -> None:
    source = f"file://{processed.directory}/image.tar"
    [status] = processed.json("image", "status", "--s3-key", source)["status"]

    assert (status["download_status"], status["activation_status"]) == ("completed", "active")
    assert processed("image", "status", "--s3-key", "nothing").code == 4


def test_a_cancelled_image_ends_the_command_that_waits_for_it(holdfast: ImageHoldfast, gate: Gate) -> None:
    """And the same command again is not kept waiting by what the cancelled one has left."""
    command = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo")
    assert gate.asked.wait(30)
    [job] = [each for each in holdfast.json("jobs")["jobs"] if each["flow"] == "process-image"]
    holdfast.ok("job", "cancel", job["job_id"], "--reason", "wrong image")
    out, err = command.communicate(timeout=60)

    assert command.returncode == 1, out
    assert "wrong image" in err
    states = {each["flow"]: each["state"] for each in holdfast.json("jobs")["jobs"]}
    assert states == {"process-image": "failed", "download-image": "failed"}
    gate.open()
    assert holdfast.process(gate.url, "--image-id", "demo")["image_id"] == "demo"
