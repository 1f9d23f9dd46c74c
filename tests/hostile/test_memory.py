"""Whatever is accepted, inspecting it takes no more than 150 MB of memory."""

from __future__ import annotations

import json
import lzma
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from holdfast_images.archive.decoders import ZSTD_WINDOW
from holdfast_images.archive.entry import Limits
from holdfast_images.archive.members import DOCUMENT_BYTES
from tests.support.images.archives import END, archive, header, padded, pax, symlink
from tests.support.images.extracting import OciParts, configuration, descriptor_of, oci

MOST = 150_000_000
ENTRIES = Limits().entries - 10
NAME = Limits().names_bytes // ENTRIES - 2
"""Bytes of a name, if all of them are as long."""
pytestmark = pytest.mark.timeout(1800)


def named(number: int, *, kind: bytes = b"0", content: bytes = b"") -> bytes:
    """An entry with a name as long as may be, and nothing that it shares with others."""
    name = (b"%06d" % number).ljust(NAME, b"n")
    fields = {"mode": 0o755 if kind == b"5" else 0o644, "mtime": 1_600_000_000 + number, "uid": 1000 + number}
    return pax({b"path": name}) + header(b"x", kind=kind, size=len(content), **fields) + padded(content)  # type: ignore[arg-type]


def inspected(path: Path) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.support.images.inspecting_process", str(path)]
    told: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return told


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def streamed(path: Path, opened: Callable[[Path], object], content: Iterator[bytes]) -> Path:
    with opened(path) as file:  # type: ignore[attr-defined]
        for piece in content:
            file.write(piece)
    return path


def files_with_content() -> Iterator[bytes]:
    """As many entries as may be, and so much content that every window is used up."""
    rng = random.Random(1)
    content = rng.randbytes(2048)
    for number in range(ENTRIES):
        yield named(number, content=content[: 1024 - 64] + rng.randbytes(64))
    yield END


def zstd_writer(path: Path) -> object:
    window = ZSTD_WINDOW.bit_length() - 1
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=window)
    return zstandard.ZstdCompressor(compression_params=parameters).stream_writer(path.open("wb"))


def xz_writer(path: Path) -> object:
    """As xz -9 compresses."""
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 << 20}]
    return lzma.open(path, "wb", filters=filters)


def as_zstd(place: Path) -> Path:
    return streamed(place, zstd_writer, files_with_content())


def as_xz(place: Path) -> Path:
    return streamed(place, xz_writer, files_with_content())


def directories(place: Path) -> Path:
    return written(place, archive(*(named(number, kind=b"5") for number in range(ENTRIES))))


def one_layer(place: Path) -> Path:
    return written(place, oci(archive(*(named(number, kind=b"5") for number in range(ENTRIES))), compression="none"))


def twins(place: Path) -> Path:
    """All names have to be compared with each other, one by one."""
    names = [named(number) for number in range(ENTRIES)]
    return written(place, archive(*names, header(b"a"), header(b"A")))


def symlinks(place: Path) -> Path:
    half = NAME // 2
    links = (symlink((b"%06d" % number).ljust(half, b"n"), b"t" * half) for number in range(ENTRIES))
    return written(place, archive(*links))


def attributes(place: Path) -> Path:
    records = {b"SCHILY.xattr.user.%02d" % number: b"v" * 4000 for number in range(30)}
    return written(place, archive(*(pax(records) + header(b"%d" % number) for number in range(2000))))


def document(place: Path) -> Path:
    """A configuration that takes far more memory than bytes, once it is parsed."""
    layer = archive(header(b"a"))
    parts = OciParts(layer, compression="none")
    small = configuration([layer], x=[])
    content = small.replace(b"[]", b"[" + b",".join([b'{"":0}'] * ((DOCUMENT_BYTES - len(small)) // 7)) + b"]")
    parts.add(content)
    parts.manifest["config"] = descriptor_of(content, "application/vnd.oci.image.config.v1+json")
    return written(place, parts.build())


def members(place: Path) -> Path:
    """Around the layers there are as many other members as may be."""
    image = oci(archive(header(b"a")))
    long = b"blobs/" + b"m" * (NAME - 12)
    others = (pax({b"path": long + b"%06d" % number}) + header(b"x") for number in range(ENTRIES - 20))
    return written(place, b"".join(others) + image)


CASES: list[Callable[[Path], Path]] = [directories, one_layer, twins, symlinks, attributes, document, members, as_zstd]


def check(make: Callable[[Path], Path], place: Path) -> None:
    told = inspected(make(place / "archive"))

    assert told["acceptable"], told
    assert isinstance(told["peak"], int)
    assert told["peak"] <= MOST, told


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_inspecting_takes_little_memory_for(make: Callable[[Path], Path], tmp_path: Path) -> None:
    check(make, tmp_path)


@pytest.mark.exhaustive
def test_inspecting_takes_little_memory_for_what_xz_packs_at_its_best(tmp_path: Path) -> None:
    check(as_xz, tmp_path)
