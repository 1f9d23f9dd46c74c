"""Names are normalised without changing what they name, and printed without doing harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.archive.entry import Reason, components, folded, is_suspicious, printable, problem


@given(st.binary())
def test_a_printed_name_is_one_harmless_line(name: bytes) -> None:
    assert printable(name).isprintable()


@given(st.binary(), st.binary())
def test_different_names_are_printed_differently(one: bytes, other: bytes) -> None:
    assert (printable(one) == printable(other)) == (one == other)


@pytest.mark.parametrize(
    "name, shown",
    [
        (b"plain name", "plain name"),
        ("grün".encode(), "grün"),
        (b"a\nb\x1b[0m\x7f", "a\\x0ab\\x1b[0m\\x7f"),
        (b"\xff", "\\xff"),
        (b"a\\xff", "a\\\\xff"),
        ("\u202e".encode(), "\\u202e"),
        ("\U000e0001".encode(), "\\U000e0001"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(name: bytes, shown: str) -> None:
    assert printable(name) == shown


@pytest.mark.parametrize("name", [b"a b", b"~!@#$%^&*()'\"", "grün/ß".encode(), b"\xff\xfe", "日本".encode()])
def test_ordinary_names_are_not_suspicious(name: bytes) -> None:
    assert not is_suspicious(name)


def test_components_leave_out_what_names_nothing() -> None:
    assert components(b"./a//b/./c/") == [b"a", b"b", b"c"]
    assert components(b"./") == []
    assert components(b"..a/...") == [b"..a", b"..."]


@pytest.mark.parametrize(
    "name, reason",
    [
        (b"", Reason.EMPTY_NAME),
        (b"/", Reason.ABSOLUTE_PATH),
        (b"a/..", Reason.PATH_TRAVERSAL),
        (b"x" * 256, Reason.NAME_TOO_LONG),
        (b"x/" * 30, Reason.NAME_TOO_LONG),
        (b"a/b/c/d", Reason.MAX_DEPTH),
        (b"a/b/c", None),
        (b"x" * 50, None),
    ],
)
def test_the_limits_of_names(name: bytes, reason: Reason | None) -> None:
    found = problem(name, components(name), depth=3, length=256 if len(name) == 256 else 50)

    assert (found and found[0]) == reason


def test_folding_ignores_case_and_unicode_form() -> None:
    assert folded(b"ETC") == folded(b"etc")
    assert folded("É".encode()) == folded("e\u0301".encode())
    assert folded("ß".encode()) == folded(b"SS")
    assert folded(b"\xff") != folded(b"\xfe")
