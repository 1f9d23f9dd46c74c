"""Machines that share a PostgreSQL: nobody touches, collects or answers for what is on another machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.images.driving import ImageHoldfast
from tests.support.backends import PostgresBackend

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another host name"),
    pytest.mark.timeout(400),
]

SCRIPT = """
set -e
printf %s "$BOX_NAME" >/proc/sys/kernel/hostname
if [ -n "$BOX_MACHINE" ]; then mount --bind "$BOX_MACHINE" /etc/machine-id; fi
if [ -n "$BOX_DISK" ]; then mount --bind "$BOX_DISK" "$BOX_AT"; fi
exec "$@"
"""


class Box(ImageHoldfast):
    """A machine: its name, its machine id, and perhaps its own disk at the place where all have theirs."""

    def __init__(self, directory: Path, store: str, name: str, data: Path, disk: Path | None = None) -> None:
        directory.mkdir(exist_ok=True)
        super().__init__(directory)
        self.data = data
        machine = directory / "machine-id"
        machine.write_text(directory.name.encode().hex().ljust(32, "0") + "\n")
        del self.environment["HOLDFAST_STATE"]
        self.environment |= {
            "HOLDFAST_STORE": store,
            "HOLDFAST_DATA": str(data),
            "BOX_NAME": name,
            "BOX_MACHINE": str(machine),
        }
        if disk is not None:
            disk.mkdir(exist_ok=True)
            self.environment |= {"BOX_DISK": str(disk), "BOX_AT": str(data)}

    def command(self, *words: str | Path) -> list[str]:  # type: ignore[override]
        plain = ImageHoldfast.command(*words)
        return ["unshare", "--uts", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh", *plain]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    backend = PostgresBackend(tmp_path / "postgres")
    yield backend.place
    backend.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def box(tmp_path: Path, store: str, data: Path) -> Box:
    """A machine called box-1 that has processed an image, whose snapshot somebody writes to."""
    box = Box(tmp_path / "machine-1", store, "box-1", data)
    path = box.process(box.source(), "--image-id", "demo")["snapshot_path"]
    Path(path, "rootfs/var/work").write_text("a day of work")
    return box


def tree(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.lstat().st_ino for path in directory.rglob("*")}


TOUCHING = [
    ["gc"],
    ["gc", "--dry-run"],
    ["verify-system"],
    ["image", "verify", "demo"],
    ["snapshot", "deactivate", "snap-demo", "--delete"],
    ["worker", "--exit-when-idle"],
    ["process-image", "--source", "file:///dev/null", "--image-id", "demo"],
]


def refused(box: Box, *words: str) -> str:
    """What a command says that must touch nothing."""
    before = tree(box.data)
    ended = box(*words)
    assert ended.code == 1, ended
    assert tree(box.data) == before
    return ended.err


def test_a_renamed_host_touches_nothing_and_is_told_how_to_keep_its_name(box: Box) -> None:
    box.environment["BOX_NAME"] = "box-2"
    told = [refused(box, *words) for words in TOUCHING]

    assert all("holds the files and devices of host box-1, and this host is called box-2" in each for each in told)
    assert all("HOLDFAST_HOST=box-1" in each for each in told)
    box.environment["HOLDFAST_HOST"] = "box-1"
    assert box.json("verify-system", "--deep")["findings"] == []
    assert box.json("gc")["actions"] == []
    assert len(box.json("images")["images"]) == 1


def test_hosts_that_share_a_home_do_not_share_what_is_in_it(box: Box, tmp_path: Path, store: str) -> None:
    neighbour = Box(tmp_path / "machine-2", store, "box-2", box.data)

    assert "give each its own --data" in refused(neighbour, "gc")
    assert "give each its own --data" in refused(neighbour, "worker", "--exit-when-idle")
    neighbour.environment["HOLDFAST_DATA"] = str(tmp_path / "own")
    neighbour.process(neighbour.source(), "--image-id", "demo")
    assert neighbour.json("gc")["actions"] == []
    assert box.json("verify-system", "--deep")["findings"] == []


@pytest.mark.parametrize("own_disk", [True, False])
def test_two_machines_of_one_name_are_told_apart(tmp_path: Path, store: str, data: Path, own_disk: bool) -> None:
    first = Box(tmp_path / "machine-1", store, "localhost", data, tmp_path / "disk-1" if own_disk else None)
    second = Box(tmp_path / "machine-2", store, "localhost", data, tmp_path / "disk-2" if own_disk else None)
    first.process(first.source(), "--image-id", "demo")
    with first.worker():
        messages = [refused(second, *words) for words in TOUCHING]

    assert all("another machine" in message for message in messages)
    assert all("HOLDFAST_HOST" in message for message in messages)
    assert first.json("verify-system", "--deep")["findings"] == []
    if own_disk:
        assert list((tmp_path / "disk-2").iterdir()) == []
        second.environment["HOLDFAST_HOST"] = "second"
        second.process(second.source(), "--image-id", "demo")
        assert second.json("verify-system", "--deep")["findings"] == []


def test_clones_with_one_machine_id_are_told_apart_by_their_disks(tmp_path: Path, store: str, data: Path) -> None:
    first = Box(tmp_path / "machine-1", store, "localhost", data, tmp_path / "disk-1")
    second = Box(tmp_path / "machine-2", store, "localhost", data, tmp_path / "disk-2")
    second.environment["BOX_MACHINE"] = first.environment["BOX_MACHINE"]
    first.process(first.source(), "--image-id", "demo")

    assert "if another machine has that name too" in refused(second, "gc")
    assert list((tmp_path / "disk-2").iterdir()) == []


def test_a_command_for_another_host_is_not_done_here(box: Box, tmp_path: Path, store: str) -> None:
    elsewhere = Box(tmp_path / "machine-2", store, "box-2", tmp_path / "empty")
    elsewhere.environment["HOLDFAST_HOST"] = "box-1"
    ended = elsewhere("process-image", "--source", elsewhere.source(), "--image-id", "new")

    assert ended.code == 1
    assert "box-1 is the name of another machine" in ended.err
    assert "a command for that host is run there" in ended.err
    assert not (tmp_path / "empty").exists()
    # Rows may be read from everywhere.
    assert [image["image_id"] for image in elsewhere.json("images")["images"]] == ["demo"]


def test_a_copy_of_the_data_beside_the_original_is_refused(box: Box, tmp_path: Path) -> None:
    shutil.copytree(box.data, tmp_path / "copy", symlinks=True)
    box.environment["HOLDFAST_DATA"] = str(tmp_path / "copy")

    assert f"has its files and devices in {box.data}" in refused(box, "gc")


def test_a_directory_that_was_moved_goes_on(box: Box, tmp_path: Path) -> None:
    moved = box.data.rename(tmp_path / "moved")
    box.environment["HOLDFAST_DATA"] = str(moved)
    box.data = moved
    box.ok("gc")

    assert box.json("host", "show")["known"]["directory"] == str(moved)
    assert len(box.json("images")["images"]) == 1


def test_a_machine_that_replaces_another_adopts_its_name_and_its_disk(box: Box, tmp_path: Path, store: str) -> None:
    replacement = Box(tmp_path / "machine-2", store, "box-1", box.data)
    assert "holdfast host adopt" in refused(replacement, "gc")
    with box.worker():
        assert "is live" in refused(replacement, "host", "adopt")
    replacement.ok("host", "adopt")

    assert replacement.json("verify-system", "--deep")["findings"] == []
    assert replacement.json("gc")["actions"] == []
    assert "holdfast host adopt" in refused(box, "gc")


def test_a_host_whose_name_cannot_be_one_is_told_of_the_setting(box: Box) -> None:
    box.environment["BOX_NAME"] = "a name!"
    ended = box("images")

    assert ended.code == 2
    assert "HOLDFAST_HOST" in ended.err
