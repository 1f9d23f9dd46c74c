"""The reader takes plain headers by a short way: what it makes of them is what the long way makes of them."""

from __future__ import annotations

import random

import pytest

from holdfast_images.archive import reader
from holdfast_images.archive.entry import Entry, Limits
from holdfast_images.errors import ImageRefused
from tests.support.images.archives import GNU, POSIX, V7, archive, base_256, entries_of, header, octal, padded, pax

ARCHIVES = 1500
NAMES = [b"a", b"d/", b"d/f", b"a\0b", b"x" * 100, b"\xff\n", b"", b"./a", b"/", b"~ "]
RECORDS: list[tuple[bytes, list[bytes]]] = [
    (b"path", [b"p", b"d/", b"\xc3\xa4", b""]),
    (b"mtime", [b"5", b"1.5", b"-1", b"1.123456789"]),
    (b"uid", [b"7", b"4294967295", b"x"]),
    (b"gid", [b"0", b"70000"]),
    (b"size", [b"0", b"512", b"3"]),
    (b"linkpath", [b"l"]),
    (b"SCHILY.xattr.user.a", [b"1", b""]),
    (b"comment", [b"c"]),
    (b"VENDOR.x", [b"y"]),
    (b"atime", [b"1"]),
]


def drawn_number(rng: random.Random, width: int, most: int) -> bytes:
    """A field as most writers fill it, or as some do."""
    value = rng.randrange(most)
    unusual = [b"%o" % value, b"%*o\0" % (width - 1, value), base_256(value, width), bytes(width), b"9" * width, b"-1"]
    return octal(value, width) if rng.randrange(25) else rng.choice(unusual)[:width]


def drawn_member(rng: random.Random) -> bytes:
    """A header that is plain but for a field or two, perhaps behind a pax header."""

    def is_unusual() -> bool:
        return rng.randrange(30) == 0

    kind = rng.choice([b"\0", b"1", b"2", b"3", b"6", b"7", b"L", b"x"]) if is_unusual() else rng.choice([b"0", b"5"])
    body = rng.randbytes(rng.choice([0, 1, 511, 512, 513])) if kind == b"0" or is_unusual() else b""
    records = {keyword: rng.choice(values) for keyword, values in rng.sample(RECORDS, rng.randint(1, 3))}
    block = header(
        rng.choice(NAMES) if is_unusual() else bytes(rng.choices(b"abcz0_-", k=rng.randint(1, 99))),
        kind=kind,
        mode=drawn_number(rng, 8, 0o200000 if is_unusual() else 0o10000),
        uid=drawn_number(rng, 8, 1 << 20),
        gid=drawn_number(rng, 8, 1 << 20),
        size=drawn_number(rng, 12, 2000) if is_unusual() else len(body),
        mtime=drawn_number(rng, 12, 1 << 32),
        linkname=b"target" if is_unusual() or kind in {b"1", b"2"} else b"",
        magic=rng.choice([GNU, V7, b"ustar\0 0"]) if is_unusual() else POSIX,
        device=(1, 3) if is_unusual() else (0, 0),
        prefix=b"p" if is_unusual() else b"",
        rest=b"r" * 12 if is_unusual() else bytes(12),
        checksum=rng.choice([b"0" * 8, b"000000\0 "]) if rng.randrange(40) == 0 else None,
    )
    return (pax(records) if rng.randrange(4) == 0 else b"") + block + padded(body)


def read(content: bytes) -> tuple[list[tuple[Entry, bytes]], object]:
    """What is read of an archive, and why it was refused."""
    try:
        return entries_of(content, Limits(entries=6)), None
    except ImageRefused as refused:
        # Not the name: of a header that cannot be trusted, either way may know less of it.
        return [], (refused.code, refused.detail, refused.offset)


def test_the_short_way_is_the_long_way(rng: random.Random) -> None:
    for _ in range(ARCHIVES):
        # After one that is in order: a wrong checksum at the beginning means that it is no archive at all.
        content = archive(header(b"first"), *(drawn_member(rng) for _ in range(rng.randint(1, 4))))
        short = read(content)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reader, "PLAIN_MIDDLES", ())
            long = read(content)

        assert short == long, content


def test_archives_of_both_kinds_are_drawn(rng: random.Random) -> None:
    contents = [archive(drawn_member(rng), drawn_member(rng)) for _ in range(200)]
    refused = [read(content)[1] for content in contents]

    assert 40 < refused.count(None) < 160
