"""The journal's chain shows every edit, removal and swap."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.hash_chain import GENESIS, chain_faults, hash_of
from holdfast.core.records import JournalEntry
from tests.support.facts import Life, lives, replace

TEXT_FIELDS = [
    "job_id", "actor", "exec_id", "job_from", "job_to", "exec_from", "exec_to", "step", "reason", "metadata",
    "prev_hash", "hash",
]  # fmt: skip
edits = st.one_of(
    st.tuples(st.sampled_from(TEXT_FIELDS), st.text("abc>", max_size=5)),
    st.tuples(st.sampled_from(["at", "seq"]), st.integers(-5, 2**40)),
)
long_lives = lives(min_events=3)


def faults(journal: list[JournalEntry]) -> list[str]:
    return list(chain_faults(journal))


@given(lives())
def test_a_true_journal_has_no_fault(life: Life) -> None:
    assert faults(life.journal) == []


def test_an_empty_journal_has_no_fault_of_its_own() -> None:
    assert faults([]) == []


@given(long_lives, st.data())
def test_any_single_edit_is_found(life: Life, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(life.journal) - 1))
    field, value = data.draw(edits.filter(lambda edit: edit[1] != getattr(life.journal[position], edit[0])))
    edited: list[JournalEntry] = life.journal[:]
    changes: dict[str, Any] = {field: value}
    edited[position] = replace(edited[position], **changes)

    assert faults(edited)


@given(long_lives, st.data())
def test_an_edit_with_its_hash_made_anew_is_found_at_the_next_entry(life: Life, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(life.journal) - 2))
    forged = replace(life.journal[position], reason="nothing happened")
    edited = life.journal[:]
    edited[position] = replace(forged, hash=hash_of(forged))

    assert any("does not follow" in fault for fault in faults(edited))


@given(long_lives, st.data())
def test_any_removal_before_the_end_is_found(life: Life, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(life.journal) - 2))
    shortened = life.journal[:position] + life.journal[position + 1 :]

    assert faults(shortened)


@given(long_lives, st.data())
def test_any_swap_is_found(life: Life, data: st.DataObject) -> None:
    first, second = data.draw(st.lists(st.integers(0, len(life.journal) - 1), min_size=2, max_size=2, unique=True))
    swapped = life.journal[:]
    swapped[first], swapped[second] = swapped[second], swapped[first]

    assert faults(swapped)


@given(long_lives)
def test_a_renumbered_journal_is_found(life: Life) -> None:
    renumbered = [replace(entry, seq=seq) for seq, entry in enumerate(life.journal[1:], 1)]

    assert faults(renumbered)


def test_every_fault_is_reported_and_not_only_the_first() -> None:
    life = Life()
    life.lease()
    life.begin()
    life.commit()
    edited = [replace(entry, reason="edited") for entry in life.journal]

    assert len(faults(edited)) == len(life.journal)


def test_a_job_that_jumps_between_entries_is_found() -> None:
    life = Life()
    entry = replace(life.journal[0], job_from="failed")
    forged = replace(entry, hash=hash_of(entry))

    assert faults([forged]) == [f"job {forged.job_id} entry 1: starts from failed, but the job was None"]


@given(lives())
def test_the_first_entry_has_nothing_before_it(life: Life) -> None:
    assert life.journal[0].prev_hash == GENESIS
    assert len({entry.hash for entry in life.journal}) == len(life.journal)
