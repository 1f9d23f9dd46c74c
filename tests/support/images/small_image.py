"""A small honest image, and a context of real parts to process it with."""

from __future__ import annotations

import copy
import hashlib
import os
from pathlib import Path

from holdfast_images.catalog.catalog import Catalog
from holdfast_images.devices.directory import DirectoryDevices
from holdfast_images.flows.context import FlowContext
from holdfast_images.flows.schemas import Judging, ProcessRequest
from holdfast_images.source.location import location_of
from tests.support.images import archives

IMAGE_ID = "small"
KEY = "images/small.tar"


def small_image(*more: bytes) -> bytes:
    """A root file system with a file of each harmless kind."""
    return archives.archive(
        *(archives.directory(name) for name in (b"rootfs", b"rootfs/etc", b"rootfs/usr", b"rootfs/var")),
        archives.member(b"rootfs/etc/hostname", b"small\n"),
        archives.member(b"rootfs/usr/data", b"x" * 70_000),
        archives.symlink(b"rootfs/etc/name", b"hostname"),
        archives.hardlink(b"rootfs/usr/again", b"rootfs/usr/data"),
        *more,
    )


def context_at(directory: Path) -> FlowContext:
    """Catalog, devices and files below one directory."""
    state = directory / "state"
    return FlowContext(catalog=Catalog.open(state), devices=DirectoryDevices.open(state), images=state / "images")


def context_with(ctx: FlowContext, **changes: object) -> FlowContext:
    """The same parts, but for these."""
    other = copy.copy(ctx)
    for name, value in changes.items():
        setattr(other, name, value)
    return other


def request_for(file: Path, *, snapshot: str = "", **judging: object) -> ProcessRequest:
    """Process this file under the small image's names."""
    return ProcessRequest(
        s3_key=KEY,
        image_id=IMAGE_ID,
        location=location_of(f"file://{file}"),
        snapshot_name=snapshot,
        judging=Judging(**judging),  # type: ignore[arg-type]
    )


def tree_of(root: Path) -> dict[str, object]:
    """Everything below a directory that an image determines."""
    seen: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        seen[str(path.relative_to(root))] = (oct(status.st_mode), status.st_mtime_ns, status.st_nlink, content)
    return seen
