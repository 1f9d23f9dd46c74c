"""Every field of a header is read as all readers read it, or refused."""

from __future__ import annotations

from zlib import adler32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.entry import EntryKind, Reason
from holdfast_images.archive.header import (
    GNU,
    LAYOUT,
    POSIX,
    V7,
    PlainSums,
    checksum,
    is_checksum,
    number,
    owner,
    text,
    unused_is_empty,
)
from holdfast_images.errors import ImageRefused


def test_the_layout_is_one_block() -> None:
    assert LAYOUT.size == 512


@given(st.binary(min_size=512, max_size=512))
def test_the_checksum_is_the_sum_of_all_bytes_with_its_field_as_spaces(block: bytes) -> None:
    assert checksum(memoryview(block)) == sum(block[:148]) + 8 * 32 + sum(block[156:])


@given(st.binary(min_size=148, max_size=148), st.binary(min_size=8, max_size=8), st.sampled_from([0, 1, -1, 256]))
def test_a_plain_header_has_the_sum_that_is_looked_up_if_its_checksum_is_right(
    beginning: bytes, anything: bytes, off: int
) -> None:
    total = checksum(memoryview(beginning + anything + bytes(356))) + off
    for field in (b"%06o\0 " % total, anything):
        block = beginning + field + bytes(356)
        right = is_checksum(field, checksum(memoryview(block)))

        assert (adler32(block) & 0xFFFF == PlainSums()[field]) == (right and field[6:] == b"\0 ")


def test_sums_are_not_kept_without_end() -> None:
    sums = PlainSums()
    for total in range(1 << 15):
        assert sums[b"%06o\0 " % total] >= 0

    assert len(sums) == 1 << 14


@pytest.mark.parametrize("byte", [0, 1, 127, 128, 255])
def test_the_checksum_is_exact_at_its_extremes(byte: int) -> None:
    assert checksum(memoryview(bytes([byte]) * 512)) == 504 * byte + 256


@pytest.mark.parametrize(
    "field", [b"012345\0 ", b"0012345\0", b"12345\0\0\0", b"12345 \0\0", b"00012345", b" 12345\0 ", b"  12345\0"]
)
def test_a_checksum_may_be_written_in_several_ways(field: bytes) -> None:
    assert is_checksum(field, 0o12345)
    assert not is_checksum(field, 0o12346)


@pytest.mark.parametrize("field", [b"\0 12345\0", b"0o12345\0", b"+12345\0 ", b"\x80\0\0\0\0\0\x14\xe5", b"1_2345\0 "])
def test_a_checksum_in_any_other_way_is_none(field: bytes) -> None:
    assert not is_checksum(field, 0o12345)


@given(st.integers(0, 8**11 - 1), st.sampled_from([b"\0", b" "]))
def test_octal_numbers_are_read(value: int, end: bytes) -> None:
    assert number(b"%011o" % value + end) == value


@given(st.integers(0, 2**63 - 1))
def test_base_256_numbers_are_read(value: int) -> None:
    assert number(b"\x80" + value.to_bytes(11, "big")) == value


@given(st.integers(-(2**63), -1))
def test_negative_numbers_are_read_only_where_they_may_be(value: int) -> None:
    field = value.to_bytes(12, "big", signed=True)

    assert number(field, negative=True) == value
    with pytest.raises(ImageRefused) as refused:
        number(field)
    assert refused.value.code == Reason.BAD_SIZE


@pytest.mark.parametrize(
    "field",
    [
        b"    ",
        b" 6 4\0",
        b"\0 64",
        b"+7\0",
        b"0x1\0",
        b"1\x002\0",
        b"8\0",
        b"1_0\0",
        b"\x81\0\0",
        b"\xfe\xff",
        b"\t7\0",
        b"\xb2\0",
    ],
)
def test_what_is_no_plain_number_is_refused(field: bytes) -> None:
    with pytest.raises(ImageRefused) as refused:
        number(field)

    assert refused.value.code == Reason.BAD_NUMBER


@given(st.binary(min_size=12, max_size=12))
def test_a_field_of_any_bytes_is_a_number_or_refused(field: bytes) -> None:
    found: int | str
    try:
        found = number(field)
    except ImageRefused as refused:
        found = refused.code

    assert found in {Reason.BAD_NUMBER, Reason.BAD_SIZE} or (isinstance(found, int) and 0 <= found < 2**63)


def test_a_name_ends_at_its_field_or_at_a_nul() -> None:
    assert text(b"name\0\0") == b"name"
    assert text(b"whole") == b"whole"
    with pytest.raises(ImageRefused):
        text(b"a\0b\0")


def test_type_bits_in_a_mode_must_be_those_of_the_entry() -> None:
    fields = b"0100644\x000000001\x000000002\0"

    assert owner(fields, EntryKind.FILE) == (0o644, 1, 2)
    with pytest.raises(ImageRefused):
        owner(fields, EntryKind.DIRECTORY)


@pytest.mark.parametrize("value, taken", [(2**32 - 2, True), (2**32 - 1, False), (2**40, False)])
def test_an_owner_is_a_number_that_chown_takes(value: int, taken: bool) -> None:
    field = b"0000644\0" + b"\x80" + value.to_bytes(7, "big") + b"0000002\0"
    if taken:
        assert owner(field, EntryKind.FILE)[1] == value
    else:
        with pytest.raises(ImageRefused) as refused:
            owner(field, EntryKind.FILE)
        assert refused.value.code == Reason.BAD_OWNER


@pytest.mark.parametrize(
    "magic, kind, prefix, rest, empty",
    [
        (POSIX, b"0", b"prefix".ljust(155, b"\0"), bytes(12), True),
        (POSIX, b"0", bytes(155), b"\0" * 11 + b"x", False),
        (GNU, b"0", b"x".ljust(155, b"\0"), bytes(12), False),
        (GNU, b"S", bytes(41) + b"7" * 114, bytes(12), True),
        (GNU, b"S", b"7" * 155, bytes(12), False),
        (V7, b"0", bytes(155), bytes(12), True),
        (V7, b"0", b"x".ljust(155, b"\0"), bytes(12), False),
    ],
)
def test_there_must_be_nothing_where_the_form_has_no_field(
    magic: bytes, kind: bytes, prefix: bytes, rest: bytes, empty: bool
) -> None:
    assert unused_is_empty(magic, kind, prefix, rest) is empty
