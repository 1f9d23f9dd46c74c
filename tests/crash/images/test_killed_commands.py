"""The recovery scenarios of the three flows: the real command is killed with SIGKILL, and given again.

A real S3 server, a real file system, real processes. After the second run everything is as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine
from holdfast_images.catalog.catalog import Catalog
from tests.support.images.archives import member
from tests.support.images.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server
from tests.support.images.small_image import small_image, tree_of

ROOT = Path(__file__).parents[3]
KEY = "images/test.tar"
IMAGE = "test"
FILES = 600

# Where it dies: a point, and the point after which it is meant.
POINTS = {
    "download 1: before anything is fetched": ("effect.file.before", ""),
    "download 2: the file is there, but not recorded": ("effect.file.after", ""),
    "download 2: after download, before validate": ("step.validate.before", ""),
    "download 2: validated, but not recorded": ("step.validate.after", ""),
    "download 3: in store-metadata, before its commit": ("write.Commit.before-commit", "step.validate.after"),
    "download 3: in store-metadata, after its commit": ("write.Commit.after-commit", "step.validate.after"),
    "unpack 1: before the device": ("effect.device.before", ""),
    "unpack 1: the device half-made": ("create.temporary-made", ""),
    "unpack 1: the device made under a hidden name": ("create.identity-written", ""),
    "unpack 1: the device made, but not recorded": ("effect.device.after", ""),
    "unpack 2: before the extraction": ("effect.extract.before", ""),
    "unpack 2: everything extracted, but not recorded": ("effect.extract.after", ""),
    "unpack 3: after extract-layers, before verify-layout": ("step.verify-layout.before", ""),
    "unpack 3: synced, but not sealed": ("seal.synced", ""),
    "unpack 3: sealed, but not recorded": ("step.verify-layout.after", ""),
    "unpack 4: in update-db, before its commit": ("write.Commit.before-commit", "step.verify-layout.after"),
    "unpack 4: in update-db, after its commit": ("write.Commit.after-commit", "step.verify-layout.after"),
    "activate 1: before the snapshot": ("effect.snapshot.before", ""),
    "activate 1: the snapshot half-made": ("snapshot.half-copied", ""),
    "activate 1: the snapshot whole under a hidden name": ("snapshot.identity-written", ""),
    "activate 1: the snapshot made, but not recorded": ("effect.snapshot.after", ""),
    "activate 2: in register, before its commit": ("write.Commit.before-commit", "step.create-snapshot.after"),
    "activate 2: in register, after its commit": ("write.Commit.after-commit", "step.create-snapshot.after"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.put(KEY, image())
        yield server


def image() -> bytes:
    files = (member(b"rootfs/usr/f%d" % number, bytes([number % 256]) * 20_000) for number in range(FILES))
    return small_image(*files)


class Command:
    """`holdfast process-image` on one state directory."""

    def __init__(self, state: Path, server: S3Server) -> None:
        self.state = state
        self.words = ["--state", str(state), "process-image", "--s3-key", KEY, "--bucket", BUCKET]
        self.words += ["--endpoint", server.endpoint, "--image-id", IMAGE, "--json"]
        self.environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key.text,
            "AWS_REGION": "us-east-1",
        }

    def run(self) -> dict[str, Any]:
        """To its end; the answer."""
        done = subprocess.run(
            [sys.executable, "-m", "holdfast_images.cli", *self.words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def die_at(self, point: str, after: str) -> None:
        script = ROOT / "tests" / "support" / "images" / "killed_command.py"
        done = subprocess.run(
            [sys.executable, str(script), point, after, *self.words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, f"{point} was not reached: {done.stdout}{done.stderr}"

    def die_when(self, condition: Callable[[], bool]) -> None:
        """Killed from outside, as soon as the condition holds."""
        with subprocess.Popen(
            [sys.executable, "-m", "holdfast_images.cli", *self.words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            while not condition():
                assert process.poll() is None, process.communicate()
            process.kill()

    @contextmanager
    def catalog(self) -> Iterator[Catalog]:
        with Catalog.open(self.state) as catalog:
            yield catalog


@pytest.fixture
def command(tmp_path: Path, server: S3Server) -> Command:
    return Command(tmp_path / "state", server)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, server: S3Server) -> dict[str, object]:
    """What a snapshot looks like if nothing goes wrong."""
    answer = Command(tmp_path_factory.mktemp("undisturbed") / "state", server).run()
    return tree_of(Path(answer["snapshot_path"]))


def assert_as_if_nothing_had_happened(command: Command, answer: dict[str, Any], tree: dict[str, object]) -> None:
    with command.catalog() as catalog, Engine.open(command.state) as engine:
        image = catalog.get_image_by_id(IMAGE)
        unpacked = catalog.get_unpacked_image_by_id(IMAGE)
        snapshots = catalog.list_snapshots()
        jobs = engine.store.jobs(limit=50)
        commits = [sum(e.status in ("committed", "done") for e in engine.store.executions(j.job_id)) for j in jobs]

        assert image is not None
        assert (image.download_status, image.activation_status) == ("completed", "active")
        assert unpacked is not None
        assert unpacked.layout_verified
        assert [(row.snapshot_name, row.active) for row in snapshots] == [(f"snap-{IMAGE}", True)]
        assert catalog.list_image_locks() == []
        assert catalog.violations() == []
        assert len(catalog.list_reservations()) == 2
        assert {job.state for job in jobs} == {"succeeded"}
        assert commits == [1] * len(jobs)
    assert sorted(path.name for path in (command.state / "images").iterdir()) == [f"{IMAGE}.tar"]
    assert sorted(path.name for path in (command.state / "devices").iterdir()) == sorted(
        [f"snap-{IMAGE}", answer["device_name"]]
    )
    assert tree_of(Path(answer["device_path"])) == tree
    assert tree_of(Path(answer["snapshot_path"])) == tree
    assert not children_of(command.state)


def children_of(state: Path) -> list[str]:
    """Processes that still work for this state directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes()
                opened = [os.readlink(each) for each in (entry / "fd").iterdir()]
            except OSError:
                continue
            if b"holdfast_images.archive.extract" in words and any(each.startswith(str(state)) for each in opened):
                found.append(entry.name)
    return found


@pytest.mark.parametrize("where", POINTS)
def test_a_killed_command_goes_on_where_it_was(command: Command, undisturbed: dict[str, object], where: str) -> None:
    command.die_at(*POINTS[where])
    answer = command.run()

    assert_as_if_nothing_had_happened(command, answer, undisturbed)


# --- the five recovery test cases ---------------------------------------------------------------------------


def test_case_1_a_crash_during_the_download(command: Command, undisturbed: dict[str, object]) -> None:
    images = command.state / "images"
    command.die_when(lambda: any(path.name.endswith(".partial") for path in images.glob(".*")))
    answer = command.run()

    assert answer["stages"]["download"]["outcome"] == "completed"
    assert_as_if_nothing_had_happened(command, answer, undisturbed)


def test_case_2_a_crash_after_the_download_before_the_validation(
    command: Command, undisturbed: dict[str, object]
) -> None:
    command.die_at("step.validate.before", "")
    downloaded = (command.state / "images" / f"{IMAGE}.tar").stat()
    answer = command.run()
    kept = Path(answer["local_path"]).stat()

    assert (kept.st_ino, kept.st_mtime_ns) == (downloaded.st_ino, downloaded.st_mtime_ns)
    assert_as_if_nothing_had_happened(command, answer, undisturbed)


def test_case_2_a_file_that_was_corrupted_meanwhile_is_removed_and_the_job_aborted(command: Command) -> None:
    command.die_at("step.validate.before", "")
    file = command.state / "images" / f"{IMAGE}.tar"
    with file.open("r+b") as opened:
        opened.seek(100_000)
        opened.write(b"corrupted")
    with pytest.raises(AssertionError, match="ChecksumMismatch"):
        command.run()

    with sqlite3.connect(command.state / "holdfast.db") as database:
        rows = database.execute("SELECT download_status FROM images").fetchall()

    assert not file.exists()
    assert rows == [("failed",)]
    assert command.run()["stages"]["download"]["outcome"] == "completed"


def test_case_3_a_crash_during_the_extraction(command: Command, undisturbed: dict[str, object]) -> None:
    devices = command.state / "devices"

    def is_extracting() -> bool:
        return any(next(path.iterdir(), None) is not None for path in devices.glob("thin-*/content/rootfs/usr"))

    command.die_when(is_extracting)
    answer = command.run()
    with Engine.open(command.state) as engine:
        reasons = [entry.reason for entry in engine.store.journal(answer["stages"]["unpack"]["job_id"])]

    assert any("cannot be continued" in reason for reason in reasons)
    assert_as_if_nothing_had_happened(command, answer, undisturbed)


def timed(command: Command) -> tuple[dict[str, Any], float]:
    began = time.monotonic()
    answer = command.run()
    return answer, time.monotonic() - began


def test_case_4_a_completed_pipeline_is_only_looked_at(
    command: Command, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    first = command.run()
    # The server would turn it away: there is nothing left to be asked.
    command.environment["AWS_SECRET_ACCESS_KEY"] = "wrong"
    second, took = timed(command)
    for _ in range(4):  # a busy machine may be slow once, but not always
        took = min(took, timed(command)[1]) if took >= 1.0 else took

    assert took < 1.0
    assert {stage["outcome"] for stage in first["stages"].values()} == {"completed"}
    assert {stage["outcome"] for stage in second["stages"].values()} == {"handoff"}
    varying = {"stages", "asked_at"}
    assert {k: v for k, v in first.items() if k not in varying} == {k: v for k, v in second.items() if k not in varying}
    assert first["asked_at"] - 1000 < second["asked_at"] < time.time() * 1000, "when it was recorded, to the second"
    assert_as_if_nothing_had_happened(command, second, undisturbed)


def test_case_5_a_device_that_was_removed_is_made_again(command: Command, undisturbed: dict[str, object]) -> None:
    first = command.run()
    shutil.rmtree(Path(first["device_path"]).parent)
    second = command.run()

    assert second["stages"]["unpack"]["outcome"] == "completed"
    assert_as_if_nothing_had_happened(command, second, undisturbed)


def test_activate_4_a_snapshot_that_was_removed_is_made_again(command: Command, undisturbed: dict[str, object]) -> None:
    first = command.run()
    shutil.rmtree(Path(first["snapshot_path"]).parent)
    second = command.run()

    assert [second["stages"][stage]["outcome"] for stage in ("unpack", "activate")] == ["handoff", "completed"]
    assert_as_if_nothing_had_happened(command, second, undisturbed)
