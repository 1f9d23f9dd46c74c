"""A virtual environment for each peer, with the versions that its requirements file pins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / "peers"
CACHE = "HOLDFAST_BENCH_PEERS"
"""Where the environments are kept, if not in `.venv-peers` of this checkout."""
NEWER = ("python3.14", "python3.13", "python3.12")
NEEDS_NEWER = {"oban": (3, 12)}


class NotMeasured(Exception):
    """A peer that could not be installed or run; the message says why."""


def python_of(peer: str) -> str:
    """The interpreter of the peer's environment, which is made if it is missing or has other versions."""
    if peer == "holdfast":
        return sys.executable
    requirements = PEERS / peer / "requirements.txt"
    wanted = requirements.read_text()
    place = _cache() / peer
    installed, python = place / "installed.txt", place / "bin" / "python"
    if not installed.exists() or installed.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        print(f"          installing {peer}", file=sys.stderr, flush=True)
        _run(_interpreter_for(peer), "-m", "venv", "--without-pip", str(place))
        _run(
            *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"),
            *("--disable-pip-version-check", "--requirement", str(requirements)),
        )
        installed.write_text(wanted)
    return str(python)


def version_of(peer: str) -> str:
    """The pinned version of the peer itself: the first line of its requirements."""
    if peer == "holdfast":
        return ""
    return (PEERS / peer / "requirements.txt").read_text().splitlines()[0].partition("==")[2]


def _cache() -> Path:
    return Path(os.environ.get(CACHE) or PEERS.parent.parent / ".venv-peers")


def _interpreter_for(peer: str) -> str:
    needed = NEEDS_NEWER.get(peer)
    if needed is None or sys.version_info >= needed:
        return sys.executable
    for name in NEWER:
        if found := shutil.which(name):
            return found
    raise NotMeasured(f"{peer} needs Python {needed[0]}.{needed[1]} or newer, and none of {', '.join(NEWER)} is here")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise NotMeasured(f"`{' '.join(command)}` failed: {' / '.join(lines[-3:])}")
