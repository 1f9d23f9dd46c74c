"""The backends of devices under test, and a process that is killed while it uses one."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from pathlib import Path

from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.devices.lock import set_hook
from holdfast_images.devices.protocol import Device, Devices

IN_GUEST = "HOLDFAST_GUEST" in os.environ
"""Set by tests/guest, whose kernel has a device mapper that may be used at will."""
BACKENDS = ("devicemapper",) if IN_GUEST else ("directory", "directory-copied-by-two")

ORIGIN = Device(id=4711, name="thin-4711", uuid="5e3c1c6e-0000-8000-8000-000000000001", size=1 << 30)
SNAPSHOT = Device(id=815, name="snap-alpine", uuid=ORIGIN.uuid, size=1 << 30)


def open_backend(name: str, root: Path | str, *, patience: float = 0.1) -> Devices:
    """A backend on its own piece of the machine; each call is another process, as far as it can tell."""
    if name == "devicemapper":
        from tests.devicemapper.pools import open_devices

        return open_devices(Path(root), patience=patience)
    if name == "directory-copied-by-two":
        # A second process that has just been started needs a moment to see that it is alone.
        devices = DirectoryDevices(Path(root), patience=max(2.0, patience), worth_two=0)
        devices.collect()
        return devices
    return DirectoryDevices.open(Path(root), patience=patience)


def fill(content: Path, files: int = 3) -> None:
    """A small tree with one of everything that needs no privileges."""
    rootfs = content / "rootfs"
    for directory in ("etc", "usr/bin", "var"):
        (rootfs / directory).mkdir(parents=True, exist_ok=True)
    for number in range(files):
        (rootfs / "etc" / f"file-{number}").write_bytes(b"x" * number * 1000)
    (rootfs / "usr/bin/tool").write_text("#!")
    (rootfs / "usr/bin/tool").chmod(0o555)
    os.link(rootfs / "usr/bin/tool", rootfs / "usr/bin/alias")
    (rootfs / "etc/absolute").symlink_to("/etc/passwd")
    os.mkfifo(rootfs / "var/pipe", 0o600)
    (rootfs / os.fsdecode(b"not-\xff-utf8")).write_text("name")
    with (rootfs / "var/sparse").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"island")
    os.utime(rootfs / "etc/file-0", ns=(1_000_000_001, 1_234_567_890_123_456_789))
    (rootfs / "usr").chmod(0o555)
    os.utime(rootfs / "usr", ns=(5, 1_000_000_000_000_000_007))


def make_origin(devices: Devices) -> None:
    devices.create(ORIGIN)
    fill(devices.mount(ORIGIN))
    devices.seal(ORIGIN)


SCENARIOS: dict[str, Callable[[Devices], object]] = {
    "create": lambda devices: devices.create(ORIGIN),
    "seal": lambda devices: devices.seal(ORIGIN),
    "snapshot": lambda devices: devices.snapshot(ORIGIN, SNAPSHOT),
    "delete": lambda devices: devices.delete(SNAPSHOT),
}


def prepare(devices: Devices, scenario: str) -> None:
    """What has to be there before a scenario begins."""
    if scenario == "seal":
        devices.create(ORIGIN)
        fill(devices.mount(ORIGIN))
        devices.unmount(ORIGIN)
    if scenario in ("snapshot", "delete"):
        make_origin(devices)
    if scenario == "delete":
        devices.snapshot(ORIGIN, SNAPSHOT)


def run_and_die(backend: str, root: str, scenario: str, point: str) -> None:
    """Run a scenario in this process, and die by SIGKILL at a point of it."""

    def die(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    set_hook(die)
    SCENARIOS[scenario](open_backend(backend, root))


def run_in_rounds(backend: str, root: str, ready: str) -> None:
    """Make, seal, copy and delete until killed from outside."""
    devices = open_backend(backend, root)
    Path(ready).touch()
    while True:
        devices.create(ORIGIN)
        content = devices.mount(ORIGIN)
        if not (content / "rootfs").exists():
            fill(content, 30)
        devices.seal(ORIGIN)
        devices.snapshot(ORIGIN, SNAPSHOT)
        devices.delete(SNAPSHOT)
        devices.delete(ORIGIN)


def work_in(backend: str, root: str, ready: str) -> None:
    """Be the process that extracts, until killed."""
    content = open_backend(backend, root).mount(ORIGIN)
    descriptor = os.open(content, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    Path(ready).write_text(str(content))
    signal.pause()
