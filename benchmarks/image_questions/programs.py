"""Programs to be measured, ours and others: each in a process of its own, timed until what it wrote is on the disk."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "tar": "tar",
    "bsdtar": "libarchive-tools",
    "gzip": "gzip",
    "curl": "curl",
    "sha256sum": "coreutils",
    "openssl": "openssl",
}
"""Program -> the package of Debian that has it."""

_libc = ctypes.CDLL(None, use_errno=True)


def missing_programs() -> dict[str, str]:
    """Those of the programs above that are not installed, and their packages."""
    return {name: package for name, package in PROGRAMS.items() if shutil.which(name) is None}


def sync(place: str | Path) -> None:
    """Everything written to the file system of this place is on its disk."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        if _libc.syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs")
    finally:
        os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    """Seconds it takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def run(command: Sequence[str | Path], **environment: str) -> None:
    """Run a program to its good end; what it says is of no interest."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**our_environment(), **environment})


def python(code: str, *arguments: str | Path) -> list[str]:
    """A command that runs some lines of Python with our sources."""
    return [sys.executable, "-c", code, *map(str, arguments)]


def our_environment() -> Mapping[str, str]:
    """In which our own commands find our own sources, compiled once, as an installed command is."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}


def emptied(directory: Path) -> Path:
    """The directory, with nothing in it, and nothing left to be written by whoever came before."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    sync(directory)
    return directory
