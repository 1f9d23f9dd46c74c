"""process-image: from an object to a snapshot, once, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import os
import pty
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.driving import PATIENCE
from tests.acceptance.images.driving import FIELDS, HONEST, HOSTILE, ROOT, Gate, ImageHoldfast, ended
from tests.support.images.archives import archive, directory, member


def outcomes(data: Any) -> dict[str, str]:
    return {name: stage["outcome"] for name, stage in data["stages"].items()}


def test_an_image_becomes_a_file_a_device_and_a_snapshot(holdfast: ImageHoldfast) -> None:
    source = holdfast.source()
    data = holdfast.process(source, "--image-id", "demo")

    assert list(data) == FIELDS
    assert data["image_id"] == "demo"
    assert data["s3_key"] == source
    assert data["checksum"] == hashlib.sha256(HONEST).hexdigest()
    assert data["size_bytes"] == len(HONEST)
    assert data["file_count"] == 2
    assert data["snapshot_name"] == "snap-demo"
    assert Path(data["local_path"]).read_bytes() == HONEST
    assert Path(data["device_path"], "rootfs/etc/hostname").read_text() == "demo\n"
    assert Path(data["snapshot_path"], "rootfs/etc/hostname").read_text() == "demo\n"
    assert outcomes(data) == {"download": "completed", "unpack": "completed", "activate": "completed"}
    assert all(set(stage) == {"job_id", "state", "outcome", "seconds"} for stage in data["stages"].values())
    assert {stage["state"] for stage in data["stages"].values()} == {"succeeded"}


def test_a_finished_image_is_handed_off(holdfast: ImageHoldfast) -> None:
    source = holdfast.source()
    first = holdfast.process(source)
    second = holdfast.process(source)

    assert outcomes(second) == {"download": "handoff", "unpack": "handoff", "activate": "handoff"}
    assert {**first, "stages": None, "asked_at": 0} == {**second, "stages": None, "asked_at": 0}


def test_a_finished_image_needs_no_job(processed: ImageHoldfast) -> None:
    jobs = processed.json("jobs")
    again = processed("process-image", "--source", processed.source(), "--image-id", "demo")
    data = processed.process(processed.source(), "--image-id", "demo")

    assert again.err.splitlines()[:-1] == ["download: already done", "unpack: already done", "activate: already done"]
    assert "--refresh" in again.err.splitlines()[-1]
    assert {stage["job_id"] for stage in data["stages"].values()} == {None}
    assert processed.json("jobs") == jobs


def test_to_read_everything_again_is_a_job(processed: ImageHoldfast) -> None:
    data = processed.process(f"file://{processed.directory}/image.tar", "--image-id", "demo", "--verify")

    assert outcomes(data) == {"download": "handoff", "unpack": "handoff", "activate": "handoff"}
    assert None not in {stage["job_id"] for stage in data["stages"].values()}


@pytest.mark.parametrize("lost", ["local_path", "device_path", "snapshot_path"])
def test_a_record_alone_is_not_believed(processed: ImageHoldfast, lost: str) -> None:
    before = processed.process(processed.source(), "--image-id", "demo")
    Path(before[lost]).rename(f"{before[lost]}.lost")
    data = processed.process(processed.source(), "--image-id", "demo")

    assert "completed" in outcomes(data).values()
    assert Path(data[lost]).exists()


def test_a_second_snapshot_is_made_of_the_same_device(processed: ImageHoldfast) -> None:
    data = processed.process(processed.source(), "--image-id", "demo", "--snapshot", "vm-2")

    assert outcomes(data) == {"download": "handoff", "unpack": "handoff", "activate": "completed"}
    assert [each["snapshot_name"] for each in processed.json("snapshots")["snapshots"]] == ["snap-demo", "vm-2"]


def test_what_was_lost_is_made_again(processed: ImageHoldfast) -> None:
    before = processed.process(processed.source(), "--image-id", "demo")
    Path(before["local_path"]).unlink()
    data = processed.process(processed.source(), "--image-id", "demo")

    assert outcomes(data)["download"] == "completed"
    assert Path(data["local_path"]).read_bytes() == HONEST


def test_people_get_fields_on_stdout_and_plain_lines_on_stderr(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(), "--image-id", "demo")

    assert done.code == 0
    assert "snapshot  snap-demo at " in done.out
    assert [line.partition(" (")[0] for line in done.err.splitlines() if ": done" in line] == [
        "download: done",
        "unpack: done",
        "activate: done",
    ]


def test_quiet_says_nothing(holdfast: ImageHoldfast) -> None:
    assert holdfast("process-image", "--source", holdfast.source(), "-q").err == ""


def test_a_terminal_gets_bars(holdfast: ImageHoldfast, gate: Gate) -> None:
    import subprocess

    terminal, side = pty.openpty()
    with subprocess.Popen(
        holdfast.command("process-image", "--source", gate.url),
        env={**holdfast.environment, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.DEVNULL,
        stderr=side,
    ) as process:
        os.close(side)
        shown = os.read(terminal, 65536)
        gate.open()
        try:
            while chunk := os.read(terminal, 65536):
                shown += chunk
        except OSError:
            pass  # Linux ends a terminal whose other side is closed with EIO
        code = process.wait(PATIENCE)
    os.close(terminal)

    assert code == 0
    assert "━" in shown.decode()
    assert b"activate: done" in shown


# --- refused --------------------------------------------------------------------------------------------------


def test_a_hostile_image_is_refused_with_code_and_entry_and_leaves_nothing(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(HOSTILE), "--json")

    assert done.code == 3
    assert done.out == ""
    assert done.error["type"] == "ImageRefused"
    assert done.error["exit_code"] == 3
    assert done.error["code"] == "ABSOLUTE_SYMLINK"
    assert done.error["entry"] == "rootfs/etc/shadow"
    assert isinstance(done.error["offset"], int)
    assert holdfast.left() == []


def test_it_is_refused_the_same_way_again(holdfast: ImageHoldfast) -> None:
    source = holdfast.source(HOSTILE)
    first = holdfast("process-image", "--source", source, "--json")
    second = holdfast("process-image", "--source", source, "--json")

    assert first.error == second.error
    assert first.code == second.code == 3


def test_people_are_told_the_rule_the_entry_and_what_to_do(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(HOSTILE))

    assert "error: ABSOLUTE_SYMLINK at rootfs/etc/shadow" in done.err
    assert "hint: " in done.err
    assert "Traceback" not in done.err


def test_an_image_without_a_root_file_system_is_refused_and_its_device_removed(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(archive(member(b"hello", b"world"))), "--json")

    assert done.code == 3
    assert done.error["code"] == "LAYOUT_NO_ROOTFS"
    assert [name for name in holdfast.left() if not name.endswith(".tar")] == []


def test_the_policy_decides(holdfast: ImageHoldfast) -> None:
    content = archive(*[member(b"rootfs/etc/shell", kind=b"2", linkname=b"/bin/sh")])
    strict = holdfast("process-image", "--source", holdfast.source(content), "--json")
    distro = holdfast("process-image", "--source", holdfast.source(content), "--policy", "distro", "--json")

    assert strict.code == 3
    assert distro.code == 0


# --- what is told of an image that is taken -------------------------------------------------------------------

BARE = archive(directory(b"rootfs/"), directory(b"rootfs/usr/"), member(b"rootfs/usr/program", b"x"))


def codes(data: Any) -> list[tuple[str, str]]:
    return [(each["code"], each["path"]) for each in data["warnings"]]


def test_an_image_that_lacks_what_is_expected_is_taken_and_told_of_every_time(holdfast: ImageHoldfast) -> None:
    source = holdfast.source(BARE)
    lacking = [("LAYOUT_INCOMPLETE", "rootfs/etc"), ("LAYOUT_INCOMPLETE", "rootfs/var")]

    assert codes(holdfast.process(source, "--image-id", "bare")) == lacking
    assert codes(holdfast.process(source, "--image-id", "bare")) == lacking
    assert codes(holdfast.process(source, "--image-id", "bare", "--verify")) == lacking
    assert codes(holdfast.json("image", "show", "bare")["verification"]) == lacking
    told = holdfast("process-image", "--source", source, "--image-id", "bare").err
    assert "warning: LAYOUT_INCOMPLETE at rootfs/etc and 1 more: the image has no rootfs/etc\n" in told


def test_judging_an_image_by_other_rules_forgets_nothing_that_unpacking_has_told(holdfast: ImageHoldfast) -> None:
    source = holdfast.source(BARE)
    before = holdfast.process(source, "--policy", "distro")
    after = holdfast.process(source, "--policy", "strict")

    assert outcomes(after)["download"] == "completed"
    assert codes(after) == codes(before) != []


def test_bits_that_are_stripped_are_told_in_one_line(holdfast: ImageHoldfast) -> None:
    names = [b"rootfs/usr/su", b"rootfs/usr/sudo", b"rootfs/usr/mount"]
    attributes = [member(b"rootfs/usr/%d" % each, b"", xattrs={b"user.x": b"1"}, form="pax") for each in range(30)]
    source = holdfast.source(archive(*ROOT, *attributes, *(member(name, b"x", mode=0o4755) for name in names)))
    words = ("process-image", "--source", source, "--policy", "distro", "--image-id", "x")
    line = "warning: SETUID at rootfs/usr/su and 2 more: mode 4755: bits stripped (--keep-setuid keeps them)\n"

    assert line in holdfast(*words).err
    assert line in holdfast(*words).err
    assert "SETUID" not in holdfast(*words, "--keep-setuid").err
    assert "SETUID" not in holdfast(*words, "--keep-setuid").err


# --- other failures -------------------------------------------------------------------------------------------


def test_a_missing_object_is_not_found(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", f"file://{holdfast.directory}/nowhere.tar", "--json")

    assert done.code == 4
    assert done.error["type"] == "ObjectNotFound"
    assert holdfast.left() == []


def test_a_key_has_one_image_id_unless_another_is_chosen(processed: ImageHoldfast) -> None:
    done = processed("process-image", "--source", processed.source(), "--json")

    assert done.code == 1
    assert done.error["type"] == "CatalogConflict"
    assert "demo" in done.error["message"]


def test_an_image_id_has_one_key(processed: ImageHoldfast) -> None:
    done = processed("process-image", "--source", processed.source(name="b.tar"), "--image-id", "demo", "--json")

    assert done.code == 1
    assert done.error["type"] == "CatalogConflict"


def test_another_digest_than_the_pinned_one_is_not_taken(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", holdfast.source(), "--sha256", "0" * 64, "--json")

    assert done.code == 1
    assert done.error["type"] == "ChecksumMismatch"
    assert holdfast.left() == []


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--s3-key", "image.tar"),
        ("--s3-key", "../image.tar", "--bucket", "bucket"),
        ("--s3-key", "a.tar", "--source", "file:///a.tar", "--bucket", "bucket"),
        ("--source", "ftp://host/image.tar"),
        ("--source", "http://example.com/image.tar"),
        ("--source", "https://example.com/image.tar?X-Amz-Signature=0"),
        ("--source", "file:///image.tar", "--image-id", "../demo"),
        ("--source", "file:///image.tar", "--snapshot", "control"),
        ("--source", "file:///image.tar", "--sha256", "abc"),
        ("--source", "file:///image.tar", "--policy", "lax"),
    ],
    ids=" ".join,
)
def test_a_wrong_call_changes_nothing(holdfast: ImageHoldfast, words: tuple[str, ...]) -> None:
    done = holdfast("process-image", *words, "--json")

    assert done.code == 2
    assert done.error["exit_code"] == 2
    assert holdfast.left() == []


def test_the_secret_of_a_signed_url_is_not_shown(holdfast: ImageHoldfast) -> None:
    done = holdfast("process-image", "--source", "https://example.com/image.tar?X-Amz-Signature=hush")

    assert done.code == 2
    assert "hush" not in done.err


def test_two_at_once_are_one_job(holdfast: ImageHoldfast, gate: Gate) -> None:
    holdfast.ok("process-image", "--source", holdfast.source(), "-q")
    words = ("process-image", "--source", gate.url, "--image-id", "shared", "--json")
    first, second = holdfast.start(*words), holdfast.start(*words)
    assert gate.asked.wait(PATIENCE)
    holdfast.until(lambda data: len(data["jobs"]) >= 2, "jobs", "--flow", "process-image")
    gate.open()
    one, other = ended(first), ended(second)

    assert (one.code, other.code) == (0, 0), (one, other)
    assert one.data["snapshot_id"] == other.data["snapshot_id"]
    downloads = [one.data["stages"]["download"]["outcome"], other.data["stages"]["download"]["outcome"]]
    assert "completed" in downloads
