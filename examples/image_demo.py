"""An image from a file to a snapshot: killed half-way and gone on with, found again at once, and one refused.

    make demo

Works in a temporary directory, or in the one it is given, where a second run finds everything done. Needs neither
network, S3, root nor device-mapper, takes some seconds, and fails if a promise does. Every line that begins with `$`
is a command anybody could type.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

HOLDFAST = [sys.executable, "-m", "holdfast_images.cli"]
MEBIBYTE = 1 << 20


# --- Two images: an honest one, and one that wants out of its directory ---


def make_image(path: Path, megabytes: int) -> None:
    with tarfile.open(path, "w") as tar:
        for name in ("rootfs", "rootfs/etc", "rootfs/usr", "rootfs/usr/share", "rootfs/var"):
            add(tar, name, directory=True)
        add(tar, "rootfs/etc/hostname", b"demo\n")
        for number in range(megabytes):
            add(tar, f"rootfs/usr/share/{number}.dat", bytes([number % 256]) * MEBIBYTE)


def make_hostile_image(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        add(tar, "rootfs/etc/hostname", b"innocent\n")
        add(tar, "rootfs/../../../etc/cron.d/backdoor", b"* * * * * root /tmp/x\n")
        add(tar, "rootfs/usr/bin/shell", b"#!/bin/sh\n", mode=0o4755)
        add(tar, "rootfs/etc/passwd", linkname="/etc/passwd")


def add(
    tar: tarfile.TarFile, name: str, content: bytes = b"", *, directory: bool = False, linkname: str = "", mode: int = 0
) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode or (0o755 if directory else 0o644)
    if directory:
        entry.type = tarfile.DIRTYPE
    if linkname:
        entry.type, entry.linkname = tarfile.SYMTYPE, linkname
    tar.addfile(entry, io.BytesIO(content))


# --- Commands, shown and run ---


def run(environment: dict[str, str], *words: str, expected: int = 0) -> str:
    """Run a command, show it and what it prints; its progress goes where ours goes."""
    print(f"\n$ holdfast {shlex.join(words)}", flush=True)
    began = time.monotonic()
    command = [*HOLDFAST, *words]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    print(done.stdout, end="")
    print(f"(exit code {done.returncode}, {time.monotonic() - began:.2f} s)", flush=True)
    if done.returncode != expected:
        raise SystemExit(f"expected exit code {expected}")
    return done.stdout


def run_and_kill(environment: dict[str, str], *words: str, when: str) -> None:
    """Run a command and kill it as soon as it says something."""
    print(f"\n$ holdfast {shlex.join(words)}", flush=True)
    command = [*HOLDFAST, *words]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        for line in process.stderr:
            print(f"  {line}", end="", flush=True)
            if line.startswith(when):
                process.kill()
                print("  … killed with SIGKILL", flush=True)


def show(title: str) -> None:
    print(f"\n=== {title} ===", flush=True)


def main() -> None:
    lasting = nullcontext(sys.argv[1]) if len(sys.argv) > 1 else tempfile.TemporaryDirectory(prefix="holdfast-demo-")
    with lasting as name:
        directory = Path(name)
        (directory / "config.toml").touch()
        environment = {
            variable: value for variable, value in os.environ.items() if not variable.startswith("HOLDFAST_")
        }
        environment |= {"HOLDFAST_STATE": str(directory / "state"), "HOLDFAST_CONFIG": str(directory / "config.toml")}
        demonstrate(directory, environment)


def demonstrate(directory: Path, environment: dict[str, str]) -> None:
    show("A small image, and a hostile one")
    honest, hostile = directory / "demo.tar", directory / "hostile.tar"
    if not honest.exists():
        make_image(honest, 48)
        make_hostile_image(hostile)
    print(f"{honest}: {honest.stat().st_size:,} bytes\n{hostile}: {hostile.stat().st_size:,} bytes")
    words = ("process-image", "--source", f"file://{honest}", "--image-id", "demo")

    show("Killed in the middle, then the same command again: it goes on, and nothing is done twice")
    run_and_kill(environment, *words, when="download:")
    run(environment, *words)
    run(environment, "images")

    show("Once more: everything is found done")
    again = json.loads(run(environment, *words, "--json"))
    outcomes = {stage["outcome"] for stage in again["stages"].values()}
    print(f"stages: {', '.join(sorted(outcomes))}")
    print(f"in the snapshot: {Path(again['snapshot_path'], 'rootfs/etc/hostname').read_text().strip()}")

    show("The hostile image: everything that is wrong with it, then refused")
    run(environment, "inspect", str(hostile), expected=3)
    run(environment, "process-image", "--source", f"file://{hostile}", expected=3)

    show("Nothing of it is left, nothing is lost, nothing is left over")
    run(environment, "verify-system", "--deep")
    if outcomes != {"handoff"}:
        raise SystemExit(f"expected to find everything done, not {outcomes}")


if __name__ == "__main__":
    main()
