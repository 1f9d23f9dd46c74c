"""Where the figures come from: they mean nothing anywhere else."""

from __future__ import annotations

import os
import platform
import sqlite3
import time
from pathlib import Path


def describe_machine(directory: str) -> dict[str, str]:
    """The machine, its programs, and the file system of a directory."""
    file_system = "unknown"
    best = ""
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind, *_ = line.split()
        if directory.startswith(mount) and len(mount) >= len(best):
            best, file_system = mount, f"{kind}{_without_journal(device, kind)}"
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": model[0].partition(": ")[2] if model else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "file system": file_system,
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _without_journal(device: str, kind: str) -> str:
    """An ext4 without a journal is slow for minutes where many files were deleted: ratios are then worth little."""
    name = os.path.basename(os.path.realpath(device))
    journals = Path("/proc/fs/jbd2")
    if kind != "ext4" or not Path("/sys/class/block", name).exists() or not journals.is_dir():
        return ""
    return "" if any(journals.glob(f"{name}-*")) else " without a journal"
