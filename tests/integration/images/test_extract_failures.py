"""An extraction that goes wrong: it ends for certain, says why, and leaves no process, descriptor or lock behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.protocol import Job
from holdfast_images.archive.sandbox import start
from holdfast_images.errors import ExtractionTimedOut, ImageBusy, ImageRefused, NoSpace, TryAgain
from tests.support.images.archives import END, archive, compressed, directory, header, member
from tests.support.images.children import become_nobody, child_of_mine, children_of, command_of, is_alive, is_free
from tests.support.images.extracting import (
    NOBODY,
    SMALL_ROOT,
    canaries,
    docker_saved,
    extracted,
    facts,
    inspected_by_child,
    written,
)
from tests.support.images.small_disks import tmpfs_on
from tests.support.waiting import PATIENCE, eventually

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def many(count: int) -> bytes:
    """An archive that takes a while."""
    return archive(*(member(b"d%d/f%d" % (number % 50, number), b"x" * 100) for number in range(count)))


def living_children() -> list[int]:
    """Those that read archives: other tests of this process may have servers running."""
    children = [pid for pid in children_of(os.getpid()) if b"archive.extract" in command_of(pid)]
    return [pid for pid in children if is_alive(pid)]


def nothing_is_left(target: Path) -> None:
    """No child, and soon nobody holds the target: one killed while it syncs does so until the disk is done."""
    assert living_children() == []
    eventually(lambda: is_free(target), "nobody holds the target")


# --- ended from outside -------------------------------------------------------------------------------------


def test_an_extraction_that_takes_too_long_is_killed(target: Path) -> None:
    with pytest.raises(ExtractionTimedOut):
        extracted(many(60_000), target, timeout=0.5)
    nothing_is_left(target)


def test_an_inspection_that_takes_too_long_is_killed(target: Path) -> None:
    with pytest.raises(ExtractionTimedOut):
        inspected_by_child(many(60_000), target, timeout=0.01)
    assert living_children() == []


def test_what_the_check_raises_ends_it(target: Path) -> None:
    class NotWanted(Exception):
        pass

    begun: list[int] = []

    def check() -> None:
        if begun:
            raise NotWanted

    with pytest.raises(NotWanted):
        extracted(many(60_000), target, check=check, on_progress=lambda *_: begun.append(child_of_mine()))
    assert not is_alive(begun[0])
    nothing_is_left(target)


def test_what_the_listener_to_progress_raises_ends_it_too(target: Path) -> None:
    def listen(*_: int) -> None:
        raise KeyError

    with pytest.raises(KeyError):
        extracted(many(60_000), target, on_progress=listen)
    nothing_is_left(target)


def test_the_check_is_asked_again_and_again(target: Path) -> None:
    asked: list[int] = []
    extracted(many(10_000), target, check=lambda: asked.append(1))

    assert len(asked) > 2


def test_progress_grows_to_the_end(target: Path) -> None:
    heard: list[tuple[int, int, int]] = []
    content = many(20_000)
    extracted(content, target, on_progress=lambda *told: heard.append(told))

    assert heard == sorted(heard)
    assert all(total == len(content) and done <= total for done, total, _ in heard)


def test_a_child_that_is_killed_is_told_as_something_that_may_pass(target: Path) -> None:
    with pytest.raises(TryAgain, match="SIGKILL"):
        extracted(many(60_000), target, on_progress=lambda *_: os.kill(child_of_mine(), signal.SIGKILL))
    nothing_is_left(target)


def running(path: Path, target: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.images.extracting_process", str(path), str(target)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=REPOSITORY,
        **options,
    )


def test_a_parent_that_is_killed_leaves_no_child(target: Path) -> None:
    target.mkdir()
    parent = running(written(many(60_000), target), target)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    eventually(lambda: not is_alive(child), "the child is gone")
    nothing_is_left(target)


def job_for(path: Path, target: Path, **changes: Any) -> Job:
    job = Job(
        parent=os.getpid(),
        archive=os.open(path, os.O_RDONLY),
        target=os.open(target, os.O_RDONLY),
        spool=os.open(target, os.O_RDWR | os.O_TMPFILE, 0o600),
        writing=True,
        policy=Policy.DISTRO,
    )
    return msgspec.structs.replace(job, **changes)


@pytest.fixture
def started(target: Path) -> Iterator[Any]:
    """Starts the child without anybody who would end it."""
    target.mkdir()
    opened: list[Job] = []
    processes: list[subprocess.Popen[bytes]] = []

    def begin(**changes: Any) -> subprocess.Popen[bytes]:
        opened.append(job_for(written(many(60_000), target), target, **changes))
        processes.append(start(opened[-1]))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
    for job in opened:
        for descriptor in (job.archive, job.target, job.spool):
            os.close(descriptor)


def test_a_child_whose_parent_is_frozen_ends_itself(started: Any) -> None:
    assert started(alarm=0.5).wait(PATIENCE) == -signal.SIGALRM


def test_a_child_whose_parent_is_gone_already_does_nothing(started: Any, target: Path) -> None:
    process = started(parent=1 << 22)
    process.wait(PATIENCE)

    assert process.returncode == 1
    assert os.listdir(target) == []


def test_nobody_writes_where_another_child_still_lives(target: Path) -> None:
    target.mkdir()
    holder = os.open(target, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        with pytest.raises(ImageBusy):
            extracted(archive(*SMALL_ROOT), target)
    finally:
        os.close(holder)
    assert os.listdir(target) == []


def test_the_target_is_locked_as_long_as_the_child_lives(target: Path) -> None:
    locked: list[bool] = []

    def look(*_: int) -> None:
        descriptor = os.open(target, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            locked.append(True)
        else:
            locked.append(False)
        finally:
            os.close(descriptor)

    extracted(many(20_000), target, on_progress=look)

    assert locked
    assert all(locked)
    nothing_is_left(target)


# --- the disk -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(target: Path) -> Iterator[Path]:
    target.mkdir()
    with tmpfs_on(target, megabytes=1, inodes=100):
        yield target


@ROOT_ONLY
def test_a_full_disk_is_told_as_such(small_disk: Path) -> None:
    with pytest.raises(NoSpace, match="large"):
        extracted(archive(member(b"small", b"x"), member(b"large", b"x" * (2 << 20))), small_disk)


@ROOT_ONLY
def test_a_disk_without_inodes_is_full_too(small_disk: Path) -> None:
    with pytest.raises(NoSpace, match="f99"):
        extracted(archive(*(member(b"f%d" % number) for number in range(200))), small_disk)


@ROOT_ONLY
def test_a_full_ext4_is_told_as_such(tmp_path: Path, target: Path) -> None:
    """ext4 may only notice when it writes back: syncing is part of the extraction."""
    disk = tmp_path / "disk"
    with disk.open("wb") as file:
        file.truncate(8 << 20)
    target.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, target], check=True)
    try:
        with pytest.raises(NoSpace):
            extracted(archive(*(member(b"f%d" % number, b"x" * 60_000) for number in range(200))), target)
    finally:
        subprocess.run(["umount", target], check=True)


@ROOT_ONLY
def test_a_compressed_image_that_has_no_room_beside_it_is_told_as_such(small_disk: Path, tmp_path: Path) -> None:
    layer = archive(member(b"large", bytes(4 << 20)))
    path = written(compressed(docker_saved(layer), "gzip"), small_disk / "image")

    with pytest.raises(NoSpace, match="decompressed copy"):
        extracted(path, tmp_path / "target-of-it")


def test_a_file_name_that_the_file_system_cannot_keep_is_the_images_fault(target: Path) -> None:
    with pytest.raises(ImageRefused) as refused:
        extracted(archive(member(b"x" * 256, form="pax")), target)
    assert refused.value.code == "NAME_TOO_LONG"


# --- not root -----------------------------------------------------------------------------------------------


@ROOT_ONLY
def test_an_ordinary_user_gets_the_files_and_is_told_that_they_are_his(tmp_path: Path) -> None:
    place = Path("/tmp") / f"holdfast-test-{os.getpid()}"
    target = place / "target"
    target.mkdir(parents=True)
    os.chown(target, NOBODY, NOBODY)
    os.chown(place, NOBODY, NOBODY)
    content = archive(
        directory(b"closed", mode=0o500, mtime=77),
        member(b"closed/f", b"x", uid=1000, mode=0o400, mtime=99),
        member(b"closed/g", b"x", uid=0, xattrs={b"user.note": b"n"}),
    )
    path = written(content, target)
    try:
        process = running(path, target, preexec_fn=become_nobody)
        output, _ = process.communicate(timeout=PATIENCE * 3)
        told = json.loads(output.splitlines()[-1])
        found = facts(target)
    finally:
        subprocess.run(["rm", "-rf", place], check=True)

    assert told["files"] == 2
    assert told["warnings"] == ["OWNER_NOT_KEPT"]
    assert {"user-namespace", "pivot-root"} <= set(told["confinement"])
    assert {each.owner for each in found.values()} == {(NOBODY, NOBODY)}
    assert (found["closed"].mode, found["closed"].mtime_ns) == (0o500, 77 * 10**9)
    assert (found["closed/f"].mode, found["closed/f"].mtime_ns) == (0o400, 99 * 10**9)
    assert found["closed/g"].xattrs == (("user.note", b"n"),)


# --- what is given to it ------------------------------------------------------------------------------------


def test_an_archive_that_is_no_file_is_refused_at_once(tmp_path: Path, target: Path) -> None:
    target.mkdir()
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(ImageRefused):
            extracted(path, target)


def test_the_target_may_be_a_descriptor(tmp_path: Path, target: Path) -> None:
    target.mkdir()
    descriptor = os.open(target, os.O_RDONLY)
    path = written(archive(*SMALL_ROOT), target)
    with canaries(tmp_path):
        from holdfast_images.archive.sandbox import extract_image

        extract_image(path, descriptor, policy=Policy.STRICT, limits=Limits(), timeout=60)
    os.close(descriptor)

    assert (target / "rootfs/etc/passwd").exists()


# --- memory -------------------------------------------------------------------------------------------------


def peak_of(path: Path, target: Path) -> int:
    """The most memory that extracting took."""
    target.mkdir()
    process = running(path, target)
    output, _ = process.communicate(timeout=3600)
    told = json.loads(output.splitlines()[-1])
    assert "error" not in told, told
    return int(told["peak"])


def large_file(path: Path, megabytes: int) -> Path:
    with path.open("wb") as file:
        file.write(header(b"large", size=megabytes << 20))
        file.seek(megabytes << 20, os.SEEK_CUR)
        file.write(END)
    return path


def test_memory_does_not_grow_with_the_size_of_files(tmp_path: Path) -> None:
    small = peak_of(large_file(tmp_path / "small.tar", 1), tmp_path / "target1")
    large = peak_of(large_file(tmp_path / "large.tar", 200), tmp_path / "target2")

    assert large - small < 8 << 20


def test_memory_does_not_grow_with_what_decompresses(tmp_path: Path) -> None:
    content = large_file(tmp_path / "plain.tar", 60).read_bytes()
    small = peak_of(large_file(tmp_path / "small.tar", 1), tmp_path / "target1")
    large = peak_of(written(compressed(content, "gzip"), tmp_path / "large"), tmp_path / "target2")

    assert large - small < 16 << 20


@pytest.mark.exhaustive
def test_memory_stays_flat_for_the_largest_file_and_for_all_entries_that_are_allowed(tmp_path: Path) -> None:
    small = peak_of(large_file(tmp_path / "small.tar", 1), tmp_path / "target1")
    large = peak_of(large_file(tmp_path / "large.tar", 1024), tmp_path / "target2")
    crowded = peak_of(written(many(99_900), tmp_path / "crowded"), tmp_path / "target3")

    assert large - small < 8 << 20
    assert crowded - small < 64 << 20
