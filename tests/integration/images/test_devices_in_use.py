"""Whoever uses a file of a snapshot, and however: it is not removed from under them."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.lock import set_hook
from holdfast_images.devices.protocol import Health
from holdfast_images.errors import DeviceBusy
from tests.support.images.device_backends import ORIGIN, SNAPSHOT, fill
from tests.support.waiting import eventually

ROOT = os.geteuid() == 0
HOLD = """
import mmap, os, sys
what, path = sys.argv[1:]
if what == "cwd": os.chdir(os.path.dirname(path))
elif what == "descriptor": held = os.open(path, os.O_RDONLY)
elif what == "directory": held = os.open(os.path.dirname(path), os.O_PATH)
elif what == "mapped":
    file = os.open(path, os.O_RDONLY)
    held = mmap.mmap(file, 0, prot=mmap.PROT_READ)
    os.close(file)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[DirectoryDevices]:
    devices = DirectoryDevices.open(tmp_path / "data", patience=0.1)
    devices.create(ORIGIN)
    content = devices.mount(ORIGIN)
    fill(content)
    shutil.copy(shutil.which("sleep") or "", content / "rootfs/var/sleep")
    (content / "rootfs/var/disk").write_bytes(bytes(1 << 20))
    devices.seal(ORIGIN)
    devices.snapshot(ORIGIN, SNAPSHOT)
    yield devices
    devices.close()
    (content / "rootfs/usr").chmod(0o755)


@contextmanager
def process(*command: str) -> Iterator[None]:
    """One that says when it has begun, and ends when its input does."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        yield


def holding(what: str) -> Callable[[Path, Path], object]:
    return lambda file, _: process(sys.executable, "-c", HOLD, what, str(file))


def in_namespaces(flags: list[str], script: str) -> Callable[[Path, Path], object]:
    """`$1` is the content of the snapshot, `$2` an empty directory."""

    def start(file: Path, place: Path) -> object:
        shell = f"set -e; {script}; echo ready; cat >/dev/null"
        return process("unshare", *flags, "sh", "-c", shell, "sh", str(file.parents[2]), str(place))

    return start


@contextmanager
def running(file: Path, _: Path) -> Iterator[None]:
    started = subprocess.Popen([file.parents[1] / "var/sleep", "100"])
    eventually(lambda: os.readlink(f"/proc/{started.pid}/exe").endswith("var/sleep"))
    yield
    started.kill()
    started.wait()


@contextmanager
def mapped_here(file: Path, _: Path) -> Iterator[None]:
    with file.open("rb") as opened:
        memory = mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ)
    yield
    memory.close()


@contextmanager
def loop_device(file: Path, _: Path) -> Iterator[None]:
    disk = str(file.parents[1] / "var/disk")
    node = subprocess.run(["losetup", "--find", "--show", disk], capture_output=True, text=True, check=True).stdout
    yield
    subprocess.run(["losetup", "--detach", node.strip()], check=True)


USES: dict[str, Callable[[Path, Path], object]] = {
    "working directory": holding("cwd"),
    "open file": holding("descriptor"),
    "open directory": holding("directory"),
    "mapped file": holding("mapped"),
    "mapped by this process": mapped_here,
    "running program": running,
}
if ROOT:
    USES |= {
        "open in a PID namespace": in_namespaces(["--pid", "--fork", "--mount-proc"], "exec 3<$1/rootfs/etc/file-1"),
        "bind mount in a namespace": in_namespaces(["--mount"], "mount --bind $1/rootfs $2"),
        "bind mount of a file": in_namespaces(["--mount"], "touch $2/f; mount --bind $1/rootfs/etc/file-1 $2/f"),
        "mount in it in a namespace": in_namespaces(["--mount"], "mount -t tmpfs none $1/rootfs/var"),
        "overlay in a namespace": in_namespaces(
            ["--mount"],
            "mount -t tmpfs none $2; mkdir $2/u $2/w $2/m;"
            " mount -t overlay none -o lowerdir=$1/rootfs,upperdir=$2/u,workdir=$2/w $2/m",
        ),
        "overlay by another path": in_namespaces(
            ["--mount"],
            "mkdir $2/other; mount --bind $1/rootfs $2/other; mkdir $2/t; mount -t tmpfs none $2/t; mkdir $2/t/u $2/t/w"
            " $2/t/m; mount -t overlay none -o lowerdir=$2/other,upperdir=$2/t/u,workdir=$2/t/w $2/t/m",
        ),
        "overlay by a path from above": in_namespaces(
            ["--mount"],
            "mount -t tmpfs none $2; mkdir $2/u $2/w $2/m; cd $1/../..;"
            " mount -t overlay none -o lowerdir=snap-alpine/content/rootfs,upperdir=$2/u,workdir=$2/w $2/m; cd /",
        ),
    }
    if subprocess.run(["losetup", "--find"], capture_output=True, check=False).returncode == 0:
        USES["loop device"] = loop_device


@pytest.mark.parametrize("use", USES)
def test_what_is_in_use_is_not_removed(devices: DirectoryDevices, tmp_path: Path, use: str) -> None:
    content = devices.path_of(SNAPSHOT.name)
    (tmp_path / "place").mkdir()
    with USES[use](content / "rootfs/etc/file-1", tmp_path / "place"):  # type: ignore[attr-defined]
        for remove in (devices.deactivate, devices.delete):
            with pytest.raises(DeviceBusy, match=f"{SNAPSHOT.name} is in use"):
                remove(SNAPSHOT)
        kept = (content / "rootfs/etc/file-1").exists()
    devices.delete(SNAPSHOT)

    assert kept
    assert devices.health(SNAPSHOT) is Health.ABSENT


def test_a_leftover_that_somebody_works_in_is_left_until_he_is_gone(devices: DirectoryDevices, tmp_path: Path) -> None:
    hidden = devices._records.trash(SNAPSHOT.name)
    inside = devices._records.home / hidden / "content/rootfs/etc/file-1"
    with process(sys.executable, "-c", HOLD, "cwd", str(inside)):
        first = devices.collect()
        kept = inside.exists()
    second = devices.collect()

    assert (first, kept, second) == (0, True, 1)
    assert not inside.exists()


def test_who_comes_in_at_the_last_moment_is_seen(devices: DirectoryDevices) -> None:
    opened: list[int] = []
    inside = devices.path_of(SNAPSHOT.name) / "rootfs/etc/file-1"

    def come_in(point: str) -> None:
        if point == "delete.trashed":
            [hidden] = devices._records.leftovers()
            opened.append(os.open(devices._records.home / hidden / "content/rootfs/etc/file-1", os.O_RDONLY))

    set_hook(come_in)
    try:
        with pytest.raises(DeviceBusy, match="is in use"):
            devices.delete(SNAPSHOT)
    finally:
        set_hook(None)
    os.close(opened[0])

    assert inside.exists()
    devices.verify(SNAPSHOT, deep=True)
