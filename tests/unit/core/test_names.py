"""Names, keys and ids are checked at the edge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values import KEY_LIMIT, NAME_LIMIT, checked_job_id, checked_key, checked_name, ulid_from
from holdfast.errors import DefinitionError, InvalidKeyError

times = st.integers(0, 2**48 - 1)
draws = st.integers(0, 2**80 - 1)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_a_valid_name_comes_back_as_it_is(name: str) -> None:
    assert checked_name(name, "flow") == name


@pytest.mark.parametrize("name", ["", "-a", ".a", "_a", "a b", "a\n", "a/b", "ä", "x" * (NAME_LIMIT + 1), 7, None])
def test_an_invalid_name_is_refused_and_named(name: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        checked_name(name, "queue")

    assert repr(name) in str(refused.value)
    assert "queue" in str(refused.value)


@given(st.text(min_size=1, max_size=KEY_LIMIT).filter(str.isprintable))
def test_a_printable_key_comes_back_as_it_is(key: str) -> None:
    assert checked_key(key) == key


def test_no_key_is_a_key_too() -> None:
    assert checked_key(None) is None


@pytest.mark.parametrize("key", ["", "a\nb", "\x00", "\ud800", "k" * (KEY_LIMIT + 1), 7])
def test_an_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        checked_key(key)

    assert refused.value.hint is not None
    assert len(str(refused.value)) < 200


@given(times, draws)
def test_every_ulid_is_a_valid_job_id(at: int, drawn: int) -> None:
    ulid = ulid_from(at, drawn)

    assert checked_job_id(ulid) == ulid


@given(times, draws, times, draws)
def test_ulids_sort_by_time_and_then_by_chance(a: int, a_drawn: int, b: int, b_drawn: int) -> None:
    assert (ulid_from(a, a_drawn) < ulid_from(b, b_drawn)) == ((a, a_drawn) < (b, b_drawn))


def test_a_ulid_is_the_one_of_the_specification() -> None:
    assert ulid_from(0, 0) == "0" * 26
    assert ulid_from(1_469_918_176_385, 0)[:10] == "01ARYZ6S41"
    assert ulid_from(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25


@pytest.mark.parametrize("job_id", ["", "0" * 25, "0" * 27, "8" + "0" * 25, "0" * 25 + "I", "0" * 25 + "a", None])
def test_what_is_not_a_ulid_is_refused(job_id: str) -> None:
    with pytest.raises(InvalidKeyError) as refused:
        checked_job_id(job_id)

    assert "ULID" in str(refused.value)
