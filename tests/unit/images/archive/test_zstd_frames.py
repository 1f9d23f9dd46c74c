"""The skeleton of a zstd stream, whatever pieces it comes in."""

from __future__ import annotations

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.decoders import FrameWalker
from holdfast_images.archive.entry import Reason
from holdfast_images.errors import ImageRefused

WINDOW = 1 << 27


def frame(content: bytes, *, checksum: bool, size: bool, level: int = 1) -> bytes:
    compressor = zstandard.ZstdCompressor(level=level, write_checksum=checksum, write_content_size=size)
    return compressor.compress(content)


@given(
    content=st.binary(max_size=5000).map(lambda each: each * 60),
    checksum=st.booleans(),
    size=st.booleans(),
    count=st.integers(1, 3),
    step=st.integers(1, 9000),
)
def test_a_stream_is_complete_only_between_frames(
    content: bytes, checksum: bool, size: bool, count: int, step: int
) -> None:
    one = frame(content, checksum=checksum, size=size)
    stream = one * count
    walker = FrameWalker(WINDOW)
    complete = []
    for at in range(0, len(stream), step):
        walker.feed(stream[at : at + step])
        complete.append((walker.is_complete, min(at + step, len(stream)) % len(one) == 0))

    assert all(said == true for said, true in complete)
    assert walker.is_complete


def test_the_window_of_a_frame_is_limited() -> None:
    walker = FrameWalker(1 << 18)
    with pytest.raises(ImageRefused) as refused:
        walker.feed(frame(bytes(3 << 20), checksum=False, size=False))

    assert refused.value.code == Reason.WINDOW_TOO_LARGE


@pytest.mark.parametrize(
    "content, code",
    [
        (b"none", Reason.BAD_COMPRESSION),
        (b"\x28\xb5\x2f\xfd\x08", Reason.BAD_COMPRESSION),
        (b"\x28\xb5\x2f\xfd\x20\x00\x07\0\0", Reason.BAD_COMPRESSION),
        (frame(b"x", checksum=True, size=True) + b"none", Reason.TRAILING_DATA),
    ],
    ids=["no-frame", "reserved-bit", "reserved-block", "after-the-stream"],
)
def test_what_is_no_frame_is_refused(content: bytes, code: Reason) -> None:
    with pytest.raises(ImageRefused) as refused:
        FrameWalker(WINDOW).feed(content)

    assert refused.value.code == code
