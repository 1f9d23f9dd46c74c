"""The file system on a device: made so that its image determines what is in it, and known again by its superblock."""

from __future__ import annotations

import hashlib
import os
import struct
from uuid import UUID

import msgspec

from holdfast_images.devices.commands import CommandFailed, run
from holdfast_images.errors import ImageError, NoSpace

SUPERBLOCK_AT = 1024
SUPERBLOCK_BYTES = 1024
MAGIC = 0xEF53
NEEDS_RECOVERY = 0x4
VALID = 1
PASSING = (
    (0x0C, 0x14),  # free blocks and inodes
    (0x2C, 0x38),  # last mount, last write, number of mounts
    (0x40, 0x44),  # last check
    (0x88, 0xC8),  # where it was mounted last
    (0x158, 0x15C),  # free blocks, upper half
    (0x178, 0x180),  # bytes ever written
    (0x274, 0x280),  # upper halves of times
    (0x3FC, 0x400),  # checksum
)
"""Fields that change whenever the file system is mounted to be written to, or checked."""
JOURNAL_MEGABYTES = 16
"""A journal is real space in the pool, once for the image and once for each snapshot that is written to."""
LEAST_BYTES = 64 << 20
BYTES_PER_INODE = 16384
SPARE_INODES = 1000
MAKE_TIMEOUT = 300.0


class Superblock(msgspec.Struct, frozen=True, kw_only=True):
    """What tells one file system from another."""

    uuid: str
    digest: str
    """Of what a mount and a check leave as it is: layout, features, states, errors."""
    clean: bool = True
    """Nothing is left for the next mount to replay or to remove."""


def parse_superblock(raw: bytes) -> Superblock | None:
    """From the second KiB of a device; None if there is no ext4. Pure."""
    if len(raw) != SUPERBLOCK_BYTES or struct.unpack_from("<H", raw, 0x38)[0] != MAGIC:
        return None
    (incompatible,) = struct.unpack_from("<I", raw, 0x60)
    (state,) = struct.unpack_from("<H", raw, 0x3A)
    (orphan,) = struct.unpack_from("<I", raw, 0xE8)
    kept = bytearray(raw)
    for start, end in PASSING:
        kept[start:end] = bytes(end - start)
    return Superblock(
        uuid=str(UUID(bytes=raw[0x68:0x78])),
        digest=hashlib.sha256(kept).hexdigest(),
        clean=not incompatible & NEEDS_RECOVERY and state == VALID and not orphan,
    )


def read_superblock(node: str) -> Superblock | None:
    """Of a device that is shown."""
    descriptor = os.open(node, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return parse_superblock(os.pread(descriptor, SUPERBLOCK_BYTES, SUPERBLOCK_AT))
    finally:
        os.close(descriptor)


def valid_uuid(text: str) -> str:
    """A UUID in its usual form; ImageError if it is none."""
    try:
        return str(UUID(text))
    except ValueError as error:
        raise ImageError(f"{text!r} is no UUID, so no file system can have it") from error


def inodes_for(size: int, files: int) -> int:
    """One for each 16 KiB as mkfs has it, and at least as many as are going to be needed."""
    return max(size // BYTES_PER_INODE, files + files // 10 + SPARE_INODES)


def make_ext4(node: str, uuid: str, *, size: int, files: int = 0) -> None:
    """A new ext4 on a device that reads as zeros everywhere, on disk when this returns.

    Crash: anything may be on the device.
    """
    if size < LEAST_BYTES:
        raise NoSpace(
            f"a device of {size} bytes is too small", hint=f"at least {LEAST_BYTES}: device_size in the settings"
        )
    # Without the first option the kernel would write all inode tables after the mount: 165 MB on 10 GiB.
    zeroed = "assume_storage_prezeroed=1,nodiscard"
    try:
        _make(node, uuid, size, files, zeroed)
    except CommandFailed as error:
        if "option" not in str(error):
            raise
        _make(node, uuid, size, files, "lazy_itable_init=0,lazy_journal_init=0,nodiscard")  # before e2fsprogs 1.47


def _make(node: str, uuid: str, size: int, files: int, extended: str) -> None:
    run(
        "mkfs.ext4",
        "-q", "-F",
        "-b", "4096",
        "-I", "256",  # times have nanoseconds only in large inodes, which a small file system does not get by itself
        "-m", "0",
        "-J", f"size={JOURNAL_MEGABYTES}",
        "-N", str(inodes_for(size, files)),
        "-O", "^resize_inode",
        "-U", valid_uuid(uuid),
        "-E", extended,
        node,
        timeout=MAKE_TIMEOUT,
    )  # fmt: skip


def check_ext4(node: str) -> str:
    """What e2fsck finds wrong with a file system that is not mounted; empty if nothing. Changes nothing."""
    answer = run("e2fsck", "-f", "-n", node, timeout=MAKE_TIMEOUT * 12, accept=(0, 1, 2, 4, 8, 12))
    return "" if answer.status == 0 else (answer.output + answer.errors).strip()
