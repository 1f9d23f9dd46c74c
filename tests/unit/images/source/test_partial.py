"""A file appears whole or not at all, and what a dead writer has left is told from what a living one writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast_images.source.hashing import fingerprint_of
from holdfast_images.source.partial import Partial, partials_of, remove_partials


def test_nothing_is_left_of_a_file_that_is_not_published(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar") as partial:
        os.write(partial.descriptor, b"half")

    assert list(tmp_path.iterdir()) == []


def test_a_published_file_has_its_name_and_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"before")
    with Partial(tmp_path / "a.tar") as partial:
        os.write(partial.descriptor, b"whole")
        fingerprint = partial.publish()

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


def test_the_same_token_takes_over_what_it_left(tmp_path: Path) -> None:
    (tmp_path / ".a.tar.0f.partial").write_bytes(b"left by a crash")
    with Partial(tmp_path / "a.tar", "0f") as partial:
        os.write(partial.descriptor, b"new")
        partial.publish()

    assert (tmp_path / "a.tar").read_bytes() == b"new"


def test_two_writers_cannot_have_the_same_token(tmp_path: Path) -> None:
    with Partial(tmp_path / "a.tar", "0f"), pytest.raises(BlockingIOError):
        Partial(tmp_path / "a.tar", "0f")


@pytest.mark.parametrize("token", ["", "a.b", "../x", "a/b", "x" * 65])
def test_a_token_is_a_plain_word(tmp_path: Path, token: str) -> None:
    with pytest.raises(ValueError, match="token"):
        Partial(tmp_path / "a.tar", token)


def test_a_directory_that_is_not_there_has_no_leftovers(tmp_path: Path) -> None:
    assert remove_partials(tmp_path / "nowhere" / "a.tar") == []
