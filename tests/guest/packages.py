"""What the guest is made of: Debian packages, unpacked into a cache directory. Nothing is installed, no root needed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

ALWAYS = (
    *("user-mode-linux", "busybox-static", "dmsetup", "libdevmapper1.02.1", "thin-provisioning-tools", "libaio1"),
    *("udev", "libkmod2"),
)
E2FSPROGS = ("e2fsprogs", "libext2fs2", "libss2", "libcom-err2")
RENAMED = {"libaio1": "libaio1t64", "libext2fs2": "libext2fs2t64"}
"""What a package is called in later releases of Debian."""
CACHE_VARIABLE = "HOLDFAST_GUEST_CACHE"
TIMEOUT = 300


class Unavailable(Exception):
    """There can be no guest on this machine."""


def guest_files() -> Path:
    """The directory with the unpacked packages; fetched the first time."""
    packages = ALWAYS if shutil.which("mkfs.ext4", path=search_path()) else ALWAYS + E2FSPROGS
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast" / "guest"
    cache = Path(os.environ.get(CACHE_VARIABLE) or default)
    place = cache / f"packages-{len(packages)}"
    if not place.exists():
        for program in ("apt-get", "dpkg-deb"):
            if shutil.which(program) is None:
                raise Unavailable(f"{program} is missing: the guest is made of Debian packages")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as name:
            _fetch(packages, Path(name))
            try:
                (Path(name) / "root").rename(place)
            except OSError:  # another was faster
                if not place.exists():
                    raise
    return place


def search_path(root: Path | None = None) -> str:
    """Where programs are looked for: the host's own, then what was fetched."""
    places = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"]
    return ":".join(places + ([f"{root}/usr/sbin", f"{root}/sbin", f"{root}/usr/bin", f"{root}/bin"] if root else []))


def library_path(root: Path) -> str:
    """Where the fetched programs find the fetched libraries."""
    places = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    return ":".join(str(place) for place in places)


def _fetch(packages: tuple[str, ...], place: Path) -> None:
    lists = place / "lists"
    (lists / "partial").mkdir(parents=True)
    if not _download(packages, place, ()):
        # A fresh machine has no lists of packages; they are fetched aside, which needs no root.
        aside = ("-o", f"Dir::State::lists={lists}", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=")
        _run("apt-get", "update", "-qq", *aside, cwd=place)
        if not _download(packages, place, aside):
            raise Unavailable(f"apt-get cannot download {', '.join(packages)}")
    for file in sorted(place.glob("*.deb")):
        _run("dpkg-deb", "-x", str(file), str(place / "root"), cwd=place)


def _download(packages: tuple[str, ...], place: Path, options: tuple[str, ...]) -> bool:
    for package in packages:
        for name in (package, RENAMED.get(package, package)):
            if _run("apt-get", "download", "-qq", *options, name, cwd=place):
                break
        else:
            return False
    return True


def _run(*command: str, cwd: Path) -> bool:
    answer = subprocess.run(command, cwd=cwd, capture_output=True, timeout=TIMEOUT, check=False)
    return answer.returncode == 0
