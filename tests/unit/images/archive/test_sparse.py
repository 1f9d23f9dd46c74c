"""A sparse map is in order, fits its file, and is what is stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.header import PIECES, checked, listed_map, stored_map
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import padded

GAPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 20).map(lambda blocks: blocks * 512)), max_size=30)


def laid_out(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    pieces, at = [], 0
    for gap, length in gaps:
        pieces.append((at + gap, length))
        at += gap + length
    return pieces


@given(GAPS)
def test_a_map_in_order_is_taken_without_its_empty_pieces(gaps: list[tuple[int, int]]) -> None:
    pieces = laid_out(gaps)
    size = sum(gap + length for gap, length in gaps)

    assert checked(pieces, size, sum(length for _, length in pieces)) == tuple(each for each in pieces if each[1])


@given(GAPS.filter(bool), st.integers(1, 100))
def test_a_map_that_stores_more_or_less_is_refused(gaps: list[tuple[int, int]], much: int) -> None:
    pieces = laid_out(gaps)
    with pytest.raises(ImageRefused):
        checked(pieces, 1 << 40, sum(length for _, length in pieces) + much)


@given(GAPS)
def test_the_map_in_front_of_the_content_is_read_block_by_block(gaps: list[tuple[int, int]]) -> None:
    pieces = laid_out(gaps)
    text = padded(b"".join(b"%d\n" % each for each in (len(pieces), *(value for piece in pieces for value in piece))))
    blocks = iter([text[at : at + 512] for at in range(0, len(text), 512)])

    assert stored_map(lambda: next(blocks)) == (pieces, len(text))
    assert next(blocks, None) is None


@given(GAPS.filter(bool), st.integers(1, 511), st.integers(1, 2000))
def test_a_piece_after_one_that_ends_in_a_block_is_refused(gaps: list[tuple[int, int]], odd: int, more: int) -> None:
    pieces = laid_out([*gaps, (0, odd), (7, more)])
    end = pieces[-1][0] + pieces[-1][1]
    with pytest.raises(ImageRefused):
        checked(pieces, end, sum(length for _, length in pieces))

    last = pieces[:-1]
    assert checked(last, last[-1][0] + odd, sum(length for _, length in last))[-1] == last[-1]


@given(GAPS, st.integers(1, 10_000))
def test_a_map_that_ends_before_its_file_is_refused(gaps: list[tuple[int, int]], hole: int) -> None:
    pieces = laid_out(gaps)
    size = sum(gap + length for gap, length in gaps) + hole
    stored = sum(length for _, length in pieces)
    with pytest.raises(ImageRefused):
        checked(pieces, size, stored)

    assert checked([*pieces, (size, 0)], size, stored) == tuple(each for each in pieces if each[1])


def test_a_map_of_too_many_pieces_is_refused_at_once() -> None:
    blocks = iter([padded(b"%d\n" % (PIECES + 1))])
    with pytest.raises(ImageRefused):
        stored_map(lambda: next(blocks))


def test_the_announced_number_of_pieces_counts() -> None:
    assert listed_map([b"1", b"2"], b"1") == [(1, 2)]
    with pytest.raises(ImageRefused):
        listed_map([b"1", b"2"], b"2")
