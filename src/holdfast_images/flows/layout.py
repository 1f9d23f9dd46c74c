"""What an unpacked image must look like."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from holdfast_images.archive.entry import Finding, Severity
from holdfast_images.archive.reasons import Reason
from holdfast_images.errors import ImageRefused

ROOT = "rootfs"
EXPECTED = ("etc", "usr", "var")
CRITICAL = ("etc", "usr")
LINKS_FOLLOWED = 40


def judge_layout(content: Path) -> tuple[Finding, ...]:
    """What the root file system lacks; ImageRefused unless only their owners write to its critical directories.

    A distribution without /usr and programs without /etc exist: they are told of, and taken.
    """
    if not _is_directory(content / ROOT):
        raise ImageRefused(
            "LAYOUT_NO_ROOTFS",
            "the image has no directory rootfs",
            entry=ROOT,
            hint="archive the root file system below rootfs/, or as an OCI layout",
        )
    for name in CRITICAL:
        path = _inside(content / ROOT, name)
        if path is not None and path.lstat().st_mode & stat.S_IWOTH:
            raise ImageRefused("LAYOUT_WORLD_WRITABLE", f"anybody may write to rootfs/{name}", entry=f"{ROOT}/{name}")
    return tuple(_missing(name) for name in EXPECTED if not os.path.lexists(content / ROOT / name))


def _missing(name: str) -> Finding:
    return Finding(
        code=Reason.LAYOUT_INCOMPLETE,
        severity=Severity.WARNING,
        path=f"{ROOT}/{name}",
        offset=None,
        detail=f"the image has no {ROOT}/{name}",
    )


def _inside(root: Path, name: str) -> Path | None:
    """Where a name leads for a process whose root is the image's; None if to nothing, or through too many links."""
    at, left, links = root, [name], 0
    while left:
        part = left.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            at = at.parent if at != root else root
            continue
        below = at / part
        try:
            target = os.readlink(below)
        except FileNotFoundError:
            return None
        except OSError:
            at = below
            continue
        links += 1
        if links > LINKS_FOLLOWED:
            return None
        at = root if target.startswith("/") else at
        left += target.split("/")[::-1]
    return at


def _is_directory(path: Path) -> bool:
    """Itself, not what a symlink of the image points to on this host."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False
