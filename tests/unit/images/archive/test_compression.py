"""A stream hands out what the file holds, block by block or piece by piece, whatever it is compressed with."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.compression import BUFFER, Stream, open_stream
from holdfast_images.archive.entry import Limits, Reason
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import COMPRESSIONS, Compression, compressed, descriptor

CONTENT = b"".join(b"%08d" % at for at in range(3 * BUFFER // 8 + 100))
LIMITS = Limits()


def taken(stream: Stream, size: int) -> bytes:
    parts = []
    while size and (piece := stream.chunk(size)):
        parts.append(bytes(piece))
        size -= len(piece)
    return b"".join(parts)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_compression_is_known_by_the_content(compression: Compression) -> None:
    with descriptor(compressed(CONTENT, compression)) as fd:
        stream = open_stream(fd, limits=LIMITS)

        assert stream.compression == compression
        assert (stream.length is None) == (compression != "none")
        assert taken(stream, 1 << 30) == CONTENT
        assert stream.position == len(CONTENT)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(steps=st.lists(st.tuples(st.sampled_from(["block", "chunk", "skip"]), st.integers(0, BUFFER // 512 * 3 // 2))))
def test_blocks_pieces_and_gaps_may_follow_in_any_order(compression: Compression, steps: list[tuple[str, int]]) -> None:
    at = 0
    with descriptor(compressed(CONTENT, compression)) as fd:
        stream = open_stream(fd, limits=LIMITS)
        for step, blocks in steps:
            size = blocks * 512
            if at + size + 512 > len(CONTENT):
                break
            if step == "block":
                index = stream.block(size)
                found, at = bytes(stream.buffer[index : index + 512]), at + size
                size = 512
            elif step == "chunk":
                found = taken(stream, size)
            else:
                stream.skip(size)
                found = CONTENT[at : at + size]
            assert found == CONTENT[at : at + size]
            at += size

            assert stream.position == at


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_end_is_told_from_a_block_that_is_cut_off(compression: Compression) -> None:
    with descriptor(compressed(CONTENT[:1024], compression)) as fd:
        whole = open_stream(fd, limits=LIMITS)
        found = [whole.block(512) >= 0, whole.block(), whole.block()]
    with descriptor(compressed(CONTENT[:1000], compression)) as fd, pytest.raises(ImageRefused) as refused:
        open_stream(fd, limits=LIMITS).block(512)

    assert found == [True, -1, -1]
    assert refused.value.code == Reason.TRUNCATED


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("count", [1025, 1 << 40])
def test_nothing_beyond_the_end_can_be_skipped(compression: Compression, count: int) -> None:
    with descriptor(compressed(CONTENT[:1024], compression)) as fd, pytest.raises(ImageRefused) as refused:
        open_stream(fd, limits=LIMITS).skip(count)

    assert refused.value.code == Reason.TRUNCATED


def test_a_file_that_shrinks_while_it_is_read_is_refused() -> None:
    with descriptor(CONTENT) as fd:
        stream = open_stream(fd, limits=LIMITS)
        stream.chunk(512)
        os.ftruncate(fd, 1000)
        stream.skip(BUFFER)
        with pytest.raises(ImageRefused) as refused:
            stream.chunk(512)

    assert refused.value.code == Reason.TRUNCATED


def test_skipped_content_of_a_plain_archive_is_not_read() -> None:
    with descriptor(bytes(64 * BUFFER)) as fd:
        stream = open_stream(fd, limits=LIMITS)
        stream.block()
        stream.block(60 * BUFFER)

    assert stream.base == 512 + 60 * BUFFER
