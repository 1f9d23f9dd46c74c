"""The clock of a history jumps for the processes that are told of it, and nothing else does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.histories.clock import ShiftedClock

TELL = "import time; input(); print(time.time(), time.monotonic())"


def test_the_real_time_jumps_and_the_monotonic_one_does_not(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    command = [sys.executable, "-c", TELL]
    environment = {**os.environ, **clock.environment}
    with subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, text=True) as process:
        clock.shift = 5000.0  # while it runs
        real, monotonic = map(float, process.communicate("\n")[0].split())

    assert abs(real - 5000.0 - time.time()) < 60
    assert abs(monotonic - time.monotonic()) < 60


def test_a_clock_that_was_set_back_settles_at_the_latest_it_has_shown(tmp_path: Path) -> None:
    clock = ShiftedClock(tmp_path)
    clock.shift = 100.0
    clock.shift = -50.0
    clock.settle()

    assert clock.shift == 100.0
