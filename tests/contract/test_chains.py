"""Jobs that wait for jobs: run_after, children, and the parent that lets go until its child has ended."""

from __future__ import annotations

import pytest

from holdfast.core.states import Disposition, JobState
from holdfast.core.step import EndCode
from holdfast.errors import CycleError, JobNotFoundError
from holdfast.store.rows import new_ulid
from tests.support.bench import OPERATOR, Bench, commit, end, finish, give_back


def claimed(bench: Bench) -> list[str]:
    return [claim.job.job_id for claim in bench.claim()]


# --- run_after ---------------------------------------------------------------------------------------------


def test_a_dependent_starts_only_when_its_predecessor_has_succeeded(bench: Bench) -> None:
    first = bench.submit()
    second = bench.submit(run_after=first)
    claim = bench.take()
    while_running = claimed(bench)
    bench.apply(commit(claim))
    while_committed = claimed(bench)
    bench.apply(finish(claim))

    assert (while_running, while_committed) == ([], [])
    assert claimed(bench) == [second]
    assert bench.job(second).waits_for is None
    bench.assert_sound()


def test_a_dependent_starts_when_recovery_finishes_its_predecessor(bench: Bench) -> None:
    first = bench.committed()
    second = bench.submit(run_after=first.job.job_id)
    bench.crash()

    assert claimed(bench) == [second]


def test_a_dependent_of_a_job_that_has_succeeded_starts_at_once(bench: Bench) -> None:
    first = bench.succeeded()
    second = bench.submit(run_after=first)

    assert claimed(bench) == [second]


def test_a_dependent_waits_for_its_time_as_well(bench: Bench) -> None:
    first = bench.submit()
    second = bench.submit(run_after=first, not_before=bench.clock() + 60_000)
    claim = bench.take()
    bench.apply(commit(claim))
    bench.apply(finish(claim))
    too_early = claimed(bench)
    bench.clock.advance(60)

    assert too_early == []
    assert claimed(bench) == [second]


def test_a_dependent_whose_time_has_come_still_waits_for_its_predecessor(bench: Bench) -> None:
    first = bench.running()
    bench.submit(run_after=first.job.job_id, not_before=bench.clock() + 1000)
    bench.clock.advance(2)

    assert claimed(bench) == []


@pytest.mark.parametrize("disposition", [Disposition.FAILED, Disposition.QUARANTINED])
def test_a_dependent_fails_with_its_predecessor_and_says_why(bench: Bench, disposition: Disposition) -> None:
    first = bench.running()
    second = bench.submit(run_after=first.job.job_id)

    path = (Disposition.FAILED, Disposition.QUARANTINED) if disposition == "quarantined" else (Disposition.FAILED,)
    bench.apply(end(first, path))

    assert bench.state(second) is JobState.FAILED
    assert bench.states(second) == ["pending", "running", "failed"]
    assert bench.latest(second).code == EndCode.PREDECESSOR
    assert first.job.job_id in (bench.latest(second).error or "")
    bench.assert_sound()


def test_a_failure_goes_down_the_whole_chain_and_every_branch(bench: Bench) -> None:
    root = bench.running().job.job_id
    chain = [root]
    for _ in range(30):
        chain.append(bench.submit(run_after=chain[-1]))
    branches = [bench.submit(run_after=chain[5]) for _ in range(3)]

    bench.store.fail(root, actor=OPERATOR, reason="no", quarantine=False)

    assert {bench.state(job) for job in chain + branches} == {JobState.FAILED}
    bench.assert_sound()


def test_a_dependent_of_a_job_that_will_be_tried_again_goes_on_waiting(bench: Bench) -> None:
    first = bench.running(failure_limit=5)
    second = bench.submit(run_after=first.job.job_id)

    bench.apply(end(first, (Disposition.FAILED, Disposition.RETRY)))

    assert bench.state(second) is JobState.PENDING
    assert claimed(bench) == [first.job.job_id]


@pytest.mark.parametrize("disposition", [Disposition.FAILED, Disposition.QUARANTINED])
def test_a_job_submitted_after_one_that_has_failed_fails_at_once(bench: Bench, disposition: Disposition) -> None:
    first = bench.ended(disposition)
    second = bench.submit(run_after=first)

    assert bench.state(second) is JobState.FAILED
    assert bench.latest(second).code == EndCode.PREDECESSOR
    bench.assert_sound()


def test_a_retried_dependent_still_waits_for_its_predecessor(bench: Bench) -> None:
    """Both were brought back by an operator: the order between them is as it was."""
    first = bench.running().job.job_id
    second = bench.submit(run_after=first)
    bench.store.fail(first, actor=OPERATOR, reason="disk", quarantine=False)
    for job_id in (first, second):
        bench.store.retry(job_id, actor=OPERATOR, reason="disk is back", from_state=JobState.FAILED)

    assert claimed(bench) == [first]
    assert bench.job(second).waits_for == first


def test_a_dependent_holds_its_key_while_it_waits(bench: Bench) -> None:
    first = bench.submit()
    second = bench.submit(run_after=first, key="k")

    assert bench.submit_one(key="k").job_id == second


# --- children ----------------------------------------------------------------------------------------------


def child(bench: Bench, parent: str, name: str, *, child_round: int = 0, **fields: object) -> str:
    return bench.submit(parent=parent, child_name=name, child_round=child_round, **fields)


def test_a_parent_sees_its_children_in_order(bench: Bench) -> None:
    parent = bench.running().job.job_id
    one = child(bench, parent, "one")
    two = child(bench, parent, "two", flow="other")

    assert [(c.name, c.job_id, c.flow, c.state) for c in bench.store.children(parent)] == [
        ("one", one, "demo", JobState.PENDING),
        ("two", two, "other", JobState.PENDING),
    ]
    assert bench.job(one).parent == parent


def test_a_child_submitted_again_is_the_child_that_is_there(bench: Bench) -> None:
    parent = bench.running().job.job_id
    first = bench.submit_one(parent=parent, child_name="one")
    second = bench.submit_one(parent=parent, child_name="one")

    assert (first.created, second.created) == (True, False)
    assert second.job_id == first.job_id


def test_a_child_that_has_ended_is_still_the_child_of_its_round(bench: Bench) -> None:
    parent = bench.running().job.job_id
    first = child(bench, parent, "one")
    bench.apply(end(bench.take()))

    assert child(bench, parent, "one") == first
    assert bench.store.children(parent)[0].state is JobState.FAILED


def test_a_child_of_an_earlier_round_that_is_still_under_way_is_the_child_of_this_one(bench: Bench) -> None:
    parent = bench.running().job.job_id
    first = child(bench, parent, "one", child_round=0)

    assert child(bench, parent, "one", child_round=1) == first
    assert [c.job_id for c in bench.store.children(parent)] == [first]


def test_another_round_has_children_of_its_own_and_only_they_are_shown(bench: Bench) -> None:
    parent = bench.running().job.job_id
    first = child(bench, parent, "one", child_round=0)
    bench.apply(end(bench.take()))
    second = child(bench, parent, "one", child_round=1)

    assert first != second
    assert [c.job_id for c in bench.store.children(parent)] == [second]


def test_a_child_may_be_a_job_that_was_there_under_its_key(bench: Bench) -> None:
    parent = bench.running().job.job_id
    there = bench.submit(key="image-1")

    assert child(bench, parent, "one", key="image-1") == there
    assert [c.job_id for c in bench.store.children(parent)] == [there]


def test_children_are_listed_in_the_order_of_submission_even_if_one_is_older(bench: Bench) -> None:
    there = bench.submit(key="k")
    bench.take()
    parent = bench.running().job.job_id
    one = child(bench, parent, "one")
    two = child(bench, parent, "two", key="k")

    assert two == there
    assert [c.job_id for c in bench.store.children(parent)] == [one, two]


# --- waiting for a child -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["succeeded", "failed", "quarantined", "cancelled"])
def test_a_parent_goes_on_when_its_child_has_ended_either_way(bench: Bench, ending: str) -> None:
    parent = bench.running()
    kid = child(bench, parent.job.job_id, "one")
    bench.apply(give_back(parent, EndCode.WAITING, wait_for=kid))
    assert bench.job(parent.job.job_id).waits_for == kid
    if ending == "cancelled":
        bench.store.cancel(kid, actor=OPERATOR, reason="no")
    else:
        claim = bench.take()
        assert claim.job.job_id == kid
        if ending == "succeeded":
            bench.apply(commit(claim))
            bench.apply(finish(claim))
        else:
            bench.store.fail(kid, actor=OPERATOR, reason="no", quarantine=ending == "quarantined")

    assert claimed(bench) == [parent.job.job_id]
    bench.assert_sound()


def test_a_parent_does_not_wait_for_a_child_that_has_ended_meanwhile(bench: Bench) -> None:
    parent = bench.running()
    kid = child(bench, parent.job.job_id, "one")
    bench.store.cancel(kid, actor=OPERATOR, reason="no")

    bench.apply(give_back(parent, EndCode.WAITING, wait_for=kid))

    assert claimed(bench) == [parent.job.job_id]


def test_a_waiting_parent_uses_no_slot_of_its_queue(bench: Bench) -> None:
    bench.store.set_queue("q", max_running=1, actor=None)
    parent = bench.running(queue="q")
    kid = child(bench, parent.job.job_id, "one", queue="q")
    bench.apply(give_back(parent, EndCode.WAITING, wait_for=kid))

    assert claimed(bench) == [kid]


def test_a_cancelled_parent_does_not_wait_for_its_child(bench: Bench) -> None:
    parent = bench.running()
    kid = child(bench, parent.job.job_id, "one")
    bench.apply(give_back(parent, EndCode.WAITING, wait_for=kid))
    bench.store.cancel(parent.job.job_id, actor=OPERATOR, reason="no")

    assert parent.job.job_id in claimed(bench)


def test_waiting_for_a_job_that_does_not_exist_is_an_error_and_not_a_loop(bench: Bench) -> None:
    parent = bench.running()

    [answer] = bench.write(give_back(parent, EndCode.WAITING, wait_for=new_ulid(1)))

    assert isinstance(answer, JobNotFoundError)
    assert bench.state(parent.job.job_id) is JobState.RUNNING


def test_a_job_cannot_wait_for_itself(bench: Bench) -> None:
    claim = bench.running()

    [answer] = bench.write(give_back(claim, EndCode.WAITING, wait_for=claim.job.job_id))

    assert isinstance(answer, CycleError)
    assert bench.state(claim.job.job_id) is JobState.RUNNING


def test_two_jobs_cannot_wait_for_each_other(bench: Bench) -> None:
    one, two = bench.running(), bench.running()
    bench.apply(give_back(one, EndCode.WAITING, wait_for=two.job.job_id))

    [answer] = bench.write(give_back(two, EndCode.WAITING, wait_for=one.job.job_id))

    assert isinstance(answer, CycleError)


def test_a_parent_cannot_wait_for_a_job_that_runs_after_it(bench: Bench) -> None:
    parent = bench.running()
    dependent = bench.submit(run_after=parent.job.job_id)

    [answer] = bench.write(give_back(parent, EndCode.WAITING, wait_for=dependent))

    assert isinstance(answer, CycleError)


def test_a_child_cannot_run_after_its_own_parent_or_grandparent(bench: Bench) -> None:
    grandparent = bench.running().job.job_id
    parent = child(bench, grandparent, "parent")

    for ancestor in (parent, grandparent):
        with pytest.raises(CycleError):
            child(bench, parent, "kid", run_after=ancestor)

    assert bench.store.children(parent) == []
