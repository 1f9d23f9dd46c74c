"""How long do thin devices take, stage by stage, beside the commands that a shell script would use?

Needs root, a device mapper, and disks whose content is destroyed. A guest has all three:
`python -m tests.guest run python benchmarks/devices.py`
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.sandbox import extract_image
from holdfast_images.devices.devicemapper import DeviceMapperDevices
from holdfast_images.devices.protocol import Device
from tests.devicemapper.flow_context import image_of
from tests.devicemapper.pools import open_devices, remove_everything

SIZE = 10 << 30
UUID = "5e3c1c6e-0000-8000-8000-00000000000{}"
COUNTS = (1, 100, 1000)
TIMED = 7


class Stages:
    """Seconds of each stage, in order."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Time what is done in this block."""
        begin = time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begin)

    def median(self, name: str) -> float:
        """Of all rounds."""
        return statistics.median(self.seconds[name])


def command(*arguments: str) -> str:
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def ours(devices: DeviceMapperDevices, archive: Path, number: int, stages: Stages) -> None:
    """As the flows do it."""
    device = Device(id=100 + number, name=f"thin-{100 + number}", uuid=UUID.format(number), size=SIZE)
    snapshot = Device(id=200 + number, name=f"snap-{number}", uuid=device.uuid, size=SIZE)
    with stages.of("create, activate, mkfs"):
        devices.create(device)
    with stages.of("mount"):
        point = devices.mount(device)
    with stages.of("extract"):
        extract_image(archive, point, policy=Policy.STRICT, limits=Limits(), timeout=600)
    with stages.of("sync, umount, deactivate"):
        devices.seal(device)
    with stages.of("snapshot, activate"):
        devices.snapshot(device, snapshot)
    with stages.of("verify"):
        devices.verify(snapshot)
    with stages.of("remove both"):
        devices.delete(snapshot)
        devices.delete(device)


def script(pool: str, archive: Path, number: int, stages: Stages) -> None:
    """As a shell script would: no record, no check, nothing that survives a crash."""
    point = tempfile.mkdtemp()
    with stages.of("create, activate, mkfs"):
        command("dmsetup", "message", pool, "0", f"create_thin {number}")
        command("dmsetup", "create", "raw", "--table", f"0 {SIZE // 512} thin /dev/mapper/{pool} {number}")
        command("mkfs.ext4", "-q", "/dev/mapper/raw")
    with stages.of("mount"):
        command("mount", "/dev/mapper/raw", point)
    with stages.of("extract"):
        command("tar", "-xf", str(archive), "-C", point)
    with stages.of("sync, umount, deactivate"):
        command("sync", "-f", point)
        command("umount", point)
        command("dmsetup", "remove", "raw")
    with stages.of("snapshot, activate"):
        command("dmsetup", "message", pool, "0", f"create_snap {number + 1} {number}")
        command("dmsetup", "create", "raw-snap", "--table", f"0 {SIZE // 512} thin /dev/mapper/{pool} {number + 1}")
    with stages.of("verify"):
        command("dmsetup", "info", "raw-snap")
    with stages.of("remove both"):
        command("dmsetup", "remove", "raw-snap")
        command("dmsetup", "message", pool, "0", f"delete {number + 1}")
        command("dmsetup", "message", pool, "0", f"delete {number}")


def many(devices: DeviceMapperDevices, archive: Path) -> dict[int, float]:
    """Seconds of one more snapshot, when so many are there."""
    device = Device(id=1, name="thin-1", uuid=UUID.format(9), size=SIZE)
    devices.create(device)
    extract_image(archive, devices.mount(device), policy=Policy.STRICT, limits=Limits(), timeout=600)
    devices.seal(device)
    answers, there = {}, 0

    def one_more() -> None:
        nonlocal there
        there += 1
        devices.snapshot(device, Device(id=1000 + there, name=f"many-{there}", uuid=device.uuid, size=SIZE))

    for count in COUNTS:
        while there < count - 1:
            one_more()
        answers[count] = statistics.median(_timed(one_more) for _ in range(TIMED))
    return answers


def _timed(action: Callable[[], None]) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        archive = place / "image.tar"
        archive.write_bytes(image_of(500, 40_000))
        devices = open_devices(place / "pool")
        mine, raw = Stages(), Stages()
        for number in range(options.rounds):
            ours(devices, archive, number, mine)
            script(devices.thin_pool.record.name, archive, 10_000 + 2 * number, raw)
        figures = {stage: (mine.median(stage), raw.median(stage)) for stage in mine.seconds}
        counts = many(devices, archive)
        devices.close()
        remove_everything()
    if options.json:
        print(json.dumps({"stages": figures, "snapshots": counts}))
        return 0
    print(f"{'stage':28}{'holdfast':>12}{'script':>12}{'ratio':>8}   median of {options.rounds}")
    for stage, (own, other) in figures.items():
        print(f"{stage:28}{own * 1000:9.1f} ms{other * 1000:9.1f} ms{own / other:8.2f}")
    for count, seconds in counts.items():
        print(f"{f'snapshot number {count:,}':28}{seconds * 1000:9.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
