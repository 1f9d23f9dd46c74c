"""A database on a full disk: nothing waits for ever, and what happened is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast_images import ImageManager, jobs
from holdfast_images.errors import CatalogUnavailable
from holdfast_images.settings import Settings
from tests.support.images.lying_server import Exchange, LyingServer
from tests.support.images.small_disks import tmpfs_on
from tests.support.images.small_image import request_for, small_image

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount"),
    pytest.mark.timeout(300),
]


def fill(disk: Path) -> Path:
    """Take all the room that is left."""
    path = disk / "fill"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1 << 9):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return path


def test_a_job_on_a_disk_that_became_full_ends_its_command_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside the half minute after which a worker calls itself unwell.
    monkeypatch.setattr(jobs, "RECORD_PATIENCE", 1.0)
    disk = tmp_path / "disk"
    disk.mkdir()
    with LyingServer().running() as web, tmpfs_on(disk, megabytes=8, inodes=1000):
        web.content = small_image()
        filled: list[Path] = []

        def fill_first(exchange: Exchange) -> None:
            if not filled:
                filled.append(fill(disk))
            exchange.honest()

        web.lie = fill_first
        settings = Settings(data=str(tmp_path / "data"))
        request = request_for(tmp_path / "x")
        request = type(request)(s3_key=request.s3_key, image_id=request.image_id, location=web.location)
        with ImageManager.open(disk / "state", settings) as images:
            [job] = images.submit(request).jobs
            with pytest.raises(CatalogUnavailable, match=r"nothing can be recorded.*disk is full"):
                images.wait(job.job_id)
            filled[0].unlink()
            done = images.wait(job.job_id)

            assert done.image_id == request.image_id
