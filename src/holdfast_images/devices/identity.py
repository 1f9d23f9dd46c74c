"""The small file that says what a directory holds. It is whole or not there, whatever crashes."""

from __future__ import annotations

import os
from enum import StrEnum

import msgspec

from holdfast_images.devices.crash_points import crash_point
from holdfast_images.devices.protocol import Kind

IDENTITY = "identity.json"
ASIDE = "identity.json.new"
MOST_BYTES = 65536


class State(StrEnum):
    """MADE: for content that is not whole yet. SEALED: whole, and on disk."""

    MADE = "made"
    SEALED = "sealed"


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory holds."""

    version: int = 1
    id: int
    name: str
    uuid: str
    kind: Kind
    state: State
    size: int = 0
    origin: int | None = None
    digest: str | None = None
    """Of the manifest, when it was sealed."""
    superblock: str | None = None
    """Digest of the file system's superblock when it was sealed, where it has a file system of its own."""


def read_identity(directory: int) -> Identity | None:
    """What the directory says it holds; None if it does not say, or not readably."""
    try:
        descriptor = os.open(IDENTITY, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError:
        return None
    try:
        return msgspec.json.decode(os.read(descriptor, MOST_BYTES), type=Identity)
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
        return None
    finally:
        os.close(descriptor)


def write_identity(directory: int, identity: Identity, *, point: str) -> None:
    """Replace what the directory says. Crash: it says the old or the new; a file set aside is written over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(ASIDE, flags, 0o600, dir_fd=directory)
    try:
        os.write(descriptor, msgspec.json.encode(identity) + b"\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    crash_point(point)
    os.rename(ASIDE, IDENTITY, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
