"""Compressed streams drawn at random: of several parts, with every field of their formats, some of them wrong."""

from __future__ import annotations

import lzma
import random
import struct
import zlib

import zstandard

from tests.hostile.drawn_tars import Drawing

PROGRAMS = {"gzip": "gzip", "xz": "xz", "zstd": "zstd"}
SKIPPABLE = 0x184D2A50


def drawn_stream(rng: random.Random) -> tuple[bytes, str]:
    """A compressed archive, and the program that should know how to read it."""
    content = Drawing(rng).archive(0.0)
    kind = rng.choice(list(PROGRAMS))
    part = {"gzip": gzip_member, "xz": xz_stream, "zstd": zstd_frame}[kind]
    cuts = sorted(rng.randrange(len(content) + 1) for _ in range(rng.choice((0, 0, 1, 2))))
    parts = [part(rng, content[start:end]) for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    between = {"gzip": b"", "xz": bytes(rng.choice((0, 0, 4, 8))), "zstd": skippable_frame(rng)}[kind]
    stream = between.join(parts) if rng.random() < 0.5 else b"".join(parts)
    if rng.random() < 0.15:
        stream += rng.choice(
            (bytes(1), bytes(3), bytes(4), bytes(512), b"x", b"\x1f\x8b", b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd")
        )
    if rng.random() < 0.25:
        at = rng.choice((rng.randrange(min(24, len(stream))), len(stream) - 1 - rng.randrange(min(24, len(stream)))))
        flipped = bytearray(stream)
        flipped[at] ^= 1 << rng.randrange(8)
        stream = bytes(flipped)
    return stream, PROGRAMS[kind]


def gzip_member(rng: random.Random, content: bytes) -> bytes:
    """A member with some of the optional fields (RFC 1952)."""
    flags = rng.choice((0, 0, 1, 2, 4, 8, 16, 31, rng.randrange(32), rng.randrange(256)))
    head = struct.pack("<BBBBIBB", 0x1F, 0x8B, rng.choice((8,) * 12 + (7, 0)), flags, rng.choice((0, 1 << 31)), 2, 255)
    if flags & 4:
        extra = rng.choice((b"", b"AB\x02\0xy", b"BC\x02\0\0\0", rng.randbytes(9)))
        head += struct.pack("<H", len(extra)) + extra
    if flags & 8:
        head += rng.choice((b"name", b"", b"\xff/../x")) + b"\0"
    if flags & 16:
        head += rng.choice((b"comment", b"")) + b"\0"
    if flags & 2:
        head += struct.pack("<H", (zlib.crc32(head) + rng.choice((0, 0, 0, 1))) & 0xFFFF)
    packer = zlib.compressobj(rng.choice((0, 1, 9)), zlib.DEFLATED, -15)
    body = packer.compress(content)
    if rng.random() < 0.3:
        body += packer.flush(rng.choice((zlib.Z_SYNC_FLUSH, zlib.Z_FULL_FLUSH)))
    body += packer.flush()
    return head + body + struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)


def xz_stream(rng: random.Random, content: bytes) -> bytes:
    """A stream with one of the checks and some filters."""
    check = rng.choice((lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256))
    dictionary = rng.choice((1 << 12, 1 << 16, 1 << 23, 64 << 20, 200 << 20))
    filters: list[dict[str, int]] = [{"id": lzma.FILTER_LZMA2, "preset": rng.choice((0, 6)), "dict_size": dictionary}]
    if rng.random() < 0.2:
        filters.insert(0, rng.choice(({"id": lzma.FILTER_DELTA, "dist": 5}, {"id": lzma.FILTER_X86})))
    if rng.random() < 0.05:
        return lzma.compress(content, format=lzma.FORMAT_ALONE)
    return lzma.compress(content, check=check, filters=filters)


def zstd_frame(rng: random.Random, content: bytes) -> bytes:
    """A frame with or without size, checksum and a window of its own."""
    if rng.random() < 0.2:
        # Blocks as they are, by hand: raw ones, and an empty one at the end.
        descriptor = rng.choice((0b00000000, 0b00000100, 0b00001000, 0b00010000))
        window = rng.choice((0, 0x58, 17 << 3, 18 << 3, 255))
        blocks = b"".join(_raw_block(content[at : at + 1000]) for at in range(0, len(content), 1000))
        frame = b"\x28\xb5\x2f\xfd" + bytes((descriptor, window)) + blocks + struct.pack("<I", 1)[:3]
        return frame + (rng.randbytes(4) if descriptor & 4 else b"")
    parameters = zstandard.ZstdCompressionParameters.from_level(
        rng.choice((1, 3)),
        window_log=rng.choice((10, 17, 23, 25, 27)),
        write_checksum=rng.random() < 0.5,
        write_content_size=rng.random() < 0.5,
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def _raw_block(content: bytes) -> bytes:
    return struct.pack("<I", len(content) << 3)[:3] + content


def skippable_frame(rng: random.Random) -> bytes:
    """A frame that is skipped; its length may be a lie."""
    body = rng.randbytes(rng.choice((0, 5, 100)))
    length = len(body) + rng.choice((0, 0, 0, 0, 1 << 20))
    return struct.pack("<II", SKIPPABLE + rng.randrange(16), length) + body
