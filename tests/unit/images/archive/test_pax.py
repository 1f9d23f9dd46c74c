"""Pax records are read to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.entry import Reason
from holdfast_images.archive.pax import check_global, extension, parsed, simple_extension, whole
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import record

KEYWORDS = st.binary(min_size=1, max_size=30).filter(lambda each: not set(each) & set(b"=\0"))


def refused(body: bytes) -> str:
    with pytest.raises(ImageRefused) as raised:
        extension(body)
    return raised.value.code


@given(st.dictionaries(KEYWORDS, st.binary(max_size=200), max_size=8))
def test_records_come_back_as_they_were_written(records: dict[bytes, bytes]) -> None:
    assert dict(parsed(b"".join(record(*each) for each in records.items()))) == records


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_refused(body: bytes) -> None:
    found: bytes | str
    try:
        found = b"".join(record(*each) for each in parsed(body))
    except ImageRefused as error:
        found = error.code

    assert found in {Reason.BAD_PAX, body}


def test_every_keyword_has_its_effect() -> None:
    result = extension(
        record(b"path", b"a")
        + record(b"linkpath", b"b")
        + record(b"size", b"3")
        + record(b"uid", b"4")
        + record(b"gid", b"5")
        + record(b"mtime", b"6.25")
        + record(b"SCHILY.xattr.user.x", b"=\0\n")
        + record(b"GNU.sparse.major", b"1")
    )

    assert (result.path, result.linkpath, result.size, result.uid, result.gid) == (b"a", b"b", 3, 4, 5)
    assert result.mtime_ns == 6_250_000_000
    assert result.xattrs == ((b"user.x", b"=\0\n"),)
    assert result.sparse == {b"major": b"1"}


@pytest.mark.parametrize(
    "value, nanoseconds",
    [
        (b"0", 0),
        (b"1.", 1_000_000_000),
        (b"1.000000001", 1_000_000_001),
        (b"1.0000000019", 1_000_000_001),
        (b"-1.5", -1_500_000_000),
        (b"999999999999999999", 999_999_999_999_999_999_000_000_000),
    ],
)
def test_times_are_read_to_the_nanosecond(value: bytes, nanoseconds: int) -> None:
    assert extension(record(b"mtime", value)).mtime_ns == nanoseconds


@pytest.mark.parametrize("value", [b"", b"1e5", b"nan", b"inf", b".5", b"--1", b"+1", b"1.x", b" 1", b"9" * 21, b"1_0"])
@pytest.mark.parametrize("keyword", [b"mtime", b"atime", b"ctime", b"LIBARCHIVE.creationtime"])
def test_what_is_no_time_is_refused(keyword: bytes, value: bytes) -> None:
    assert refused(record(keyword, value)) == Reason.BAD_PAX
    assert simple_extension(record(keyword, value)) is None


@pytest.mark.parametrize("keyword", [b"size", b"uid", b"gid"])
@pytest.mark.parametrize("value", [b"", b"-1", b"+1", b"1.5", b" 1", b"0x1", b"9" * 19, b"9" * 40])
def test_numbers_are_plain_digits(keyword: bytes, value: bytes) -> None:
    assert refused(record(keyword, value)) in {Reason.BAD_PAX, Reason.BAD_OWNER}


@pytest.mark.parametrize("keyword", [b"path", b"linkpath"])
def test_names_are_not_empty(keyword: bytes) -> None:
    assert refused(record(keyword, b"")) == Reason.EMPTY_NAME


@pytest.mark.parametrize("keyword", [b"path", b"linkpath", b"uname", b"gname"])
def test_no_name_has_a_nul_whether_it_is_used_or_not(keyword: bytes) -> None:
    assert refused(record(keyword, b"a\0")) == Reason.NUL_IN_NAME
    assert simple_extension(record(keyword, b"a\0")) is None
    with pytest.raises(ImageRefused):
        check_global(record(keyword, b"a\0"))


def test_attributes_of_libarchive_are_decoded() -> None:
    assert extension(record(b"LIBARCHIVE.xattr.user.%61", b"AAE")).xattrs == ((b"user.a", b"\0\1"),)
    assert refused(record(b"LIBARCHIVE.xattr.user.a", b"!!")) == Reason.BAD_XATTR


@pytest.mark.parametrize("name", [b"", b"user", b"user.\0", b"user." + b"x" * 251])
def test_names_of_attributes_are_checked(name: bytes) -> None:
    assert refused(record(b"SCHILY.xattr." + name, b"x")) in {Reason.BAD_XATTR, Reason.BAD_PAX}


def test_unknown_keywords_are_kept_apart_from_those_left_out() -> None:
    result = extension(record(b"VENDOR.x", b"") + record(b"SCHILY.acl.access", b"") + record(b"comment", b"hello"))

    assert result.unknown == [b"VENDOR.x"]
    assert result.dropped == [b"SCHILY.acl.access"]


def test_a_global_header_may_only_comment() -> None:
    check_global(record(b"comment", b"x") + record(b"hdrcharset", b"BINARY"))
    for keyword in (b"path", b"mtime", b"uid", b"SCHILY.xattr.user.x", b"VENDOR.x"):
        with pytest.raises(ImageRefused) as raised:
            check_global(record(keyword, b"1"))
        assert raised.value.code == Reason.PAX_GLOBAL


def test_one_extension_does_not_leak_into_the_next() -> None:
    extension(record(b"GNU.sparse.numblocks", b"1") + record(b"GNU.sparse.offset", b"0"))
    clean = extension(record(b"path", b"x"))

    assert (clean.sparse, clean.pieces) == ({}, [])


RECORDS = st.tuples(
    st.sampled_from([b"path", b"mtime", b"atime", b"ctime", b"comment", b"uid", b"linkpath"]),
    st.one_of(
        st.binary(max_size=12), st.sampled_from([b"1.5", b"7", b"7.", b".7", b"1.2345678901", b"-2", b"a\nb", b"x"])
    ),
)


@given(st.lists(RECORDS, max_size=4), st.sampled_from([b"", b"\n", b"\0", b"9 path=x"]))
def test_the_short_way_reads_what_the_thorough_one_reads(records: list[tuple[bytes, bytes]], rest: bytes) -> None:
    body = b"".join(record(*each) for each in records) + rest
    short = simple_extension(body)

    assert short is None or whole(short) == extension(body)


def test_names_and_times_are_read_the_short_way() -> None:
    short = simple_extension(record(b"mtime", b"1.5") + record(b"atime", b"2") + record(b"path", b"a"))

    assert short is not None
    assert (short.path, short.mtime_ns) == (b"a", 1_500_000_000)


@pytest.mark.parametrize(
    "value, nanoseconds",
    [(b"1691149972.8466377", 1_691_149_972_846_637_700), (b"7", 7_000_000_000), (b"7.", 7_000_000_000)],
)
def test_a_time_alone_is_read_in_one_go(value: bytes, nanoseconds: int) -> None:
    short = simple_extension(record(b"mtime", value))

    assert short is not None
    assert (short.path, short.mtime_ns) == (None, nanoseconds)


@pytest.mark.parametrize("body", [b"29 mtime=1691149972.8466377\n", b"27 mtime=1691149972.8466377\n", b"09 mtime=7\n"])
def test_a_time_alone_of_another_length_is_left_to_the_thorough_way(body: bytes) -> None:
    assert simple_extension(body) is None
