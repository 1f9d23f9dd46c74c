"""Archives made of raw blocks: honest ones, and such as no tool would write."""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Literal

import zstandard

from holdfast_images.archive.compression import open_stream
from holdfast_images.archive.entry import Entry, InspectionReport, Limits, Policy
from holdfast_images.archive.inspection import MergedLayers, inspect_tar, refusal
from holdfast_images.archive.reader import TarReader
from holdfast_images.errors import ImageRefused

BLOCK = 512
POSIX = b"ustar\x0000"
GNU = b"ustar  \0"
V7 = bytes(8)
END = bytes(2 * BLOCK)

Form = Literal["ustar", "pax", "gnu"]
Compression = Literal["none", "gzip", "xz", "zstd"]
FORMS: tuple[Form, ...] = ("ustar", "pax", "gnu")
COMPRESSIONS: tuple[Compression, ...] = ("none", "gzip", "xz", "zstd")
COMPRESSED: tuple[Compression, ...] = COMPRESSIONS[1:]
OF_LAYERS: tuple[Compression, ...] = ("none", "gzip", "zstd")
"""Those that have a media type."""


def octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def base_256(value: int, width: int) -> bytes:
    if value < 0:
        return value.to_bytes(width, "big", signed=True)
    return b"\x80" + value.to_bytes(width - 1, "big")


def checksummed(block: bytes) -> bytes:
    """The header with the checksum it should have."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def header(
    name: bytes,
    *,
    kind: bytes = b"0",
    mode: int | bytes = 0o644,
    uid: int | bytes = 0,
    gid: int | bytes = 0,
    size: int | bytes = 0,
    mtime: int | bytes = 1_700_000_000,
    linkname: bytes = b"",
    magic: bytes = POSIX,
    device: tuple[int, int] = (0, 0),
    prefix: bytes = b"",
    rest: bytes = bytes(12),
    checksum: bytes | None = None,
) -> bytes:
    """One header block; numbers may be given as the raw bytes of their field."""

    def numeric(value: int | bytes, width: int) -> bytes:
        return octal(value, width) if isinstance(value, int) else value.ljust(width, b"\0")

    block = b"".join(
        (
            name[:100].ljust(100, b"\0"),
            numeric(mode, 8),
            numeric(uid, 8),
            numeric(gid, 8),
            numeric(size, 12),
            numeric(mtime, 12),
            b" " * 8,
            kind,
            linkname[:100].ljust(100, b"\0"),
            magic,
            bytes(64),
            octal(device[0], 8),
            octal(device[1], 8),
            prefix.ljust(155, b"\0"),
            rest,
        )
    )
    assert len(block) == BLOCK
    block = checksummed(block)
    return block if checksum is None else block[:148] + checksum + block[156:]


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


def record(keyword: bytes, value: bytes) -> bytes:
    """One pax record; its length counts its own digits."""
    length = len(keyword) + len(value) + 3
    while len(str(length)) + len(keyword) + len(value) + 3 != length:
        length = len(str(length)) + len(keyword) + len(value) + 3
    return b"%d %s=%s\n" % (length, keyword, value)


def pax(records: dict[bytes, bytes] | bytes, *, kind: bytes = b"x") -> bytes:
    """A pax header with these records, or with this body."""
    body = records if isinstance(records, bytes) else b"".join(record(*each) for each in records.items())
    return header(b"PaxHeaders/x", kind=kind, size=len(body)) + padded(body)


def long_name(name: bytes, *, kind: bytes = b"L") -> bytes:
    """A GNU header with a name ("L") or a target ("K") of any length."""
    return header(b"././@LongLink", kind=kind, size=len(name) + 1, magic=GNU) + padded(name + b"\0")


def member(
    name: bytes,
    content: bytes = b"",
    *,
    form: Form = "ustar",
    kind: bytes = b"0",
    linkname: bytes = b"",
    mode: int | None = None,
    xattrs: dict[bytes, bytes] | None = None,
    **fields: object,
) -> bytes:
    """A member. In pax and GNU form its names are told by extension headers, in front of an innocent header."""
    mode = (0o755 if kind == b"5" else 0o777 if kind == b"2" else 0o644) if mode is None else mode
    records = {b"SCHILY.xattr." + key: value for key, value in (xattrs or {}).items()}
    if form == "pax":
        records |= {b"path": name} | ({b"linkpath": linkname} if linkname else {})
    before = pax(records) if records else b""
    shown, target, magic = name, linkname, POSIX
    if form == "gnu":
        magic = GNU
        before += (long_name(linkname, kind=b"K") if linkname else b"") + long_name(name)
    if form != "ustar":
        shown, target = b"innocent", b"innocent" if linkname else b""
    fields = {"size": len(content), "magic": magic, **fields}
    return before + header(shown, kind=kind, linkname=target, mode=mode, **fields) + padded(content)  # type: ignore[arg-type]


def directory(name: bytes, **fields: object) -> bytes:
    return member(name, kind=b"5", **fields)  # type: ignore[arg-type]


def symlink(name: bytes, target: bytes, **fields: object) -> bytes:
    return member(name, kind=b"2", linkname=target, **fields)  # type: ignore[arg-type]


def hardlink(name: bytes, target: bytes, **fields: object) -> bytes:
    return member(name, kind=b"1", linkname=target, **fields)  # type: ignore[arg-type]


def archive(*members: bytes, end: bytes = END) -> bytes:
    return b"".join(members) + end


def compressed(content: bytes, compression: Compression) -> bytes:
    if compression == "gzip":
        return gzip.compress(content, 1, mtime=0)
    if compression == "xz":
        return lzma.compress(content, preset=0)
    if compression == "zstd":
        return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)
    return content


@contextmanager
def descriptor(content: bytes) -> Iterator[int]:
    """A file with this content, in memory."""
    fd = os.memfd_create("archive", os.MFD_CLOEXEC)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        yield fd
    finally:
        os.close(fd)


def inspected(
    content: bytes,
    policy: Policy = Policy.STRICT,
    *,
    limits: Limits | None = None,
    keep_setuid: bool = False,
    layer: bool = False,
) -> InspectionReport:
    """What is said about an archive; one that cannot even be opened has a report as well."""
    limits = limits or Limits()
    with descriptor(content) as fd:
        try:
            stream = open_stream(fd, limits=limits)
        except ImageRefused as refused:
            return InspectionReport(
                acceptable=False,
                policy=policy,
                form="tar",
                compression="none",
                entries=0,
                total_bytes=0,
                findings=(refusal(refused),),
            )
        with closing(stream):
            merged = MergedLayers(policy, limits) if layer else None
            return inspect_tar(stream, policy=policy, limits=limits, keep_setuid=keep_setuid, merged=merged)


def entries_of(content: bytes, limits: Limits | None = None) -> list[tuple[Entry, bytes]]:
    """Every entry with its stored content."""
    limits = limits or Limits()
    with descriptor(content) as fd, closing(open_stream(fd, limits=limits)) as stream:
        reader = TarReader(stream, limits)
        return [(entry, b"".join(map(bytes, reader.body()))) for entry in reader]
