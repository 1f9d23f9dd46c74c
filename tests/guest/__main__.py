"""Boot a guest whose kernel has a device mapper, and run things in it.

  python -m tests.guest test [pytest arguments]   the tests of tests/devicemapper and the devices' contract
  python -m tests.guest udev [pytest arguments]   those that differ where udev looks at each new device
  python -m tests.guest cuts [--all]              power cuts: a sample, or at every point
  python -m tests.guest all                       all of these
  python -m tests.guest run COMMAND...            anything, as root, on three empty disks
Its exit status is the guest's: 0 only if everything has passed. 77: no guest can be had here, which is said loudly;
it is 1 where HOLDFAST_TEST_GUEST=required, as continuous integration has it.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.guest.machine import GUEST_FAILED, TIMED_OUT, Guest, make_disk, python
from tests.guest.packages import Unavailable, guest_files
from tests.guest.power_cuts import PowerCuts

TESTS = ("tests/contract/images/test_devices.py", "tests/contract/images/test_devices_killed.py", "tests/devicemapper")
UDEV_TESTS = ("tests/contract/images/test_devices.py", "tests/devicemapper/udev")
NO_GUEST = 77
REQUIRED = "HOLDFAST_TEST_GUEST"
TIMEOUT = 5400.0
BOOT_TIMEOUT = 60.0
ALWAYS = (
    "effect.file.before",
    "step.validate.before",
    "create.thin-made",
    "effect.extract.after",
    "snapshot.half-copied",
)
"""Within the download, before the validation, and where the pool knows what nothing else does yet."""
SAMPLE, RANDOM_CUTS = 4, 3
SEED = "HOLDFAST_TEST_SEED"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guest", description=__doc__, formatter_class=_Formatter)
    parser.add_argument("what", choices=["test", "udev", "cuts", "all", "run"])
    parser.add_argument("--all", action="store_true", help="cut at every point")
    parser.add_argument("--random", type=int, default=RANDOM_CUTS, help="how many cuts at random instants")
    options, rest = parser.parse_known_args(arguments)
    try:
        refuse_no_guest()
    except Unavailable as error:
        line = "!" * 100
        print(f"{line}\nTHE DEVICE MAPPER WAS NOT TESTED: {error}\n{line}", file=sys.stderr)
        return 1 if os.environ.get(REQUIRED) == "required" else NO_GUEST
    status = 0
    if options.what == "run":
        return run(rest)
    if options.what in ("test", "all"):
        status = run_tests(rest or TESTS)
    if options.what in ("udev", "all"):
        status = run_tests(rest or UDEV_TESTS, udev=True) or status
    if options.what in ("cuts", "all"):
        status = cut(every=options.all, random_cuts=options.random) or status
    return status


def refuse_no_guest() -> None:
    """Raise Unavailable if the packages cannot be had, or if a guest of them does not boot here."""
    guest_files()
    with Guest(["true"]) as guest:
        if guest.wait(BOOT_TIMEOUT) != 0:
            raise Unavailable(f"the guest does not boot:\n{guest.console()[-2000:]}")


def run(command: Sequence[str], environment: dict[str, str] | None = None, *, udev: bool = False) -> int:
    """Any command, with three disks: one with an ext4, one for a pool's metadata, one for its data."""
    with tempfile.TemporaryDirectory(prefix="holdfast-disks-") as name:
        place = Path(name)
        disks = [
            make_disk(place / "state.img", 256 << 20, formatted=True),
            make_disk(place / "metadata.img", 16 << 20),
            make_disk(place / "data.img", 1 << 30),
        ]
        with Guest(command, disks=disks, environment=environment, udev=udev) as guest:
            status = guest.wait(TIMEOUT)
            if status in (GUEST_FAILED, TIMED_OUT):
                print(f"the guest came to no end:\n{guest.console()[-3000:]}", file=sys.stderr)
    return status


def run_tests(arguments: Sequence[str], *, udev: bool = False) -> int:
    """pytest in the guest, one line for each test."""
    begin = time.monotonic()
    seed = os.environ.get(SEED) or str(secrets.randbelow(1 << 32))
    command = [python(), "-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", "console_output_style=classic", "--durations=5", *arguments]
    status = run(command, {SEED: seed}, udev=udev)
    beside = " beside udev" if udev else ""
    print(f"guest: tests{beside} ended with status {status} after {time.monotonic() - begin:.0f} s", flush=True)
    return status


def cut(*, every: bool, random_cuts: int) -> int:
    """Power cuts, and once the proof that they would find a mistake."""
    begin = time.monotonic()
    seed = int(os.environ.get(SEED) or secrets.randbelow(1 << 32))
    chance = random.Random(seed)
    print(f"guest: power cuts, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-cuts-") as name:
        cuts = PowerCuts(Path(name), say=lambda line: print(f"guest: {line}", flush=True))
        cuts.learn()
        places = list(cuts.places())
        always = {cuts.points.index(name) for name in ALWAYS}
        points = sorted(always | set(places if every else chance.sample(places, SAMPLE)))
        cuts.run(points, random_cuts=random_cuts, chance=chance)
    caught = _finds_a_mistake()
    print(
        f"guest: {cuts.survived} of {len(points) + random_cuts} power cuts survived, {len(cuts.problems)} problems "
        f"({len(places)} points of unpack and activate are known); "
        f"a forgotten sync was {'caught' if caught else 'NOT caught'}; {time.monotonic() - begin:.0f} s",
        flush=True,
    )
    for problem in cuts.problems:
        print(f"guest: {problem[:3000]}", flush=True)
    return 0 if caught and not cuts.problems and cuts.survived == len(points) + random_cuts else 1


def _finds_a_mistake() -> bool:
    """With the sync of its record left out, a cut after the pool was told must be told of by the next boot."""
    with tempfile.TemporaryDirectory(prefix="holdfast-cuts-") as name:
        cuts = PowerCuts(Path(name))
        cuts.learn()
        cuts.cut_at(cuts.points.index("create.thin-made"), "--forget-to-sync")
        cuts.problems.clear()
        cuts.finish("a cut with a sync left out")
        return bool(cuts.problems)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
