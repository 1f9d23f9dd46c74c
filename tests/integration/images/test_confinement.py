"""What the process that reads archives can do: each measure is tried from inside, as root and as nobody."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_images.archive.confinement import landlock_version
from tests.support.images import confined
from tests.support.images.archives import archive, member
from tests.support.images.children import become_nobody, child_of_mine, status_of
from tests.support.images.extracting import NOBODY, SMALL_ROOT, extracted, inspected_by_child

IS_ROOT = os.geteuid() == 0
USERS = ["root", "nobody"] if IS_ROOT else ["myself"]
DENIED = {
    "extra descriptor": "closed",
    "execute": "EPERM",
    "fork": "EPERM",
    "thread": "done",
    "socket": "EPERM",
    "mount": "EPERM",
    "chroot": "EPERM",
    "device node": "EPERM",
    "signal its parent": "EPERM",
    "unknown call": "ENOSYS",
    "much memory": "MemoryError",
    "many descriptors": "EMFILE",
    "core": 0,
}
"""Of every user, whatever else the kernel grants."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody can reach."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def tried(place: Path, user: str, mode: str, *missing: str) -> dict[str, Any]:
    """How the attempts of a confined process ended."""
    target, outside = place / "target", place / "outside"
    target.mkdir()
    outside.write_text("secret")
    if user == "nobody":
        os.chown(target, NOBODY, NOBODY)
        os.chown(place, NOBODY, NOBODY)
    done = subprocess.run(
        [sys.executable, confined.__file__, target, mode, outside, *missing],
        capture_output=True,
        check=False,
        cwd="/",
        start_new_session=True,
        preexec_fn=become_nobody if user == "nobody" else None,
    )
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("user", USERS)
def test_one_directory_is_all_that_a_writer_can_reach(place: Path, user: str) -> None:
    told = tried(place, user, "writing")

    assert {key: told[key] for key in DENIED} == DENIED
    assert told["read outside"] == told["read /proc"] == "ENOENT"
    assert told["write inside"] == "done"
    assert told["climb"] == "done"
    assert told["large file"] == "EFBIG"
    assert {"session", "pivot-root", "seccomp", "capabilities", "no-new-privileges"} <= set(told["measures"])
    assert ("user-namespace" in told["measures"]) == (user != "root")


@pytest.mark.parametrize("user", USERS)
def test_a_reader_can_reach_nothing_at_all(place: Path, user: str) -> None:
    told = tried(place, user, "reading")

    assert {key: told[key] for key in DENIED if key != "device node"} == {
        key: value for key, value in DENIED.items() if key != "device node"
    }
    assert told["read outside"] == told["read /proc"] == "ENOENT"
    assert told["write inside"] == "ENOENT"
    assert told["climb"] == "done"
    assert "chroot" in told["measures"]


@pytest.mark.skipif(not IS_ROOT, reason="only root may change its root without namespaces")
def test_without_namespaces_root_is_still_shut_in(place: Path) -> None:
    told = tried(place, "root", "writing", "namespaces", "pivot-root")

    assert {key: told[key] for key in DENIED} == DENIED
    assert told["read outside"] == "ENOENT"
    assert told["climb"] == "done"
    assert "chroot" in told["measures"]


@pytest.mark.skipif(landlock_version() < 2, reason="this kernel has no Landlock of version 2")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mode", ["reading", "writing"])
def test_without_namespaces_and_roots_landlock_keeps_paths_out_of_reach(place: Path, user: str, mode: str) -> None:
    told = tried(place, user, mode, "user-namespace", "namespaces", "pivot-root", "chroot")

    assert "landlock" in told["measures"]
    assert not {"pivot-root", "chroot", "namespaces", "user-namespace"} & set(told["measures"])
    assert told["read outside"] == told["read /proc"] == "EACCES"
    assert told["climb"] == "EACCES"
    assert told["write inside"] == ("done" if mode == "writing" else "ENOENT")


def test_the_child_itself_is_shut_in_while_it_works(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    def look(*_: int) -> None:
        if seen:
            return
        pid = child_of_mine()
        os.kill(pid, signal.SIGSTOP)
        try:
            seen["status"] = status_of(pid)
            seen["session"] = os.getsid(pid)
            seen["pid"] = pid
            seen["root"] = os.listdir(f"/proc/{pid}/root")
            seen["environment"] = Path(f"/proc/{pid}/environ").read_bytes()
            seen["open"] = {os.readlink(f"/proc/{pid}/fd/{each}") for each in os.listdir(f"/proc/{pid}/fd")}
        finally:
            os.kill(pid, signal.SIGCONT)

    os.environ["HOLDFAST_TEST_SECRET"] = "secret"
    content = archive(*(member(b"d%d/f" % number, b"x" * 400) for number in range(4000)))
    with (tmp_path / "mine").open("w"):
        told = extracted(content, tmp_path / "target", on_progress=look)
    del os.environ["HOLDFAST_TEST_SECRET"]

    kept = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4 if IS_ROOT else 0
    assert int(seen["status"]["CapEff"], 16) == int(seen["status"]["CapPrm"], 16) == kept
    assert int(seen["status"]["CapBnd"], 16) & ~kept == 0
    assert (seen["status"]["NoNewPrivs"], seen["status"]["Seccomp"]) == ("1", "2")
    assert seen["session"] == seen["pid"]
    assert all(name.startswith("d") for name in seen["root"])
    assert b"SECRET" not in seen["environment"]
    assert not any(name.endswith(("/mine", "/tty")) or "/dev/pts" in name for name in seen["open"])
    assert {"pivot-root", "seccomp"} <= set(told.confinement)


def test_a_report_says_what_was_in_force(tmp_path: Path) -> None:
    report = inspected_by_child(archive(*SMALL_ROOT), tmp_path / "target")

    assert {"chroot", "seccomp", "capabilities", "no-new-privileges", "limits"} <= set(report.confinement)


def test_nothing_stays_mounted_because_of_the_child(tmp_path: Path) -> None:
    """A mount namespace keeps what is mounted in it busy; the child's must not outlive it, nor hold anything else."""
    if not IS_ROOT:
        pytest.skip("only root may mount")
    for number in range(5):
        target = tmp_path / f"target{number}"
        target.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", target], check=True)
        extracted(archive(*SMALL_ROOT), target)
        done = subprocess.run(["umount", target], check=False, capture_output=True)

        assert done.returncode == 0, done.stderr.decode()
