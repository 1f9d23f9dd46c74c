"""A wall clock that jumps for all processes of a history at once: a small library that is preloaded into them.

The library is compiled by `cc` when a history asks for it. It shifts what the C library tells of the real time, so the
processes under test, and the PostgreSQL server, run unchanged.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shift.c")
HINT = "a history with clock jumps needs a C compiler: install Debian's packages gcc and libc6-dev"


class ShiftedClock:
    """The shift is in a file that every process with `environment` has mapped."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise RuntimeError(HINT)
        library = directory / "clock_shift.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True)
        path = directory / "clock"
        path.write_bytes(bytes(mmap.PAGESIZE))
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "HISTORY_CLOCK": str(path)}
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.highest = 0.0

    @property
    def shift(self) -> float:
        """By how many seconds it is ahead now."""
        return float(struct.unpack("<q", self._page[:8])[0]) / 1e9

    @shift.setter
    def shift(self, seconds: float) -> None:
        self._page[:8] = struct.pack("<q", round(seconds * 1e9))
        self.highest = max(self.highest, seconds)

    def settle(self) -> None:
        """Set the clock to the latest that it ever was, so that nothing waits for a time that was taken back."""
        self.shift = self.highest

    def now_ms(self) -> int:
        """What the processes of the history take for the time."""
        return time.time_ns() // 1_000_000 + round(self.shift * 1000)


class TrueClock:
    """The same for a history without jumps."""

    environment: Mapping[str, str] = {}
    shift = 0.0

    def settle(self) -> None:
        """It is right as it is."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
