"""A file appears whole or not at all, and what a dead writer has left is told from what a living one writes."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from holdfast_images.errors import SourceUnavailable
from holdfast_images.source.partial import Kept, Partial, fingerprint_of, partials_of, remove_partials


def test_nothing_is_left_of_a_file_that_is_not_published(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar") as partial:
        os.write(partial.descriptor, b"half")

    assert list(tmp_path.iterdir()) == []


def test_a_published_file_has_its_name_and_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"before")
    with Partial(tmp_path / "a.tar") as partial:
        os.write(partial.descriptor, b"whole")
        fingerprint = partial.publish(5)

    assert (tmp_path / "a.tar").read_bytes() == b"whole"
    assert fingerprint == fingerprint_of(tmp_path / "a.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_only_leftovers_of_this_target_are_collected(tmp_path: Path) -> None:
    ours = tmp_path / ".a.tar.0f.partial"
    others = [
        tmp_path / name for name in (".a.0f.partial", ".b.tar.0f.partial", ".a.tar.x.0f.partial", "a.tar", ".a.tar.0f")
    ]
    for path in (ours, *others):
        path.write_bytes(b"x")

    assert partials_of(tmp_path / "a.tar") == [ours]
    assert remove_partials(tmp_path / "a.tar") == [ours]
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar", "mine") as partial:
        assert remove_partials(tmp_path / "a.tar") == []
        assert partials_of(tmp_path / "a.tar") == [partial.path]


def test_a_link_in_place_of_a_leftover_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"x")
    (tmp_path / ".a.tar.0f.partial").symlink_to("victim")

    assert remove_partials(tmp_path / "a.tar") == []
    with pytest.raises(OSError, match="symbolic"):
        Partial(tmp_path / "a.tar", "0f")
    assert (tmp_path / "victim").read_bytes() == b"x"


KEPT = Kept(origin="o", etag='"e"', size=10, count=4, sha256="d")


def test_the_same_token_finds_what_it_left_and_how_much(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar", "0f") as partial:
        partial.reserve(KEPT.size)
        before = partial.kept()
        os.pwrite(partial.descriptor, b"1234", 0)
        partial.record(KEPT)
        partial.is_kept = True
    with Partial(tmp_path / "a.tar", "0f") as partial:
        kept, content = partial.kept(), os.pread(partial.descriptor, 4, 0)
        partial.publish(KEPT.size)

    assert before is None
    assert (kept, content) == (KEPT, b"1234")
    assert (tmp_path / "a.tar").read_bytes() == b"1234" + bytes(6)


@pytest.mark.parametrize("spoilt", [b"", b"{}", b"x" * 5000, b'{"origin":'], ids=["empty", "object", "long", "torn"])
def test_what_is_no_record_is_none(tmp_path: Path, spoilt: bytes) -> None:
    (tmp_path / ".a.tar.0f.partial").write_bytes(bytes(10) + spoilt.ljust(1024) if spoilt else b"")
    with Partial(tmp_path / "a.tar", "0f") as partial:
        assert partial.kept() is None


@pytest.mark.parametrize("change", [{"size": 9}, {"size": 11}, {"count": 0}, {"count": 11}])
def test_a_record_that_does_not_fit_its_file_is_none(tmp_path: Path, change: dict[str, int]) -> None:
    content = msgspec.json.encode(msgspec.structs.replace(KEPT, **change)).ljust(1024)
    (tmp_path / ".a.tar.0f.partial").write_bytes(bytes(10) + content)
    with Partial(tmp_path / "a.tar", "0f") as partial:
        assert partial.kept() is None


def test_the_one_that_somebody_goes_on_with_is_not_collected(tmp_path: Path) -> None:
    for token in ("mine", "other"):
        (tmp_path / f".a.tar.{token}.partial").write_bytes(b"x")

    assert [path.name for path in remove_partials(tmp_path / "a.tar", but="mine")] == [".a.tar.other.partial"]


def test_two_writers_cannot_have_the_same_token(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar", "0f"), pytest.raises(SourceUnavailable, match="still being written"):
        Partial(tmp_path / "a.tar", "0f")


@pytest.mark.parametrize("token", ["", "a.b", "../x", "a/b", "x" * 65])
def test_a_token_is_a_plain_word(tmp_path: Path, token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Partial(tmp_path / "a.tar", token)


def test_a_directory_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    assert remove_partials(tmp_path / "nowhere" / "a.tar") == []
