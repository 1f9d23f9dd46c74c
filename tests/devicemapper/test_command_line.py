"""A user's promises on thin devices, through the command line only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_images.devices import block_device
from tests.devicemapper.flow_context import image_of
from tests.devicemapper.pools import remove_everything


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()
    for file in (tmp_path / "state").glob("*.img"):
        block_device.detach(file)


def holdfast(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_BACKEND": "devicemapper", "HOLDFAST_DEVICE_SIZE": str(128 << 20)}
    command = [sys.executable, "-m", "holdfast_images.cli", *arguments, "--state", str(place / "state")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def processed(place: Path) -> Path:
    """A pool on files, with an image and two snapshots of it."""
    source = place / "image.tar"
    source.write_bytes(image_of(20, 1000))
    answer(holdfast(place, "pool", "create", "--size", "64M", "--json"))
    answer(holdfast(place, "process-image", "--source", f"file://{source}", "--image-id", "box", "--json"))
    answer(holdfast(place, "snapshot", "create", "box", "vm", "--json"))
    return source


@pytest.mark.timeout(900)
def test_after_a_reboot_one_command_brings_back_what_was_in_use(place: Path, processed: Path) -> None:
    with open("/dev/mapper/vm", "r+b", buffering=0) as node:
        node.seek(40 << 20)
        node.write(b"mine")
        os.fsync(node.fileno())
    holdfast(place, "snapshot", "create", "box", "spare")
    out_of_use = holdfast(place, "snapshot", "deactivate", "spare")
    before = holdfast(place, "verify-system")
    remove_everything()
    for file in (place / "state").glob("*.img"):
        block_device.detach(file)
    rebooted = holdfast(place, "verify-system", "--json")
    back = answer(holdfast(place, "snapshot", "activate", "--all", "--json"))
    after = holdfast(place, "verify-system")
    nodes = [os.path.exists(f"/dev/mapper/{name}") for name in ("snap-box", "vm", "spare")]
    by_name = holdfast(place, "snapshot", "activate", "spare")
    neither = holdfast(place, "snapshot", "activate")

    assert (out_of_use.returncode, before.returncode) == (0, 0), before.stdout
    assert rebooted.stdout.count("snapshot activate") == 2
    assert {each["snapshot_path"] for each in back} == {"/dev/mapper/snap-box", "/dev/mapper/vm"}
    assert after.returncode == 0, after.stdout
    assert nodes == [True, True, False]
    assert by_name.stdout.strip() == "/dev/mapper/spare"
    assert neither.returncode == 2
    with open("/dev/mapper/vm", "rb") as node:
        node.seek(40 << 20)
        assert node.read(4) == b"mine"


@pytest.mark.timeout(900)
def test_a_pool_whose_file_is_gone_or_cut_off_is_told_of_and_comes_back(place: Path, processed: Path) -> None:
    data = place / "state/pool-data.img"
    remove_everything()
    for file in (place / "state").glob("*.img"):
        block_device.detach(file)
    data.rename(place / "kept")
    gone = [holdfast(place, *words) for words in (("pool", "status"), ("pool", "check"), ("verify-system",))]
    (place / "kept").rename(data)
    length = data.stat().st_size
    os.truncate(data, 20 << 20)
    short = holdfast(place, "pool", "status")
    os.truncate(data, length)
    healed = holdfast(place, "pool", "status")
    remade = holdfast(place, "process-image", "--source", f"file://{processed}", "--image-id", "box", "--verify")

    assert [each.returncode for each in gone] == [7, 7, 7]
    assert all("is gone" in each.stdout for each in gone)
    assert short.returncode == 7
    assert f"truncate --size={length}" in short.stdout
    assert healed.returncode == 0, healed.stdout + healed.stderr
    assert remade.returncode == 0, remade.stderr


def create_pool(state: Path, metadata: str, data: str, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast_images.cli", "pool", "create", "--state", str(state)]
    command += ["--metadata", metadata, "--data-device", data, *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_a_disk_in_use_is_not_taken_for_a_pool(place: Path) -> None:
    devices = {}
    for name, size in (("m1", 16 << 20), ("m2", 16 << 20), ("data", 64 << 20)):
        with (place / name).open("wb") as file:
            file.truncate(size)
        devices[name] = block_device.attach(place / name)
    try:
        first = create_pool(place / "s1", devices["m1"], devices["data"], "--name", "one")
        second = create_pool(place / "s2", devices["m2"], devices["data"], "--name", "two", "--force")
        third = create_pool(place / "s3", devices["m2"], devices["m2"])
    finally:
        remove_everything()
        for name in devices:
            block_device.detach(place / name)

    assert first.returncode == 0, first.stderr
    assert (second.returncode, "is in use" in second.stderr) == (1, True), second.stderr
    assert (third.returncode, "one disk" in third.stderr) == (2, True), third.stderr


def test_from_an_archive_to_a_mounted_snapshot_and_back_to_an_empty_pool(place: Path) -> None:
    source = place / "image.tar"
    source.write_bytes(image_of(20, 1000))
    too_early = holdfast(place, "process-image", "--source", f"file://{source}", "--image-id", "box")
    made = answer(holdfast(place, "pool", "create", "--size", "64M", "--json"))
    processed = answer(holdfast(place, "process-image", "--source", f"file://{source}", "--image-id", "box", "--json"))
    (place / "mounted").mkdir()
    subprocess.run(["mount", "-o", "ro", "/dev/mapper/snap-box", str(place / "mounted")], check=True)
    names = sorted(path.name for path in (place / "mounted/rootfs").iterdir())
    subprocess.run(["umount", str(place / "mounted")], check=True)
    checked = holdfast(place, "pool", "check")
    removed = holdfast(place, "image", "remove", "box", "--force")
    status = answer(holdfast(place, "pool", "status", "--json"))

    assert too_early.returncode != 0
    assert "pool create" in too_early.stderr
    assert made["health"] == "ok"
    assert "/dev/mapper/snap-box" in json.dumps(processed)
    assert names == ["etc", "usr", "var"]
    assert (checked.returncode, removed.returncode) == (0, 0), checked.stderr + removed.stderr
    assert status["data_blocks"].startswith("0/")
