"""Compressed streams: bombs are cut off while they expand, and every byte belongs to a complete stream."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import resource
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import msgspec
import pytest
import zstandard

from holdfast_images.archive.compression import RATIO_FROM, open_stream
from holdfast_images.archive.entry import Limits, Reason
from holdfast_images.archive.inspection import FINDINGS_TOLD
from holdfast_images.archive.protocol import Inspected
from holdfast_images.archive.sandbox import LINE_BYTES
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import (
    COMPRESSED,
    Compression,
    archive,
    base_256,
    compressed,
    descriptor,
    header,
    inspected,
    member,
    symlink,
)

HONEST = archive(member(b"a", b"some content " * 1000))


def bomb(compression: Compression, size: int) -> bytes:
    """A file of zeros, compressed piece by piece."""
    target = io.BytesIO()
    writers: dict[str, Callable[[], Any]] = {
        "gzip": lambda: gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1),
        "xz": partial(lzma.LZMAFile, target, "wb", preset=0),
        "zstd": lambda: zstandard.ZstdCompressor(level=1).stream_writer(target, closefd=False),
    }
    with writers[compression]() as writer:
        writer.write(header(b"zeros", size=base_256(size, 12)))
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
        writer.write(bytes(1024))
    return target.getvalue()


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_is_cut_off_while_it_expands(compression: Compression) -> None:
    report = inspected(bomb(compression, 256 << 20))

    assert [finding.code for finding in report.findings] == [Reason.DECOMPRESSION_BOMB]
    assert RATIO_FROM < (report.findings[0].offset or 0) < RATIO_FROM + (1 << 20)


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_small_archive_may_be_all_zeros(compression: Compression) -> None:
    assert inspected(bomb(compression, 32 << 20)).acceptable


@pytest.mark.parametrize("compression", COMPRESSED)
def test_more_than_an_image_may_be_is_cut_off_whatever_the_ratio(compression: Compression) -> None:
    limits = Limits(ratio=1 << 30, total_bytes=1 << 20, entries=1, file_bytes=1 << 40)

    assert Reason.DECOMPRESSION_BOMB in {
        each.code for each in inspected(bomb(compression, 64 << 20), limits=limits).findings
    }


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_bomb_takes_no_memory(compression: Compression) -> None:
    content = bomb(compression, 256 << 20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    inspected(content)

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


@pytest.mark.parametrize(
    "content, name",
    [
        (bz2.compress(HONEST), "bzip2"),
        (lzma.compress(HONEST, format=lzma.FORMAT_ALONE), "lzma"),
        (b"\x1f\x9d\x90" + HONEST, "compress"),
    ],
)
def test_other_compressions_are_named(content: bytes, name: str) -> None:
    (finding,) = inspected(content).findings

    assert finding.code == Reason.UNSUPPORTED_COMPRESSION
    assert name in finding.detail


@pytest.mark.parametrize("outer", COMPRESSED)
@pytest.mark.parametrize("inner", ["gzip", "zstd", "xz", "bzip2"])
def test_compression_in_compression_is_refused(outer: Compression, inner: str) -> None:
    foreign = {"xz": lzma.compress(HONEST), "bzip2": bz2.compress(HONEST)}
    inside = foreign.get(inner) or compressed(HONEST, cast(Compression, inner))
    (finding,) = inspected(compressed(inside, outer)).findings

    assert finding.code == Reason.NESTED_COMPRESSION
    assert inner in finding.detail


SKIPPABLE = b"\x50\x2a\x4d\x18\x05\0\0\0hello"


@pytest.mark.parametrize(
    "content",
    [
        compressed(HONEST[:700], "gzip") + compressed(HONEST[700:], "gzip"),
        compressed(b"", "gzip") + compressed(HONEST, "gzip") + compressed(b"", "gzip"),
        compressed(HONEST, "gzip") + bytes(100_000),
        compressed(HONEST[:700], "xz") + bytes(8) + compressed(HONEST[700:], "xz") + bytes(4),
        lzma.compress(HONEST, preset=9, check=lzma.CHECK_NONE),
        compressed(HONEST[:700], "zstd") + compressed(HONEST[700:], "zstd"),
        SKIPPABLE + compressed(b"", "zstd") + compressed(HONEST, "zstd") + SKIPPABLE + SKIPPABLE,
        zstandard.ZstdCompressor(write_content_size=False).compress(HONEST),
        zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=25)).compress(
            HONEST
        ),
    ],
    ids=[
        "gzip-members",
        "empty-members",
        "padded",
        "xz-streams",
        "xz-without-checksum",
        "zstd-frames",
        "skippable",
        "no-size",
        "window-25",
    ],
)
def test_streams_of_several_parts_are_taken(content: bytes) -> None:
    report = inspected(content)

    assert report.acceptable, report.findings
    assert report.entries == 1


@pytest.mark.parametrize("compression", COMPRESSED)
@pytest.mark.parametrize("garbage", [b"x", b"garbage", b"\x1f", b"\x28\xb5", b"\xfd7z", b"\0\0\0x", b"\0\0\0\0x"])
def test_garbage_after_the_stream_is_refused(compression: Compression, garbage: bytes) -> None:
    report = inspected(compressed(HONEST, compression) + garbage)

    assert not report.acceptable
    assert report.findings[-1].code in {Reason.TRAILING_DATA, Reason.BAD_COMPRESSION, Reason.TRUNCATED}


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_stream_cut_off_anywhere_is_refused(compression: Compression) -> None:
    content = compressed(HONEST, compression)
    accepted = [cut for cut in range(1, len(content)) if inspected(content[:cut]).acceptable]

    assert accepted == []


@pytest.mark.parametrize("compression", COMPRESSED)
def test_a_flipped_checksum_is_noticed(compression: Compression) -> None:
    content = bytearray(compressed(HONEST, compression))
    content[{"gzip": -5, "xz": -6, "zstd": -1}[compression]] ^= 1

    assert [each.code for each in inspected(bytes(content)).findings] == [Reason.BAD_COMPRESSION]


@pytest.mark.parametrize("flags", [0x20, 0x40, 0x80, 0xE0])
@pytest.mark.parametrize("member_number", [0, 1])
def test_reserved_flags_of_gzip_are_refused(flags: int, member_number: int) -> None:
    bad = bytearray(compressed(HONEST[700:] if member_number else HONEST, "gzip"))
    bad[3] |= flags
    content = (compressed(HONEST[:700], "gzip") if member_number else b"") + bytes(bad)

    assert [each.code for each in inspected(content).findings] == [Reason.BAD_COMPRESSION]


def test_an_xz_stream_that_takes_much_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 200 << 20}]
    content = lzma.compress(HONEST, filters=filters)

    assert [each.code for each in inspected(content).findings] == [Reason.WINDOW_TOO_LARGE]


def test_xz_padding_that_is_no_multiple_of_four_is_refused() -> None:
    assert [each.code for each in inspected(compressed(HONEST, "xz") + bytes(3)).findings] == [Reason.TRAILING_DATA]


def test_a_zstd_window_of_gigabytes_is_refused_before_memory_is_taken() -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b00000000, (21 << 3)]) + b"\x01\0\0"

    assert [each.code for each in inspected(frame).findings] == [Reason.WINDOW_TOO_LARGE]


def test_a_zstd_stream_that_needs_a_dictionary_is_refused() -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b00100001, 7, 0]) + b"\x01\0\0"

    assert [each.code for each in inspected(frame).findings] == [Reason.BAD_COMPRESSION]


def test_a_window_of_a_file_is_read_and_no_byte_more() -> None:
    with descriptor(b"before" + HONEST + b"after") as fd:
        stream = open_stream(fd, limits=Limits(), start=6, length=len(HONEST))
        read = b""
        while piece := stream.chunk(1000):
            read += bytes(piece)

    assert read == HONEST


def test_a_window_beyond_the_file_is_refused() -> None:
    with descriptor(HONEST) as fd, pytest.raises(ImageRefused) as refused:
        open_stream(fd, limits=Limits(), start=100, length=len(HONEST))

    assert refused.value.code == Reason.TRUNCATED


def test_a_report_of_endless_names_stays_a_report() -> None:
    """Control characters take several bytes each once they are escaped, in paths and in details."""
    deep = b"/".join([b"\x01" * 250] * 15)
    names = [member(deep + b"/%d" % number, form="pax") for number in range(FINDINGS_TOLD)]
    through = [member(deep + b"/l/%d" % number, form="pax") for number in range(FINDINGS_TOLD)]

    for content in (archive(*names), archive(symlink(deep + b"/l", b"x", form="pax"), *through)):
        report = inspected(content)
        assert len(report.findings) == FINDINGS_TOLD
        assert len(msgspec.json.encode(Inspected(report))) < LINE_BYTES / 2


def winding(count: int) -> bytes:
    """Links that lead through forty others, each of which takes a long way."""
    ways = [b"d/" * 100 + b"../" * 100 + b"L%d" % (number + 1) for number in range(40)]
    return archive(
        *(symlink(b"rootfs/L%d" % number, way, form="pax") for number, way in enumerate(ways)),
        *(symlink(b"rootfs/w%d" % number, b"L0/..") for number in range(count)),
    )


def test_links_that_wind_through_each_other_are_followed_for_so_many_steps_only() -> None:
    limits = Limits(entries=10_000)
    few, many = inspected(winding(1), limits=limits), inspected(winding(9_000), limits=limits)

    assert few.acceptable
    assert [finding.code for finding in many.findings] == [Reason.TOO_WINDING]
