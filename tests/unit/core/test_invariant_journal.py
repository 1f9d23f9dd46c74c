"""INV_003: the journal is whole, unedited, and ends where the job is."""

from __future__ import annotations

from hypothesis import given

from holdfast.core.hash_chain import hash_of
from holdfast.core.invariants import check_job, check_journal
from holdfast.core.states import JobState
from tests.support.facts import Life, codes, lives, replace


@given(lives())
def test_a_true_journal_agrees_with_job_and_executions(life: Life) -> None:
    assert list(check_journal(life.facts, life.now)) == []


def test_without_the_journal_at_hand_it_is_not_judged() -> None:
    assert list(check_journal(replace(Life().facts, journal=None), 0)) == []


def test_a_missing_journal_is_found() -> None:
    assert codes(check_job(replace(Life().facts, journal=()), 0)) == {"journal-missing"}


@given(lives(min_events=1))
def test_a_journal_with_its_end_cut_off_is_found(life: Life) -> None:
    cut = replace(life.facts, journal=tuple(life.journal[:-1]))

    assert codes(check_job(cut, life.now)) == {"journal-disagrees"}


@given(lives())
def test_a_broken_chain_is_found(life: Life) -> None:
    edited = (replace(life.journal[0], actor="nobody"), *life.journal[1:])

    assert "journal-broken" in codes(check_job(replace(life.facts, journal=edited), life.now))


def test_a_state_changed_behind_the_journals_back_is_found() -> None:
    life = Life()
    facts = replace(life.facts, job=replace(life.job, state=JobState.FAILED))
    [finding] = check_journal(facts, life.now)

    assert finding.message == "stored as failed, journal ends at pending"


def test_an_execution_the_journal_does_not_know_is_found() -> None:
    life = Life()
    life.lease()
    last = replace(life.journal[-1], exec_id="another")
    journal = (*life.journal[:-1], replace(last, hash=hash_of(last)))
    [finding] = check_journal(replace(life.facts, journal=journal), life.now)

    assert finding.message == "execution exec-1 is leased, journal says None"
