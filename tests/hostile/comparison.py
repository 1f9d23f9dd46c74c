"""Draws archives of each kind, and compares how everybody reads those that strict accepts."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from holdfast_images.archive.compression import Stream, open_stream
from holdfast_images.archive.entry import Limits, Policy
from holdfast_images.archive.image_format import inspect, open_image
from tests.hostile import drawn_images, drawn_streams, readers, settled, trees
from tests.hostile.drawn_tars import Drawing
from tests.support.images.archives import descriptor, inspected
from tests.support.images.throwaway_root import run

LIMITS = Limits(total_bytes=1 << 24, file_bytes=1 << 22, image_bytes=1 << 24)
Compare = Callable[[bytes], None]
"""Raises Difference."""


class Difference(AssertionError):
    """Two readers read an archive in two ways, that ours accepts."""


def compare_lists(reader: str, ours: readers.Reading, theirs: readers.Reading) -> None:
    """Member by member, in order."""
    complaint = settled.complaint(reader, theirs.complaint)
    if complaint:
        raise Difference(f"{reader} complains: {complaint.strip()}")
    if len(ours.members) != len(theirs.members):
        raise Difference(f"{reader} sees {len(theirs.members)} members instead of {len(ours.members)}")
    for mine, found in zip(ours.members, theirs.members, strict=True):
        other = settled.seen(reader, mine, found)
        if settled.normal(mine.name) != settled.normal(other.name):
            raise Difference(f"{reader} sees the name {other.name!r} instead of {mine.name!r}")
        for field, one, two in zip(mine._fields, mine, other, strict=True):
            if one != two and field != "name":
                raise Difference(f"{reader} sees the {field} {two!r} instead of {one!r} of {mine.name!r}")


def compare_trees(reader: str, ours: trees.Unpacked, theirs: trees.Unpacked, names: settled.Names) -> None:
    """File by file; the directory into which it was unpacked is left out."""
    if settled.is_left_out(reader, theirs.complaint):
        return
    for who, unpacked in (("ours", ours), (reader, theirs)):
        if settled.complaint(reader, unpacked.complaint):
            raise Difference(f"{who} complains: {unpacked.complaint.strip()}")
    for name in sorted((ours.tree.keys() | theirs.tree.keys()) - {"."}):
        mine, found = ours.tree.get(name), theirs.tree.get(name)
        if mine is None or found is None:
            who, other = (reader, "us") if mine is None else ("us", reader)
            raise Difference(f"{name!r} is made by {who} alone, not by {other}")
        changed = settled.fact(reader, name, mine, found, names)
        for field, one, two in zip(mine._fields, mine, changed, strict=True):
            if one != two:
                raise Difference(f"{reader} gives {name!r} the {field} {two!r} instead of {one!r}")


def compare_tar(content: bytes) -> None:
    """Every reader of an accepted archive sees, and makes, the same."""
    Path(trees.ARCHIVE).write_bytes(content)
    ours = readers.by_us(content, LIMITS)
    compare_lists(settled.TARFILE, ours, readers.by_tarfile(content))
    compare_lists(settled.LIBARCHIVE, ours, readers.by_libarchive(content))
    compare_lists(settled.GNU_TAR, ours, readers.by_gnu_tar(trees.ARCHIVE))
    names = settled.Names([ours])
    mine = trees.by_us(LIMITS)
    for reader, theirs in (
        (settled.GNU_TAR, trees.by_gnu_tar()),
        (settled.LIBARCHIVE, trees.by_bsdtar()),
        (settled.TARFILE, trees.by_tarfile()),
    ):
        compare_trees(reader, mine, theirs, names)


def drawn_tar(rng: random.Random) -> tuple[bytes, Compare | None]:
    """A root file system, as a plain tar."""
    content = Drawing(rng).archive(rng.choice((0.0, 0.1, 0.3)))
    return content, compare_tar if inspected(content, limits=LIMITS).acceptable else None


def drawn_image(rng: random.Random) -> tuple[bytes, Compare | None]:
    """An OCI layout or a docker-save archive, of several layers."""
    content, source = drawn_images.drawn_image(rng)
    with descriptor(content) as fd, descriptor(b"") as spool:
        report = inspect(
            fd, spool=spool, policy=Policy.STRICT, limits=LIMITS, keep_setuid=False, progress=lambda *_: None
        )
    if report.form == "tar" or not report.acceptable:
        return content, None
    return content, partial(compare_image, source=source)


def compare_image(content: bytes, source: str) -> None:
    """skopeo finds the same image in it, and umoci unpacks the same tree."""
    Path(trees.ARCHIVE).write_bytes(content)
    mine = trees.by_us(LIMITS, layers=True)
    # This version of skopeo reads no compressed archives.
    Path(trees.ARCHIVE).write_bytes(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
    with descriptor(content) as fd, descriptor(b"") as spool:
        image = open_image(fd, spool=spool, limits=LIMITS)
        layers = []
        for layer in image.layers:
            with closing(image.open_layer(layer, LIMITS)) as stream:
                layers.append(readers.by_us(_whole(stream), LIMITS))
    compare_trees(settled.UMOCI, mine, trees.by_umoci(source), settled.Names(layers))


def drawn_compression(rng: random.Random) -> tuple[bytes, Compare | None]:
    """A plain tar, compressed."""
    content, program = drawn_streams.drawn_stream(rng)
    if not inspected(content, limits=LIMITS).acceptable:
        return content, None
    return content, partial(compare_compression, program=program)


def compare_compression(content: bytes, program: str) -> None:
    """The program to which the format belongs decompresses it to the same bytes, and libarchive reads the same."""
    with descriptor(content) as fd, closing(open_stream(fd, limits=LIMITS)) as stream:
        ours = _whole(stream)
    done = run(program, "-dc", stdin=content)
    if done.returncode not in settled.FINE[program]:
        raise Difference(f"{program} complains: {done.stderr.decode('utf-8', 'replace').strip()}")
    if done.stdout != ours:
        raise Difference(f"{program} makes {len(done.stdout)} bytes of it, not the same {len(ours)}")
    compare_lists(settled.LIBARCHIVE, readers.by_us(ours, LIMITS), readers.by_libarchive(content))


def _whole(stream: Stream) -> bytes:
    return b"".join(bytes(chunk) for chunk in iter(lambda: stream.chunk(1 << 20), b""))


KINDS: dict[str, Callable[[random.Random], tuple[bytes, Compare | None]]] = {
    "tar": drawn_tar,
    "image": drawn_image,
    "compression": drawn_compression,
}
"""Draws an archive; how it is compared, if strict accepts it."""
