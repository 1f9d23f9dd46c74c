"""Images that nobody made by hand: a Debian root, as tar, as OCI layout and as docker-save archive, in several layers.

Needs the Debian packages of PROGRAMS; says which are missing and how to get them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = {"umoci": "umoci", "skopeo": "skopeo", "dpkg-deb": "dpkg", "apt-get": "apt", "zstd": "zstd"}
"""Program -> Debian package."""

PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "iputils-ping",
    "libc6",
    "libc-bin",
    "libpam-modules",
    "login",
    "mount",
    "ncurses-base",
    "passwd",
    "perl-base",
    "tzdata",
    "util-linux",
)
"""Symbolic links of every kind, setuid programs, hard links, odd modes and groups: what a root is made of."""


def missing_programs() -> list[str]:
    """The Debian packages to install before anything here can be made."""
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None})


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run it, or fail with what it said."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, check=False, env=_environment())
    assert done.returncode == 0, f"{command}: {done.stderr.decode(errors='replace')}"


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def debian_root(place: Path) -> Path:
    """The unpacked files of real packages, as their maintainers made them."""
    downloads, root = place / "packages", place / "debian"
    downloads.mkdir(parents=True)
    root.mkdir()
    run("apt-get", "download", "-o", "APT::Sandbox::User=root", *PACKAGES, cwd=downloads)
    for package in sorted(downloads.glob("*.deb")):
        run("dpkg-deb", "-x", package, root)
    return root


def changed_root(root: Path) -> None:
    """What a later layer does to a root: removes files and directories, replaces, links, writes through links."""
    shutil.rmtree(root / "usr/share/doc")
    (root / "usr/share/doc").mkdir()
    (root / "usr/share/doc/README").write_text("emptied\n")
    # umoci then writes whiteouts of what was in the directory, below the link that has taken its place.
    shutil.rmtree(root / "usr/share/zoneinfo")
    (root / "usr/share/zoneinfo").symlink_to("../lib/zoneinfo")
    link = next(path for path in sorted((root / "etc").iterdir()) if path.is_symlink())
    link.unlink()
    link.mkdir()
    (link / "inside").write_text("was a link\n")
    (root / "etc/debian_version").unlink()
    (root / "etc/debian_version").mkdir()
    (root / "etc/debian_version/is").write_text("a directory now\n")
    (root / "etc/issue").write_text("changed\n")
    os.link(root / "etc/issue", root / "etc/issue.again")
    (root / "etc/host.conf").unlink()


def as_oci(root: Path, place: Path) -> Path:
    """An OCI layout of two layers, by umoci: the root, and what changed_root() does to it. `root` is changed."""
    layout, bundle = place / "layout", place / "bundle"
    image = f"{layout}:demo"
    run("umoci", "init", "--layout", layout)
    run("umoci", "new", "--image", image)
    run("umoci", "unpack", "--image", image, bundle)
    (bundle / "rootfs").rmdir()
    run("cp", "-a", root, bundle / "rootfs")
    run("umoci", "repack", "--image", image, bundle)
    shutil.rmtree(bundle)
    run("umoci", "unpack", "--image", image, bundle)
    changed_root(bundle / "rootfs")
    run("umoci", "repack", "--image", image, bundle)
    return layout


def as_archive(layout: Path, archive: Path) -> Path:
    """The layout in one file."""
    run("tar", "-C", layout, "-cf", archive, ".")
    return archive


def as_docker_saved(layout: Path, archive: Path) -> Path:
    """The same image as docker save would write it."""
    run("skopeo", "--insecure-policy", "copy", f"oci:{layout}:demo", f"docker-archive:{archive}:demo:latest")
    return archive


def unpacked_by_umoci(layout: Path, place: Path) -> Path:
    """What the reference implementation makes of it."""
    run("umoci", "unpack", "--image", f"{layout}:demo", place)
    return place / "rootfs"
