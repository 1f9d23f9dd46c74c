"""A lease's owner can be told from every other process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.values import WorkerId, label_of, parse_worker_id

numbers = st.integers(0, 2**63)
words = st.text(st.characters(exclude_characters=":"), max_size=20)
worker_ids = st.builds(
    WorkerId, host=st.text(max_size=20), pid=numbers, start=numbers, boot=words, namespace=numbers, nonce=words
)


@given(worker_ids)
def test_a_worker_id_survives_the_round_trip(worker: WorkerId) -> None:
    assert parse_worker_id(str(worker)) == worker


@given(worker_ids, worker_ids)
def test_two_workers_never_share_an_id(one: WorkerId, other: WorkerId) -> None:
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize(
    "owner", ["", "operator", "alice@host", "a:b:c:d:e:f", "host:1:2:boot:x:n", "h:-1:2:b:3:n", "h:²:2:b:3:n"]
)
def test_an_owner_that_is_no_worker_is_not_taken_for_one(owner: str) -> None:
    assert parse_worker_id(owner) is None
    assert label_of(owner) == owner


def test_people_see_the_process_and_its_host() -> None:
    assert label_of(str(WorkerId("vm-7", 42, 1, "boot", 1, "n"))) == "pid 42 on vm-7"


@given(st.text(max_size=40))
def test_any_text_has_a_label(owner: str) -> None:
    assert label_of(owner) is not None
