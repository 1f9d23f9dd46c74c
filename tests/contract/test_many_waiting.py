"""A job for which thousands wait: they are told some hundred in a transaction, and none of them starts before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from holdfast import guard
from holdfast.core.facts import Severity
from holdfast.core.repair import RepairKind
from holdfast.core.states import JobState
from holdfast.crash_points import SimulatedCrash, set_hook
from holdfast.store.rows import new_ulid
from holdfast.store.settle import BATCH
from tests.support.backends import Backend, on_postgres
from tests.support.bench import OPERATOR, OTHER, Bench, commit, end, finish, give_back

MANY = 2 * BATCH + 50


@pytest.fixture
def transactions() -> Iterator[Counter[str]]:
    """Durable transactions, by verb."""
    counted: Counter[str] = Counter()

    def count(point: str) -> None:
        if point.endswith(".after-commit"):
            counted[point.removesuffix(".after-commit")] += 1

    set_hook(count)
    yield counted
    set_hook(None)


def chain_after(bench: Bench, first: str, length: int = MANY) -> list[str]:
    jobs, last = [], first
    for _ in range(length):
        job = bench.new_job(job_id=new_ulid(bench.clock()), run_after=last)
        jobs.append(job)
        last = job.job_id
    bench.store.submit(jobs, actor="client")
    return [job.job_id for job in jobs]


def fan_after(bench: Bench, first: str, width: int = MANY) -> list[str]:
    jobs = [bench.new_job(run_after=first) for _ in range(width)]
    bench.store.submit(jobs, actor="client")
    return [job.job_id for job in jobs]


def states(bench: Bench, jobs: list[str]) -> Counter[JobState]:
    all_of_them = {job.job_id: job.state for job in bench.store.jobs(limit=10 * MANY)}
    return Counter(all_of_them[job_id] for job_id in jobs)


@pytest.mark.parametrize("shape", [chain_after, fan_after])
def test_an_operator_who_ends_a_job_has_ended_all_that_depend_on_it(
    bench: Bench, shape: object, transactions: Counter[str]
) -> None:
    first = bench.submit()
    waiting = shape(bench, first)  # type: ignore[operator]

    bench.store.cancel(first, actor=OPERATOR, reason="no")

    assert states(bench, waiting) == {JobState.FAILED: MANY}
    assert (transactions["cancel"], transactions["settle"]) == (1, 3)
    assert {bench.latest(job_id).code for job_id in (waiting[0], waiting[-1])} == {"predecessor"}
    assert bench.states(waiting[-1]) == ["pending", "running", "failed"]
    bench.assert_sound()


@pytest.mark.parametrize("shape", [chain_after, fan_after])
def test_a_write_tells_some_of_them_and_recovery_the_others(bench: Bench, shape: object) -> None:
    claim = bench.running()
    waiting = shape(bench, claim.job.job_id)  # type: ignore[operator]

    bench.apply(end(claim))
    after_the_write, claimed = states(bench, waiting), bench.claim()
    bench.recover()

    assert after_the_write == {JobState.FAILED: BATCH, JobState.PENDING: MANY - BATCH}
    assert claimed == []
    assert states(bench, waiting) == {JobState.FAILED: MANY}
    assert bench.claim() == []
    bench.assert_sound()


def test_all_who_waited_for_the_success_of_a_job_may_start(bench: Bench) -> None:
    claim = bench.running()
    waiting = fan_after(bench, claim.job.job_id)

    bench.apply(commit(claim))
    bench.apply(finish(claim))
    at_once = len(bench.claim(limit=10 * MANY))
    bench.recover()

    assert at_once == BATCH
    assert at_once + len(bench.claim(OTHER, limit=10 * MANY)) == MANY
    assert states(bench, waiting) == {JobState.RUNNING: MANY}
    bench.assert_sound()


@pytest.mark.parametrize("where", ["before", "after"])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_crash_on_the_way_loses_nobody(bench: Bench, where: str, turn: int) -> None:
    first = bench.submit()
    waiting = chain_after(bench, first)
    turns = iter(range(1, 100))

    def die(point: str) -> None:
        if point == f"settle.{where}-commit" and next(turns) == turn:
            raise SimulatedCrash(point)

    set_hook(die)
    with pytest.raises(SimulatedCrash):
        bench.store.cancel(first, actor=OPERATOR, reason="no")
    set_hook(None)
    survivors = states(bench, waiting)[JobState.PENDING]
    claimed = bench.claim()
    bench.recover()

    assert survivors == max(0, MANY - BATCH * (turn - (where == "before")))
    assert claimed == []
    assert states(bench, waiting) == {JobState.FAILED: MANY}
    bench.assert_sound()


def test_who_has_not_been_told_yet_goes_on_waiting_for_a_job_that_is_brought_back(bench: Bench) -> None:
    claim = bench.running()
    waiting = fan_after(bench, claim.job.job_id)
    bench.apply(end(claim))
    bench.store.retry(claim.job.job_id, actor=OPERATOR, reason="again", from_state=JobState.FAILED)

    bench.recover()

    assert states(bench, waiting) == {JobState.FAILED: BATCH, JobState.PENDING: MANY - BATCH}
    again = bench.take()
    bench.apply(commit(again))
    bench.apply(finish(again))
    bench.recover()
    assert len(bench.claim(limit=10 * MANY)) == MANY - BATCH


def test_a_parent_goes_on_when_its_child_has_failed(bench: Bench) -> None:
    parent = bench.running()
    child = bench.submit(parent=parent.job.job_id, child_name="c")
    bench.apply(give_back(parent, wait_for=child))
    claim = bench.take()

    bench.apply(end(claim))

    assert bench.take().job.job_id == parent.job.job_id


@pytest.mark.parametrize("seconds", [0, 3600, -3600])
def test_a_parent_that_was_let_go_on_does_not_wait_for_a_child_that_is_brought_back(bench: Bench, seconds: int) -> None:
    parent = bench.running()
    child = bench.submit(parent=parent.job.job_id, child_name="c")
    bench.apply(give_back(parent, wait_for=child))
    bench.apply(end(bench.take()))
    bench.clock.advance(seconds)

    bench.store.retry(child, actor=OPERATOR, reason="again", from_state=JobState.FAILED)

    bench.assert_sound()
    if seconds >= 0:
        assert guard.plan(bench.store) == []
    else:
        assert {action.kind for action in guard.plan(bench.store)} == {RepairKind.UNREPAIRABLE}
    assert {claim.job.job_id for claim in bench.claim(limit=2)} == {parent.job.job_id, child}


def test_a_parent_that_does_not_wait_although_it_should_is_found_whatever_became_of_its_child_before(
    bench: Bench, backend: Backend
) -> None:
    child = bench.ended()
    bench.store.retry(child, actor=OPERATOR, reason="again", from_state=JobState.FAILED)
    bench.clock.advance(3600)
    parent = bench.submit()
    claims = {claim.job.job_id: claim for claim in bench.claim(limit=2)}
    bench.apply(give_back(claims[parent], wait_for=child))
    bench.assert_sound()

    with backend.shell() as shell:
        shell.execute("UPDATE jobs SET hold = 'none', waits_for = NULL WHERE hold = 'child'")

    found = list(guard.check(bench.store, deep=False))
    assert [(finding.code, finding.severity) for finding in found] == [("wait-wrong", Severity.WARNING)]
    assert "unless the clock was set back" in found[0].message


@on_postgres
@pytest.mark.parametrize("held", ["dependent", "parent"])
def test_a_shell_that_holds_one_of_those_who_wait_holds_up_nobody_else(
    bench: Bench, backend: Backend, held: str
) -> None:
    first = bench.running()
    other = bench.submit(run_after=first.job.job_id)
    if held == "dependent":
        waiter = bench.submit(run_after=first.job.job_id)
    else:
        parent = bench.running(priority=9)
        waiter = parent.job.job_id
        bench.apply(give_back(parent, wait_for=first.job.job_id))
    with backend.shell() as shell:
        shell.execute("BEGIN")
        shell.execute(f"SELECT * FROM jobs WHERE job_id = '{waiter}' FOR UPDATE")
        bench.apply(end(first))
        told, not_told = bench.state(other), bench.job(waiter).waits_for
    bench.recover()

    assert (told, not_told) == (JobState.FAILED, first.job.job_id)
    assert bench.job(waiter).waits_for is None


@on_postgres
def test_a_shell_that_holds_a_dependent_does_not_keep_its_predecessor_from_succeeding(
    bench: Bench, backend: Backend
) -> None:
    first = bench.running()
    held, other = (bench.submit(run_after=first.job.job_id) for _ in range(2))
    bench.apply(commit(first))
    with backend.shell() as shell:
        shell.execute("BEGIN")
        shell.execute(f"SELECT * FROM jobs WHERE job_id = '{held}' FOR UPDATE")
        bench.apply(finish(first))
        assert bench.take().job.job_id == other
    bench.recover()

    assert bench.take().job.job_id == held
