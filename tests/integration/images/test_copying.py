"""Two processes that copy one tree: what they make, and what becomes of a failure in either."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from holdfast_images import spawn
from holdfast_images.devices import copy_tree as second_copier
from holdfast_images.devices.copy_tree import copy_tree
from holdfast_images.devices.manifest import manifest_of
from holdfast_images.errors import DeviceBusy
from tests.support.images.children import children_of, command_of, is_alive, is_free
from tests.support.images.extracting import facts
from tests.support.images.small_disks import tmpfs_on
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="others copy alone: they may have to change modes on the way")


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    return source


@pytest.fixture
def target(tmp_path: Path) -> Path:
    target = tmp_path / "target"
    target.mkdir()
    return target


def plant(content: Path, rng: random.Random, count: int) -> None:
    """A tree with everything in it, also what nobody but root could enter or write to."""
    folders, files = [content], list[Path]()
    content.mkdir()
    for number in range(count):
        path = rng.choice(folders) / f"n{number}"
        what = rng.random()
        if what < 0.1:
            path.mkdir()
            folders.append(path)
        elif what < 0.2 and files:
            os.link(rng.choice(files), path)
        elif what < 0.3:
            path.symlink_to("somewhere")
        else:
            path.write_bytes(rng.randbytes(rng.choice([0, 10, 3000, 2_000_000]) if rng.random() < 0.1 else 500))
            os.chown(path, rng.randrange(3), rng.randrange(3))
            path.chmod(rng.choice([0o644, 0o4755, 0o000, 0o600]))
            files.append(path)
        if rng.random() < 0.05 and not path.is_symlink():
            os.setxattr(path, "user.some", b"value")
        os.utime(path, ns=(rng.randrange(10**18), rng.randrange(10**18)), follow_symlinks=False)
    with (content / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    for folder in folders[::-1]:
        folder.chmod(rng.choice([0o755, 0o000, 0o500]))
        os.utime(folder, ns=(1, rng.randrange(10**18)))


def copied(source: Path, target: Path, *, worth_two: int = 0) -> str:
    """The digest of what was read; locks as a backend takes them."""
    parents = [os.open(each, os.O_RDONLY) for each in (source, target)]
    try:
        fcntl.flock(parents[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return copy_tree(parents[0], parents[1], "content", worth_two=worth_two)[0]
    finally:
        for each in parents:
            os.close(each)


def digest_of(parent: Path) -> str:
    descriptor = os.open(parent, os.O_RDONLY)
    try:
        return manifest_of(descriptor, "content")[0]
    finally:
        os.close(descriptor)


def second_of(pid: int) -> list[int]:
    return [each for each in children_of(pid) if b"copy_tree" in command_of(each) and is_alive(each)]


@pytest.mark.parametrize("count", [5, 700])
def test_a_copy_by_two_is_faithful(source: Path, target: Path, rng: random.Random, count: int) -> None:
    plant(source / "content", rng, count)
    digest = copied(source, target)

    assert digest == digest_of(source) == digest_of(target)
    assert facts(target / "content") == facts(source / "content")
    assert second_of(os.getpid()) == []


@pytest.mark.parametrize("worth_two", [0, 1000], ids=["by two", "by one"])
def test_paths_may_be_longer_than_the_kernel_takes_at_once(source: Path, target: Path, worth_two: int) -> None:
    (source / "content").mkdir()
    here = os.open(source / "content", os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    for name in ("a", "b"):
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0o640, dir_fd=here))
    os.link("a", "another name of a", src_dir_fd=here, dst_dir_fd=here)
    os.utime(here, ns=(1, 1))
    os.close(here)

    assert copied(source, target, worth_two=worth_two) == digest_of(source) == digest_of(target)


@pytest.mark.parametrize("worth_two, started", [(0, 1), (50, 1), (1000, 0)])
def test_a_second_process_is_started_once_if_it_is_worth_it(
    source: Path, target: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch, worth_two: int, started: int
) -> None:
    starts: list[object] = []
    start = spawn.start_python

    def counted(*words: Any, **named: Any) -> subprocess.Popen[bytes]:
        starts.append(words)
        return start(*words, **named)

    monkeypatch.setattr(spawn, "start_python", counted)
    plant(source / "content", rng, 200)
    copied(source, target, worth_two=worth_two)

    assert len(starts) == started
    assert facts(target / "content") == facts(source / "content")


def test_where_no_process_can_be_started_one_copies_everything(
    source: Path, target: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def no_more(*words: object, **_: object) -> NoReturn:
        tries.append(words)
        raise BlockingIOError

    monkeypatch.setattr(spawn, "start_python", no_more)
    plant(source / "content", rng, 100)
    copied(source, target)

    assert len(tries) == 1
    assert facts(target / "content") == facts(source / "content")


def test_a_second_process_that_is_killed_is_told_as_something_that_may_pass(
    source: Path, target: Path, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(source / "content", rng, 300)
    takes = second_copier.SecondCopier.takes

    def kill_and_take(self: second_copier.SecondCopier) -> bool:
        self._process.kill()
        return takes(self)

    monkeypatch.setattr(second_copier.SecondCopier, "takes", kill_and_take)
    with pytest.raises(DeviceBusy, match="second process"):
        copied(source, target)
    assert second_of(os.getpid()) == []


@pytest.fixture
def small_disk(target: Path) -> Iterator[Path]:
    with tmpfs_on(target, megabytes=64, inodes=300):
        yield target


def test_a_disk_that_is_full_for_either_of_them_is_told_as_such(source: Path, small_disk: Path) -> None:
    (source / "content").mkdir()
    for number in range(400):
        (source / "content" / str(number)).touch()
    with pytest.raises(OSError, match="No space"):
        copied(source, small_disk)
    assert second_of(os.getpid()) == []


@pytest.mark.parametrize("worth_two", [0, 1000], ids=["by two", "by one"])
def test_a_disk_that_takes_a_part_of_a_file_is_full(source: Path, small_disk: Path, worth_two: int) -> None:
    (source / "content").mkdir()
    for number in range(70):
        (source / "content" / str(number)).write_bytes(bytes([number]) * 1_000_003)
    with pytest.raises(OSError, match="No space"):
        copied(source, small_disk, worth_two=worth_two)

    assert second_of(os.getpid()) == []


COPY = """
import fcntl, os, sys
from holdfast_images.devices.copy_tree import copy_tree
source, target = (os.open(each, os.O_RDONLY) for each in sys.argv[1:])
fcntl.flock(target, fcntl.LOCK_EX)
print("begins", flush=True)
copy_tree(source, target, "content", worth_two=0)
"""


@pytest.mark.parametrize("when", ["at once", "later"])
def test_the_target_stays_locked_until_both_are_gone(source: Path, target: Path, when: str) -> None:
    (source / "content").mkdir()
    for number in range(20_000):
        (source / "content" / str(number)).write_bytes(b"x" * 100)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    first = subprocess.Popen([sys.executable, "-c", COPY, source, target], env=environment, stdout=subprocess.PIPE)
    assert first.stdout is not None
    first.stdout.readline()
    eventually(lambda: second_of(first.pid), "the second process is there")
    if when == "later":
        eventually(lambda: len(os.listdir(target / "content")) > 1500, "both copy")
    [second] = second_of(first.pid)
    first.send_signal(signal.SIGKILL)
    first.wait()
    first.stdout.close()

    # As soon as the lock is free, nobody writes any more.
    eventually(lambda: is_free(target), "the lock is free")
    there = len(os.listdir(target / "content"))
    assert there < 20_000
    eventually(lambda: not is_alive(second), "the second process is gone")
    assert len(os.listdir(target / "content")) == there
