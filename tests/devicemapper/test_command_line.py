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

from holdfast_images.devices import loops
from tests.devicemapper.pools import remove_everything
from tests.devicemapper.shop import image_of


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    remove_everything()
    yield tmp_path
    remove_everything()
    for file in (tmp_path / "state").glob("*.img"):
        loops.detach(file)


def holdfast(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HOLDFAST_BACKEND": "devicemapper", "HOLDFAST_DEVICE_SIZE": str(128 << 20)}
    command = [sys.executable, "-m", "holdfast_images.cli", *arguments, "--state", str(place / "state")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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
