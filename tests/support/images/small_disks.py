"""Disks that are soon full."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tmpfs_on(place: Path, *, megabytes: int, inodes: int) -> Iterator[None]:
    """A file system in memory on this directory; only root may mount it."""
    options = f"size={megabytes}m,nr_inodes={inodes},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", place], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", place], check=True)
