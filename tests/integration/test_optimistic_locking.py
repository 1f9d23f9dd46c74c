"""Optimistic locking: who looked before somebody else wrote is told so, and changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.core.states import Disposition
from holdfast.errors import LeaseLost, StateError, StateTransitionRaceError
from tests.support.backends import SqliteBackend
from tests.support.bench import OPERATOR, OTHER, WORKER, Bench, SettableClock, commit, end, finish, finish_step
from tests.support.flows import Ask, flow_of, note


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Bench, Bench]:
    """Two processes on one database."""
    backend, clock = SqliteBackend(tmp_path / "other"), SettableClock()
    return Bench(backend.open(clock), clock), Bench(backend.open(clock), clock)


def test_of_two_that_claim_one_gets_the_job(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    one.submit()

    claims = [one.claim(WORKER), two.claim(OTHER)]

    assert [len(each) for each in claims] == [1, 0]


def test_of_two_that_end_a_job_one_is_told_that_it_was_late(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    claim = one.running()
    two.store.fail(claim.job.job_id, actor=OPERATOR, reason="stop", quarantine=True)

    [answer] = one.write(end(claim))

    assert isinstance(answer, LeaseLost)
    assert one.state(claim.job.job_id) is JobState.QUARANTINED


def test_of_two_that_commit_one_leaves_an_effect(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    claim = one.running(WORKER)
    two.expire()
    two.recover()
    winner = two.take(OTHER)
    two.apply(commit(winner), worker=OTHER)

    [answer] = one.write(commit(claim))

    assert isinstance(answer, LeaseLost)
    one.assert_sound()


def test_of_two_operators_that_retry_both_get_the_answer_and_one_is_on_record(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    job_id = one.ended(Disposition.FAILED)
    first = one.store.retry(job_id, actor="alice", reason="again", from_state=JobState.FAILED)

    second = two.store.retry(job_id, actor="bob", reason="again", from_state=JobState.FAILED)

    assert first is second is JobState.PENDING
    assert [entry.actor for entry in one.journal(job_id)][-1] == "alice"
    assert "bob" not in {entry.actor for entry in one.journal(job_id)}


def test_an_operator_whose_job_has_moved_on_is_told_where_it_is(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    job_id = one.ended(Disposition.FAILED)
    seen = two.state(job_id)
    one.store.retry(job_id, actor="alice", reason="again", from_state=JobState.FAILED)
    one.take(WORKER)

    with pytest.raises(StateTransitionRaceError) as lost:
        two.store.retry(job_id, actor="bob", reason="again", from_state=JobState.FAILED, seen=seen)

    assert lost.value.state is JobState.RUNNING
    assert "was failed a moment ago and is running now" in str(lost.value)
    assert "bob" not in {entry.actor for entry in one.journal(job_id)}


def test_an_operator_that_decided_on_an_old_view_changes_nothing(tmp_path: Path) -> None:
    """The state an operator saw is part of what they ask for."""
    flow = flow_of(note("x"))
    with Engine.open(tmp_path / "state", flows=[flow], actor="alice") as engine:
        job_id = engine.submit(flow, Ask())
        engine.force(job_id, JobState.FAILED, reason="stop")
        engine.force(job_id, JobState.QUARANTINED, reason="for good")
        with pytest.raises(StateError):
            engine.retry(job_id, reason="it was failed when I looked")

        assert engine.store.job(job_id).state is JobState.QUARANTINED


def test_an_execution_is_fenced_by_its_own_id_and_not_by_the_number_of_the_attempt(sides: tuple[Bench, Bench]) -> None:
    """The same worker holds a second lease on the job: the first one's writes must not pass for the second's."""
    one, _ = sides
    first = one.running(WORKER)
    one.crash()
    second = one.take(WORKER)

    [late] = one.write(finish_step(first, response='{"from":"first"}'))
    one.apply(finish_step(second, response='{"from":"second"}'))

    assert isinstance(late, LeaseLost)
    assert [step.response for step in one.store.steps(first.job.job_id)] == ['{"from":"second"}']


def test_a_state_that_was_reached_twice_is_not_the_state_that_was_seen(sides: tuple[Bench, Bench]) -> None:
    """running → pending → running again: to the late worker it looks as if nothing had happened."""
    one, two = sides
    late = one.running(WORKER)
    one.crash()
    two.take(OTHER)

    answers = one.write(end(late), finish_step(late), commit(late))

    assert all(isinstance(answer, LeaseLost) for answer in answers)
    assert one.state(late.job.job_id) is JobState.RUNNING
    one.assert_sound()


def test_finishing_is_open_to_whoever_finds_the_commit_but_happens_once(sides: tuple[Bench, Bench]) -> None:
    one, two = sides
    claim = one.committed()
    one.expire()

    recovered = two.recover()
    [answer] = one.write(finish(claim))

    assert recovered == ["finished"]
    assert isinstance(answer, LeaseLost)
    assert [entry.exec_to for entry in one.journal(claim.job.job_id)].count("done") == 1
