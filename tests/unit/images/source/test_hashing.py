"""A file's digest, and the fingerprint that tells when it must be taken again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from holdfast_images.source.partial import fingerprint_of, hash_file


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20])
def test_the_digest_is_that_of_every_byte(tmp_path: Path, size: int) -> None:
    content = os.urandom(size)
    (tmp_path / "x").write_bytes(content)

    assert hash_file(tmp_path / "x") == hashlib.sha256(content).hexdigest()


def test_a_descriptor_is_read_from_its_first_byte_and_left_open(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content")
    with (tmp_path / "x").open("rb") as file:
        file.read(3)

        assert hash_file(file.fileno()) == hashlib.sha256(b"content").hexdigest()
        assert file.read() == b"tent"


def test_progress_is_told_and_a_stop_is_heard(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(3 << 20))
    told: list[tuple[int, int | None]] = []

    def check() -> None:
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hash_file(tmp_path / "x", check, lambda *now: told.append(now))

    assert told == [(1 << 20, 3 << 20), (2 << 20, 3 << 20)]


def test_a_file_put_in_its_place_has_another_fingerprint_even_with_its_size_and_time(tmp_path: Path) -> None:
    for name in ("x", "y"):
        (tmp_path / name).write_bytes(name.encode())
        os.utime(tmp_path / name, ns=(1, 1))
    before = fingerprint_of(tmp_path / "x")
    os.replace(tmp_path / "y", tmp_path / "x")
    after = fingerprint_of(tmp_path / "x")

    assert (after.size, after.mtime_ns) == (before.size, before.mtime_ns)
    assert after != before


def test_a_fingerprint_stays_while_the_file_is_only_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"one")
    before = fingerprint_of(tmp_path / "x")
    hash_file(tmp_path / "x")

    assert fingerprint_of(tmp_path / "x") == before
