"""Whatever is done to the bytes of an archive: entries, or a refusal with a registered code; never anything else."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_images.archive.entry import Limits, Policy, Reason
from tests.hostile.corpus import ATTACKS, old_sparse, sparse_0_0, sparse_0_1, sparse_1_0
from tests.support.images.archives import (
    COMPRESSED,
    Compression,
    archive,
    checksummed,
    compressed,
    directory,
    entries_of,
    hardlink,
    inspected,
    member,
    pax,
    symlink,
)

LIMITS = Limits(entries=1000, total_bytes=1 << 24, image_bytes=1 << 24)
HONEST = archive(
    pax({b"comment": b"x"}, kind=b"g"),
    directory(b"rootfs/"),
    member(b"rootfs/a", b"content", form="pax", xattrs={b"user.a": b"b"}),
    member(b"rootfs/b" * 20, b"content" * 200, form="gnu"),
    symlink(b"rootfs/c", b"a", form="pax"),
    hardlink(b"rootfs/d", b"rootfs/a", form="gnu"),
    old_sparse([(0, 512), (4096, 100), (8192, 0)], 8192, b"a" * 612, name=b"s0"),
    sparse_0_0([0, 512, 4096, 100, 8192, 0], b"3", b"8192", b"a" * 612),
    member(b"e", b"x"),
)
SPARSE = archive(
    sparse_0_1(b"0,512,4096,100,8192,0", b"3", b"8192", b"a" * 612),
    member(b"f", b"y" * 513),
    sparse_1_0(b"3\n0\n512\n4096\n100\n8192\n0\n", b"8192", b"a" * 612, **{"GNU.sparse.name": b"t"}),
)
SEEDS = [HONEST, SPARSE, *(attack.build(attack.forms[0]) for attack in ATTACKS)]
EDIT = st.tuples(
    st.integers(0, 1 << 14),
    st.one_of(
        st.binary(min_size=1, max_size=16),
        st.sampled_from(
            [
                b"\0",
                b"\xff",
                b"\x80",
                b" ",
                b"/",
                b"..",
                b"-1",
                b"7" * 11,
                b"\x80" + bytes(11),
                b"\xff" * 12,
                b"ustar  \0",
                b"=",
                b"\n",
            ]
        ),
    ),
)


def check_judgement(content: bytes) -> None:
    """Every finding has a registered code; what is acceptable can be read again, to the last byte."""
    reports = [inspected(content, policy, limits=LIMITS, layer=layer) for policy in Policy for layer in (False, True)]
    for report in reports:
        assert {finding.code for finding in report.findings} <= set(Reason)
        assert report.acceptable or report.findings
    if any(report.acceptable for report in reports):
        for entry, body in entries_of(content, LIMITS):
            assert len(body) == entry.stored
            assert entry.sparse is None or sum(length for _, length in entry.sparse) == entry.stored


def repaired(content: bytearray) -> bytes:
    """With right checksums wherever a header may be: otherwise hardly any mutation gets past the first check."""
    for at in range(0, len(content) - 511, 512):
        if content[at + 257 : at + 262] == b"ustar":
            content[at : at + 512] = checksummed(bytes(content[at : at + 512]))
    return bytes(content)


@given(seed=st.sampled_from(SEEDS), edits=st.lists(EDIT, min_size=1, max_size=6), repair=st.booleans())
@settings(max_examples=600, deadline=None)
def test_a_damaged_archive_is_check_judgement(seed: bytes, edits: list[tuple[int, bytes]], repair: bool) -> None:
    content = bytearray(seed or b"\0")
    for position, replacement in edits:
        at = position % len(content)
        content[at : at + len(replacement)] = replacement[: len(content) - at]

    check_judgement(repaired(content) if repair else bytes(content))


@given(seed=st.sampled_from(SEEDS[:2]), order=st.lists(st.integers(0, 60), min_size=1, max_size=40))
@settings(max_examples=300, deadline=None)
def test_blocks_in_any_order_are_check_judgement(seed: bytes, order: list[int]) -> None:
    blocks = [seed[at : at + 512] for at in range(0, len(seed), 512)]

    check_judgement(b"".join(blocks[index % len(blocks)] for index in order) + bytes(1024))


@given(
    compression=st.sampled_from(COMPRESSED),
    edits=st.lists(st.tuples(st.integers(0, 1 << 14), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 20),
)
@settings(max_examples=400, deadline=None)
def test_a_damaged_compressed_archive_is_check_judgement(
    compression: Compression, edits: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(compressed(HONEST, compression))
    for position, value in edits:
        content[position % len(content)] = value

    check_judgement(bytes(content[: len(content) - cut]))


@given(content=st.binary(max_size=3000))
@settings(max_examples=200, deadline=None)
def test_random_bytes_are_check_judgement(content: bytes) -> None:
    check_judgement(content)


def test_ten_megabytes_of_noise_are_no_tar() -> None:
    report = inspected(b"\x7f" + os.urandom(10 << 20))

    assert [finding.code for finding in report.findings] == [Reason.NOT_A_TAR]
