"""What strict accepts, GNU tar, bsdtar, tarfile, umoci, skopeo and the programs that compress read in the same way."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.hostile import readers, settled, trees
from tests.hostile.comparison import KINDS, LIMITS, Difference, compare_compression, compare_lists, compare_trees
from tests.hostile.fuzz_readers import fuzz, kept
from tests.support.images.archives import Compression, archive, compressed, directory, hardlink, member, symlink
from tests.support.images.extracting import OciParts, oci
from tests.support.images.throwaway_root import Send, inside, make_throwaway_root

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can enter a root to throw away")

SAMPLE = 25
"""Accepted archives of each kind, with every run of the tests."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("root")
    make_throwaway_root(place)
    return place


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_what_is_accepted_is_read_by_all_in_the_same_way(root: Path, seed: int, kind: str) -> None:
    counts, found = fuzz(seed, root, seconds=300, accepted=SAMPLE, kinds=(kind,))

    assert [(each.which, each.difference, kept(each)) for each in found] == []
    assert counts["accepted"] == SAMPLE


@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_minutes_of_archives_are_read_by_all_in_the_same_way(root: Path, seed: int, kind: str) -> None:
    counts, found = fuzz(seed, root, seconds=1200, kinds=(kind,))

    assert [(each.which, each.difference, kept(each)) for each in found] == []
    assert counts["accepted"] > SAMPLE


# --- the comparison itself: what is read in two ways is noticed ---------------------------------------------

HONEST = archive(
    directory(b"d", mode=0o700), member(b"d/f", b"content"), hardlink(b"g", b"d/f"), symlink(b"l", b"g"), member(b"h")
)
OTHERS = {
    "name": archive(member(b"x")),
    "mode": HONEST.replace(directory(b"d", mode=0o700), directory(b"d", mode=0o755)),
    "owner": HONEST.replace(member(b"h"), member(b"h", uid=7)),
    "group": HONEST.replace(member(b"h"), member(b"h", gid=7)),
    "time": HONEST.replace(member(b"h"), member(b"h", mtime=7)),
    "kind": HONEST.replace(member(b"h"), directory(b"h", mode=0o644)),
    "target": HONEST.replace(symlink(b"l", b"g"), symlink(b"l", b"h")),
    "linked file": HONEST.replace(hardlink(b"g", b"d/f"), member(b"g", b"content")),
    "content": HONEST.replace(b"content", b"contend"),
    "missing": HONEST.replace(member(b"h"), b""),
}
ONLY_ON_DISK = {("content", "GNU tar's list")}
"""A list has no content."""


def noticed(root: Path, act: Callable[[], None]) -> bool:
    """Is there a difference?"""
    readers.libarchive()

    def compare(send: Send) -> None:
        try:
            act()
        except Difference:
            send(True)

    return next(inside(root, compare), False)


def compare_with(reader: str, content: bytes) -> None:
    """What we make of the honest archive, with what the reader makes of this one."""
    ours = readers.by_us(HONEST, LIMITS)
    Path(trees.ARCHIVE).write_bytes(oci(HONEST))
    of_layers = trees.by_us(LIMITS, layers=True)
    Path(trees.ARCHIVE).write_bytes(HONEST)
    plain = trees.by_us(LIMITS)
    Path(trees.ARCHIVE).write_bytes(oci(content) if reader == "umoci" else content)
    names = settled.Names([ours])
    match reader:
        case "tarfile's list":
            compare_lists(settled.TARFILE, ours, readers.by_tarfile(content))
        case "libarchive's list":
            compare_lists(settled.LIBARCHIVE, ours, readers.by_libarchive(content))
        case "GNU tar's list":
            compare_lists(settled.GNU_TAR, ours, readers.by_gnu_tar(trees.ARCHIVE))
        case "tarfile":
            compare_trees(settled.TARFILE, plain, trees.by_tarfile(), names)
        case "bsdtar":
            compare_trees(settled.LIBARCHIVE, plain, trees.by_bsdtar(), names)
        case "GNU tar":
            compare_trees(settled.GNU_TAR, plain, trees.by_gnu_tar(), names)
        case _:
            compare_trees(settled.UMOCI, of_layers, trees.by_umoci("oci-archive"), names)


READERS = ["tarfile's list", "libarchive's list", "GNU tar's list", "tarfile", "bsdtar", "GNU tar", "umoci"]


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_that_reads_something_else_is_noticed(root: Path, reader: str) -> None:
    same = noticed(root, partial(compare_with, reader, HONEST))
    unnoticed = [
        name
        for name, content in OTHERS.items()
        if (name, reader) not in ONLY_ON_DISK and not noticed(root, partial(compare_with, reader, content))
    ]

    assert not same
    assert unnoticed == []


def test_an_image_that_others_find_elsewhere_is_noticed(root: Path) -> None:
    """Keys that differ in case; our own reader refuses it, so skopeo is asked about one that it takes instead."""
    good, evil = OciParts(HONEST), OciParts(archive(member(b"evil")))
    good.blobs |= evil.blobs
    good.manifest["Layers"] = evil.manifest["layers"]

    def compare() -> None:
        Path(trees.ARCHIVE).write_bytes(oci(HONEST))
        ours = trees.by_us(LIMITS, layers=True)
        Path(trees.ARCHIVE).write_bytes(good.build())
        names = settled.Names([readers.by_us(HONEST, LIMITS)])
        compare_trees(settled.UMOCI, ours, trees.by_umoci("oci-archive"), names)

    assert noticed(root, compare)


@pytest.mark.parametrize("program, content", [("gzip", "gzip"), ("xz", "xz"), ("zstd", "zstd")])
def test_a_stream_that_its_program_reads_in_the_same_way_is_no_difference(
    root: Path, program: str, content: Compression
) -> None:
    assert not noticed(root, partial(compare_compression, compressed(HONEST, content), program))
    # Another program does not know it at all.
    other = "xz" if program == "gzip" else "gzip"
    assert noticed(root, partial(compare_compression, compressed(HONEST, content), other))
