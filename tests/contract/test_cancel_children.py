"""Cancelling goes on to the children and theirs, and to what only they wait for; nobody else's job is touched."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import guard
from holdfast.core.states import ExecutionStatus, JobState
from holdfast.core.step import EndCode
from holdfast.errors import ParentEndedError
from holdfast.store import operator as cancellation
from holdfast.store.commands import Claim
from tests.support.backends import SqliteBackend, on_sqlite
from tests.support.bench import OPERATOR, WORKER, Bench, commit, end, give_back

PENDING, RUNNING, FAILED = JobState.PENDING, JobState.RUNNING, JobState.FAILED


def child_of(bench: Bench, parent: str, name: str, **fields: object) -> str:
    return bench.submit(parent=parent, child_name=name, **fields)


def cancel(bench: Bench, job_id: str, *, children: bool = True) -> JobState:
    return bench.store.cancel(job_id, actor=OPERATOR, reason="wrong image", children=children)


def wait_for(claim: Claim, job_id: str) -> object:
    return msgspec.structs.replace(give_back(claim), code=EndCode.WAITING, wait_for=job_id)


def is_cancelled(bench: Bench, job_id: str) -> bool:
    return bench.state(job_id) is FAILED or bench.job(job_id).cancel_reason is not None


def test_pending_running_and_waiting_children_are_cancelled_and_the_journal_says_by_whom_and_why(bench: Bench) -> None:
    parent = bench.running().job.job_id
    running = child_of(bench, parent, "running", priority=9)
    assert bench.take().job.job_id == running
    given_back = child_of(bench, parent, "given back", priority=8)
    bench.apply(give_back(bench.take()))
    pending = child_of(bench, parent, "pending")

    assert cancel(bench, parent) is RUNNING

    why = f"cancelled with its parent {parent}: wrong image"
    assert bench.job(parent).cancel_reason == "wrong image"
    assert bench.job(running).cancel_reason == bench.job(given_back).cancel_reason == why
    assert bench.state(pending) is FAILED
    assert (bench.latest(pending).code, bench.latest(pending).error) == (EndCode.CANCELLED, why)
    for child in (running, given_back, pending):
        entry = bench.journal(child)[-1]
        assert entry.actor == OPERATOR
        assert why in entry.reason
    bench.assert_sound()


def test_children_of_children_are_cancelled_under_the_reason_that_was_given(bench: Bench) -> None:
    jobs = [bench.submit()]
    for depth in range(5):
        bench.take()
        jobs.append(child_of(bench, jobs[-1], f"level {depth}"))

    cancel(bench, jobs[0])

    assert all(is_cancelled(bench, job) for job in jobs)
    assert bench.latest(jobs[-1]).error == f"cancelled with its parent {jobs[-2]}: wrong image"
    bench.assert_sound()


def test_a_parent_that_waits_for_its_child_is_let_go_with_it(bench: Bench) -> None:
    claim = bench.running()
    parent = claim.job.job_id
    child = child_of(bench, parent, "stage")
    bench.apply(wait_for(claim, child))  # type: ignore[arg-type]
    assert bench.job(parent).hold == "child"

    cancel(bench, parent)

    assert (bench.job(parent).hold, bench.state(child)) == ("none", FAILED)
    assert bench.take().job.cancel_reason == "wrong image"


def test_children_may_be_left_alone_and_cancelled_after_all(bench: Bench) -> None:
    parent = bench.running().job.job_id
    child = child_of(bench, parent, "a")

    cancel(bench, parent, children=False)
    left_alone = bench.state(child)
    cancel(bench, parent)

    assert left_alone is PENDING
    assert bench.state(child) is FAILED


def test_what_is_left_of_the_children_of_a_failed_job_can_be_cancelled(bench: Bench) -> None:
    claim = bench.running()
    child = child_of(bench, claim.job.job_id, "a")
    bench.apply(end(claim))

    assert cancel(bench, claim.job.job_id) is FAILED
    assert bench.state(child) is FAILED


def test_jobs_that_name_a_parent_without_a_name_of_their_own_are_children_too(bench: Bench) -> None:
    parent = bench.running().job.job_id
    child = bench.submit(parent=parent)

    cancel(bench, parent)

    assert bench.state(child) is FAILED


def test_a_child_that_two_parents_have_asked_for_goes_on_until_both_are_cancelled(bench: Bench) -> None:
    one, two = bench.running().job.job_id, bench.running().job.job_id
    shared = child_of(bench, one, "stage", key="image-7")
    assert child_of(bench, two, "stage", key="image-7") == shared

    cancel(bench, one)
    after_one = bench.state(shared)
    cancel(bench, two)

    assert after_one is PENDING
    assert bench.state(shared) is FAILED
    bench.assert_sound()


def test_a_child_that_its_sibling_has_asked_for_too_goes_with_both_whoever_waits_for_it(bench: Bench) -> None:
    parent = bench.running().job.job_id
    shared = child_of(bench, parent, "stage", key="image-7")
    sibling = child_of(bench, parent, "sibling", priority=5)
    assert bench.take().job.job_id == sibling
    assert child_of(bench, sibling, "stage", key="image-7") == shared
    after = bench.submit(run_after=shared)

    cancel(bench, parent)

    assert is_cancelled(bench, sibling)
    assert (bench.state(shared), bench.state(after)) == (FAILED, FAILED)
    bench.assert_sound()


def test_a_job_that_asks_to_wait_when_it_is_cancelled_already_waits_for_nothing(bench: Bench) -> None:
    claim = bench.running()
    child = child_of(bench, claim.job.job_id, "stage")
    cancel(bench, claim.job.job_id, children=False)

    bench.apply(wait_for(claim, child))  # type: ignore[arg-type]

    assert bench.job(claim.job.job_id).hold == "none"
    bench.assert_sound()
    assert guard.plan(bench.store) == []


def test_a_child_that_a_client_has_asked_for_goes_on(bench: Bench) -> None:
    asked_for = bench.running(key="image-7").job.job_id
    parent = bench.running().job.job_id
    assert child_of(bench, parent, "stage", key="image-7") == asked_for

    cancel(bench, parent)

    assert not is_cancelled(bench, asked_for)


def test_what_a_cancelled_job_waits_for_is_cancelled_if_nobody_else_wants_it(bench: Bench) -> None:
    """The job was submitted by another one that is gone: only who waits for it is left."""
    first = bench.running()
    target = child_of(bench, first.job.job_id, "target")
    bench.apply(end(first))
    waiting = [bench.submit(priority=5), bench.submit(priority=4)]
    for job_id in waiting:
        claim = bench.take()
        assert claim.job.job_id == job_id
        bench.apply(wait_for(claim, target))  # type: ignore[arg-type]

    cancel(bench, waiting[0])
    with_one_left = bench.state(target)
    cancel(bench, waiting[1])

    assert with_one_left is PENDING
    assert bench.state(target) is FAILED
    told = f"cancelled with {waiting[1]}, which waited for it: wrong image"
    assert bench.latest(target).error == told


def test_siblings_that_run_after_each_other_are_all_cancelled_and_none_is_blamed_on_another(bench: Bench) -> None:
    parent = bench.running().job.job_id
    chain = [child_of(bench, parent, "0")]
    for number in range(1, 6):
        chain.append(child_of(bench, parent, str(number), run_after=chain[-1]))

    cancel(bench, parent)

    assert [bench.latest(job).code for job in chain] == [EndCode.CANCELLED] * 6
    bench.assert_sound()


def test_children_that_have_ended_or_committed_stay_as_they_are(bench: Bench) -> None:
    parent = bench.running().job.job_id
    committed = child_of(bench, parent, "committed", priority=9)
    claim = bench.take()
    bench.apply(commit(claim))
    failed = child_of(bench, parent, "failed", priority=8)
    bench.apply(end(bench.take()))
    before = {job: bench.journal(job) for job in (committed, failed)}

    cancel(bench, parent)

    assert {job: bench.journal(job) for job in before} == before
    assert bench.status(claim) is ExecutionStatus.COMMITTED


def test_metadata_goes_with_the_children(bench: Bench) -> None:
    parent = bench.running().job.job_id
    child = child_of(bench, parent, "a")

    bench.store.cancel(parent, actor=OPERATOR, reason="x", metadata={"ticket": "OPS-1"})

    assert msgspec.json.decode(bench.journal(child)[-1].metadata)["given"] == {"ticket": "OPS-1"}


def test_a_dry_run_reaches_no_child(bench: Bench) -> None:
    parent = bench.running().job.job_id
    child = child_of(bench, parent, "a")

    bench.store.cancel(parent, actor=OPERATOR, reason="x", dry_run=True)

    assert (bench.state(child), bench.job(parent).cancel_reason) == (PENDING, None)


# --- children that come late -----------------------------------------------------------------------------------


def test_a_job_that_is_being_cancelled_gets_no_more_children(bench: Bench) -> None:
    parent = bench.running().job.job_id
    cancel(bench, parent)

    for name in ("late", None):
        with pytest.raises(ParentEndedError) as refused:
            bench.submit(parent=parent, child_name=name)
        assert refused.value.reason == "wrong image"
    assert len(bench.store.jobs()) == 1


def test_a_job_that_has_ended_gets_no_more_children_from_its_steps(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(end(claim))

    with pytest.raises(ParentEndedError) as refused:
        child_of(bench, claim.job.job_id, "late")

    assert refused.value.reason is None


def test_a_child_that_is_there_already_is_named_again(bench: Bench) -> None:
    parent = bench.running().job.job_id
    child = child_of(bench, parent, "a")
    bench.take()
    cancel(bench, parent)

    assert child_of(bench, parent, "a") == child


def test_a_parent_that_is_tried_again_gets_new_children_which_stay(bench: Bench) -> None:
    """What is left of the old cancellation does not reach them."""
    claim = bench.running()
    parent = claim.job.job_id
    child_of(bench, parent, "a")
    bench.store.cancel(parent, actor=OPERATOR, reason="x", children=False)
    bench.apply(end(claim))
    with bench.store.writing("cancel") as session:  # type: ignore[attr-defined] # as by one who died right after it
        cancellation_left(session, parent)
    bench.store.retry(parent, actor=OPERATOR, reason="after all", from_state=FAILED)
    again = child_of(bench, parent, "b")
    bench.store.continue_cancellations()

    assert bench.state(again) is PENDING


def cancellation_left(session: object, parent: str) -> None:
    from holdfast.store.operator import mark_children

    mark_children(session, parent, waited_for=None, actor=OPERATOR, reason="x")  # type: ignore[arg-type]


# --- many of them, and crashes ---------------------------------------------------------------------------------


def test_thousands_of_children_are_cancelled_in_transactions_of_bounded_size(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = bench.running().job.job_id
    jobs = [bench.new_job(parent=parent, child_name=str(n)) for n in range(450)]
    bench.store.submit(jobs, actor=WORKER)
    sizes: list[int] = []
    cancel_some = cancellation.cancel_some

    def counting(session: object, *, limit: int) -> str | None:
        before = session.journal_mark()  # type: ignore[attr-defined]
        more = cancel_some(session, limit=limit)  # type: ignore[arg-type]
        sizes.append(session.journal_mark() - before)  # type: ignore[attr-defined]
        return more

    monkeypatch.setattr(cancellation, "cancel_some", counting)
    cancel(bench, parent)

    assert {bench.state(job.job_id) for job in jobs} == {FAILED}
    assert max(sizes) <= 2 * cancellation.CANCEL_BATCH
    assert len(sizes) >= 5
    bench.assert_sound()


def test_what_a_process_that_died_has_left_is_continued_by_recovery(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = bench.running().job.job_id
    jobs = [bench.new_job(parent=parent, child_name=str(n)) for n in range(2 * cancellation.CANCEL_BATCH + 10)]
    bench.store.submit(jobs, actor=WORKER)

    class Killed(BaseException):
        pass

    cancel_some, calls = cancellation.cancel_some, []

    def die(session: object, *, limit: int) -> str | None:
        calls.append(limit)
        if len(calls) == 2:
            raise Killed
        return cancel_some(session, limit=limit)  # type: ignore[arg-type]

    with monkeypatch.context() as dying:
        dying.setattr(cancellation, "cancel_some", die)
        with pytest.raises(Killed):
            cancel(bench, parent)
    half = sum(bench.state(job.job_id) is FAILED for job in jobs)
    bench.store.recover(is_dead=lambda _owner: False, actor="worker")

    assert half == cancellation.CANCEL_BATCH
    assert {bench.state(job.job_id) for job in jobs} == {FAILED}
    assert {bench.journal(job.job_id)[-1].actor for job in jobs} == {OPERATOR}
    bench.assert_sound()


@on_sqlite
def test_a_child_that_cannot_be_read_holds_up_no_other(backend: SqliteBackend, bench: Bench) -> None:
    parent = bench.running().job.job_id
    children = [child_of(bench, parent, str(n)) for n in range(4)]
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(f"UPDATE jobs SET priority = 'high' WHERE job_id = '{children[1]}'")
        put_back()

    cancel(bench, parent)

    states = dict(backend.query("SELECT job_id, state FROM jobs"))
    assert {job for job in children if states[job] != "failed"} == {children[1]}
    assert backend.query("SELECT * FROM cancellations") == []
