"""Two processes that write one tree: what they make, what becomes of a failure in either, and that both are shut in."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast_images.archive import parallel as second_writer
from holdfast_images.archive.entry import Limits
from holdfast_images.archive.parallel import SMALL, GivenFiles, SecondWriter, SharedTree, start_second_writer
from holdfast_images.archive.tree import Attributes
from holdfast_images.errors import ImageRefused, NoSpace, TryAgain
from tests.support.images.archives import archive, directory, hardlink, member, symlink
from tests.support.images.children import child_of_mine, children_of, is_alive, is_free, status_of
from tests.support.images.extracting import Fact, canaries, extracted, facts
from tests.support.images.small_disks import tmpfs_on
from tests.support.waiting import eventually

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
SAMPLES = 25


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def many(count: int) -> bytes:
    return archive(*(member(b"d%d/f%d" % (number % 50, number), b"x" * 100) for number in range(count)))


def random_archive(rng: random.Random) -> bytes:
    """Everything a tree can have, in an order that leaves the second process much to be waited for."""
    files, members = [b"first"], [member(b"first", b"the first")]
    folders = [b""]
    for number in range(rng.randrange(50, 400)):
        folder = rng.choice(folders)
        name = b"%sn%d" % (folder, number)
        fields: dict[str, Any] = {"mode": rng.choice([0o644, 0o755, 0o600, 0o400]), "mtime": rng.randrange(10**9)}
        what = rng.random()
        if what < 0.6:
            size = rng.choice([0, 1, 700, 5000, SMALL, SMALL + 1]) if rng.random() < 0.2 else rng.randrange(2000)
            members.append(member(name, rng.randbytes(size), **fields))
            files.append(name)
        elif what < 0.7:
            members.append(directory(name, mode=rng.choice([0o755, 0o700, 0o555]), mtime=rng.randrange(10**9)))
            folders.append(name + b"/")
        elif what < 0.75:
            folders.append(name + b"/missing/")  # nobody tells about these two
        elif what < 0.85:
            members.append(symlink(name, rng.choice(files).rpartition(b"/")[2]))
        else:
            members.append(hardlink(name, rng.choice(files[-5:] if rng.random() < 0.7 else files)))
    if rng.random() < 0.3:
        wrong = rng.choice([member(rng.choice(files)), member(rng.choice(files) + b"/x"), directory(rng.choice(files))])
        members.insert(rng.randrange(1, len(members) + 1), wrong)
    return archive(*members)


def outcome(content: bytes, target: Path, processes: int) -> tuple[object, ...]:
    """What is there in the end, but for times that nobody told, or what is said instead."""
    try:
        told = extracted(content, target, processes=processes)
    except ImageRefused as refused:
        return refused.code, refused.entry, refused.offset, refused.detail
    found = {
        name: fact._replace(mtime_ns=0) if "missing" in name or (target / name / "missing").exists() else fact
        for name, fact in facts(target).items()
        if name != "."
    }
    return found, told.file_count, told.total_bytes, told.warnings


def test_two_processes_make_the_same_of_an_archive_as_one(tmp_path: Path, rng: random.Random) -> None:
    trees = refusals = 0
    for number in range(SAMPLES):
        content = random_archive(rng)
        with_one = outcome(content, tmp_path / f"target{number}-1", 1)
        with_two = outcome(content, tmp_path / f"target{number}-2", 2)

        assert with_two == with_one
        trees += isinstance(with_one[0], dict)
        refusals += isinstance(with_one[0], str)
    assert trees > SAMPLES / 4
    assert refusals


# --- one of them ends ---------------------------------------------------------------------------------------


def second_of_mine() -> int:
    (found,) = children_of(child_of_mine())
    return found


def number_of_files(target: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(target))


def test_a_second_process_that_is_killed_is_told_as_something_that_may_pass(target: Path) -> None:
    with pytest.raises(TryAgain, match="second process"):
        extracted(many(60_000), target, processes=2, on_progress=lambda *_: os.kill(second_of_mine(), signal.SIGKILL))
    assert is_free(target)


@pytest.mark.parametrize("how", ["killed", "told to stop"])
def test_the_second_process_ends_with_the_first(target: Path, how: str) -> None:
    seen: list[int] = []

    def end(*_: int) -> None:
        if seen:
            return
        seen.append(second_of_mine())
        if how == "told to stop":
            raise TryAgain("no longer wanted")
        os.kill(child_of_mine(), signal.SIGKILL)

    with pytest.raises(TryAgain):
        extracted(many(60_000), target, processes=2, on_progress=end)

    # Whoever is told that it has failed may remove what was written, and must find nothing new then.
    there = number_of_files(target)
    time.sleep(0.1)
    assert number_of_files(target) == there
    eventually(lambda: not is_alive(seen[0]) and is_free(target), "nobody is left")


def test_the_second_process_is_waited_for_before_the_tree_is_believed(target: Path) -> None:
    """It holds the lock on the target as long as it lives, and is gone when the first one says that it is done."""
    seen: list[int] = []
    extracted(many(20_000), target, processes=2, on_progress=lambda *_: seen.append(second_of_mine()))

    assert seen
    assert not is_alive(seen[0])
    assert is_free(target)
    assert number_of_files(target) == 20_000


# --- the disk -----------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(target: Path) -> Iterator[Path]:
    target.mkdir()
    with tmpfs_on(target, megabytes=64, inodes=2000):
        yield target


@ROOT_ONLY
@pytest.mark.parametrize("end", [b"", b"../evil"], ids=["nothing wrong", "refused later"])
def test_a_disk_that_is_full_for_either_of_them_is_told_before_what_comes_later(small_disk: Path, end: bytes) -> None:
    members = [member(b"d/f%d" % number, b"x") for number in range(2100)]
    with pytest.raises(NoSpace, match="d/f"):
        extracted(archive(*members, *([member(end)] if end else [])), small_disk, processes=2)


# --- shut in ------------------------------------------------------------------------------------------------


def test_the_second_process_is_as_shut_in_as_the_first(tmp_path: Path, target: Path) -> None:
    seen: dict[str, Any] = {}

    def look(*_: int) -> None:
        if seen:
            return
        first, second = child_of_mine(), second_of_mine()
        for pid in (first, second):
            os.kill(pid, signal.SIGSTOP)
        try:
            seen["status"] = [status_of(pid) for pid in (first, second)]
            seen["root"] = [os.stat(f"/proc/{pid}/root").st_ino for pid in (first, second)]
            seen["limits"] = Path(f"/proc/{second}/limits").read_text()
            seen["open"] = sorted(os.readlink(f"/proc/{second}/fd/{each}") for each in os.listdir(f"/proc/{second}/fd"))
        finally:
            for pid in (first, second):
                os.kill(pid, signal.SIGCONT)

    with canaries(tmp_path):
        extracted(many(40_000), target, processes=2, limits=Limits(file_bytes=123_456), on_progress=look)

    measures = ["CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp", "Uid", "Gid"]
    first, second = ({name: status[name] for name in measures} for status in seen["status"])
    assert second == first
    assert second["Seccomp"] == "2"
    assert seen["root"] == [target.stat().st_ino] * 2
    assert any("Max file size" in line and "123456" in line for line in seen["limits"].splitlines())
    assert not any(name.endswith((".archive", "(deleted)")) for name in seen["open"])


# --- the parts ----------------------------------------------------------------------------------------------


def plain() -> Attributes:
    return Attributes(0o644, os.geteuid(), os.getegid(), 1)


@pytest.fixture
def second(target: Path) -> Iterator[SecondWriter]:
    target.mkdir()
    root = os.open(target, os.O_RDONLY)
    second = start_second_writer(root, limits=Limits(), keep_owner=os.geteuid() == 0)
    assert second is not None
    yield second
    os.close(root)


@contextmanager
def tree_at(target: Path, second: SecondWriter | None = None) -> Iterator[SharedTree]:
    umask = os.umask(0)
    root = os.open(target, os.O_RDONLY)
    yield SharedTree(root, depth=10, keep_owner=os.geteuid() == 0, second=second)
    os.close(root)
    os.umask(umask)


@pytest.fixture
def tree(target: Path, second: SecondWriter) -> Iterator[SharedTree]:
    with tree_at(target, second) as tree:
        yield tree


def add(tree: SharedTree, path: bytes, content: bytes) -> None:
    tree.add_file(path, plain(), len(content), (memoryview(content),))


def made(tree: SharedTree, target: Path, then: Callable[[SharedTree], None]) -> tuple[str, dict[str, Fact]]:
    """What comes of a second entry with the name of a file, or below it."""
    refusal = ""
    tree.add_directory(b"d", plain())
    add(tree, b"d/other", b"other")
    add(tree, b"d/f", b"first")
    try:
        then(tree)
    except ImageRefused as refused:
        refusal = refused.code
    tree.finish()
    return refusal, facts(target / "d")


@pytest.mark.parametrize(
    "then",
    [
        lambda tree: add(tree, b"d/f", b"second"),
        lambda tree: add(tree, b"d/f", b"s" * (SMALL + 1)),
        lambda tree: tree.add_symlink(b"d/f", plain(), b"elsewhere"),
        lambda tree: tree.add_directory(b"d/f", plain()),
        lambda tree: tree.add_hardlink(b"d/f", b"d/other"),
        lambda tree: tree.add_hardlink(b"d/new", b"d/f"),
        lambda tree: add(tree, b"d/f/below", b""),
    ],
    ids=["file", "large file", "symlink", "directory", "hard link", "another name", "below it"],
)
def test_what_was_given_is_waited_for_before_its_name_is_touched_again(
    tree: SharedTree, target: Path, tmp_path: Path, then: Callable[[SharedTree], None]
) -> None:
    """Even if the rules, which refuse most of this, were wrong."""
    (tmp_path / "one").mkdir()
    with tree_at(tmp_path / "one") as alone:
        expected = made(alone, tmp_path / "one", then)

    assert made(tree, target, then) == expected


def test_a_failure_is_told_again_and_again(tree: SharedTree, target: Path) -> None:
    add(tree, b"d/f", b"x")
    (target / "d").rmdir()  # somebody else's doing; nobody makes it again for the second process
    for _ in range(2):
        with pytest.raises(TryAgain, match="d/f could not be written"):
            tree.settle()


def test_a_bug_in_the_second_process_is_told_in_its_own_words(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add_file(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(second_writer._Files, "add_file", add_file)
    target.mkdir()
    root = os.open(target, os.O_RDONLY)
    second = start_second_writer(root, limits=Limits(), keep_owner=False)
    assert second is not None
    second.add(GivenFiles(b"f", plain(), 1, memoryview(b"x")))
    with pytest.raises(TryAgain, match="f could not be written: ZeroDivisionError: a bug"):
        second.settle()
    second.close()
    os.close(root)


def test_where_no_process_can_be_started_one_writes_everything(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more() -> int:
        raise BlockingIOError

    target.mkdir()
    monkeypatch.setattr(os, "fork", no_more)
    before = len(os.listdir("/proc/self/fd"))
    root = os.open(target, os.O_RDONLY)
    try:
        assert start_second_writer(root, limits=Limits(), keep_owner=False) is None
    finally:
        os.close(root)
    assert len(os.listdir("/proc/self/fd")) == before
