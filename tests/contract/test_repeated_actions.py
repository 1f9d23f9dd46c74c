"""An action that is asked for again gives the same answer and changes nothing; one that comes too late says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.client import Client
from holdfast.core.facts import Severity
from holdfast.core.records import JobRecord
from holdfast.core.states import Disposition, JobState
from holdfast.errors import (
    BadInput,
    InvalidStateTransitionError,
    QueueNotFoundError,
    StateError,
    StateTransitionRaceError,
)
from holdfast.guard import check
from holdfast.store.protocol import Store
from tests.contract.test_operators import STATES
from tests.support.backends import Backend
from tests.support.bench import OPERATOR, Bench, SettableClock, give_back

Act = Callable[[Client, str], Any]

REPEATED: dict[str, tuple[str, Act]] = {
    "retry": ("failed", lambda c, job: c.retry(job, reason="again")),
    "release": ("quarantined", lambda c, job: c.release(job, reason="again")),
    "cancel of one that never ran": ("pending", lambda c, job: c.cancel(job, reason="not needed")),
    "cancel of one that runs": ("running", lambda c, job: c.cancel(job, reason="not needed")),
    "cancel of one that failed": ("failed", lambda c, job: c.cancel(job, reason="not needed")),
    "cancel of one in quarantine": ("quarantined", lambda c, job: c.cancel(job, reason="not needed")),
    "force to failed": ("running", lambda c, job: c.force(job, JobState.FAILED, reason="stop")[-1]),
    "force to quarantined": ("pending", lambda c, job: c.force(job, JobState.QUARANTINED, reason="stop")[-1]),
    "force to pending": ("running", lambda c, job: c.force(job, JobState.PENDING, reason="anew")[-1]),
    "reschedule": (
        "pending",
        lambda c, job: c.reschedule(job, reason="later", not_before=1_900_000_000_000, priority=3),
    ),
}


def client_of(bench: Bench) -> Client:
    return Client(bench.store, actor=OPERATOR)


@pytest.mark.parametrize("name", REPEATED)
def test_the_second_time_gives_the_same_answer_and_no_entry(bench: Bench, name: str) -> None:
    state, act = REPEATED[name]
    job_id = STATES[state](bench)
    client = client_of(bench)

    first = act(client, job_id)
    then = (bench.job(job_id), bench.journal(job_id))
    again = [act(client, job_id) for _ in range(2)]

    assert again == [first, first]
    assert (bench.job(job_id), bench.journal(job_id)) == then
    bench.assert_sound()


@pytest.mark.parametrize("verb", ["fail", "restart", "retry", "cancel"])
def test_the_store_itself_answers_a_repeated_wish_the_same(bench: Bench, verb: str) -> None:
    how: dict[str, Any] = {"actor": OPERATOR, "reason": "x"}
    calls: dict[str, tuple[str, Callable[[str], JobState]]] = {
        "fail": ("running", lambda job: bench.store.fail(job, quarantine=True, **how)),
        "restart": ("running", lambda job: bench.store.restart(job, **how)),
        "retry": ("failed", lambda job: bench.store.retry(job, from_state=JobState.FAILED, **how)),
        "cancel": ("running", lambda job: bench.store.cancel(job, **how)),
    }
    state, call = calls[verb]
    job_id = STATES[state](bench)

    answers = [call(job_id) for _ in range(3)]

    assert len(set(answers)) == 1
    assert answers[0] is bench.state(job_id)
    assert len([entry for entry in bench.journal(job_id) if entry.actor == OPERATOR]) in (1, 2)


def test_a_cancelled_job_keeps_the_first_reason(bench: Bench) -> None:
    job_id = bench.running().job.job_id
    client = client_of(bench)

    client.cancel(job_id, reason="wrong image")
    client.cancel(job_id, reason="did it work?")

    assert bench.job(job_id).cancel_reason == "wrong image"


ILLEGAL: list[tuple[str, Act, str]] = [
    ("running", lambda c, job: c.retry(job, reason="x"), "is running: wait for its end"),
    ("running", lambda c, job: c.release(job, reason="x"), "is running: wait for its end"),
    ("succeeded", lambda c, job: c.retry(job, reason="x"), "submit a new one"),
    ("succeeded", lambda c, job: c.release(job, reason="x"), "submit a new one"),
    ("quarantined", lambda c, job: c.retry(job, reason="x"), "release for quarantined"),
    ("failed", lambda c, job: c.release(job, reason="x"), "retry is for failed"),
    ("succeeded", lambda c, job: c.cancel(job, reason="x"), "has succeeded"),
    ("committed", lambda c, job: c.cancel(job, reason="x"), "has committed"),
    ("quarantined", lambda c, job: c.force(job, JobState.FAILED, reason="x"), "may go to: pending"),
    ("pending", lambda c, job: c.force(job, JobState.SUCCEEDED, reason="x"), "only a worker"),
    ("committed", lambda c, job: c.force(job, JobState.FAILED, reason="x"), "has committed"),
    ("running", lambda c, job: c.reschedule(job, reason="x", priority=1), "only a pending one"),
    ("succeeded", lambda c, job: c.reschedule(job, reason="x", priority=1), "only a pending one"),
]


@pytest.mark.parametrize("case", ILLEGAL, ids=[f"{state}: {hint}" for state, _, hint in ILLEGAL])
def test_an_illegal_wish_says_what_to_do_and_is_logged_as_an_error(
    bench: Bench, case: tuple[str, Act, str], caplog: pytest.LogCaptureFixture
) -> None:
    state, act, hint = case
    job_id = STATES[state](bench)
    before = bench.journal(job_id)

    with caplog.at_level(logging.DEBUG, "holdfast.operators"), pytest.raises(InvalidStateTransitionError) as refused:
        act(client_of(bench), job_id)

    assert hint in str(refused.value.hint)
    assert bench.journal(job_id) == before
    [record] = [each for each in caplog.records if each.name == "holdfast.operators"]
    assert (record.levelno, record.job_id) == (logging.ERROR, job_id)  # type: ignore[attr-defined]
    assert refused.value.from_state in record.getMessage()


def test_a_repeated_wish_is_logged_for_those_who_look_closely(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    job_id = bench.ended(Disposition.FAILED)
    client = client_of(bench)
    client.retry(job_id, reason="x")
    with caplog.at_level(logging.DEBUG, "holdfast.operators"):
        client.retry(job_id, reason="x")

    assert [(each.levelno, each.getMessage()) for each in caplog.records] == [
        (logging.DEBUG, f"retry: job {job_id} is pending already")
    ]


# --- races ---------------------------------------------------------------------------------------------------


class LooksEarly:
    """A store whose answer to the operator's look is older than the operator's write."""

    def __init__(self, store: Store, meanwhile: Callable[[], object]) -> None:
        self._store = store
        self._meanwhile: Callable[[], object] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def job(self, job_id: str) -> JobRecord:
        record = self._store.job(job_id)
        if self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            meanwhile()
        return record


def finish_whole(bench: Bench, job_id: str) -> None:
    bench.store.retry(job_id, actor="alice", reason="x", from_state=JobState.FAILED)
    assert bench.take().job.job_id == job_id


RACES: dict[str, tuple[str, Callable[[Bench, str], object], Act, JobState]] = {
    "retry, and it runs again already": (
        "failed", finish_whole, lambda c, job: c.retry(job, reason="x"), JobState.RUNNING,
    ),
    "retry, and it was put into quarantine": (
        "failed",
        lambda b, job: b.store.fail(job, actor="alice", reason="x", quarantine=True),
        lambda c, job: c.retry(job, reason="x"),
        JobState.QUARANTINED,
    ),
    "force of a waiting job that has been claimed": (
        "pending", lambda b, job: b.take(), lambda c, job: c.force(job, JobState.FAILED, reason="x"), JobState.RUNNING,
    ),
    "force of a failed job that is tried again": (
        "failed",
        lambda b, job: b.store.retry(job, actor="alice", reason="x", from_state=JobState.FAILED),
        lambda c, job: c.force(job, JobState.QUARANTINED, reason="x"),
        JobState.PENDING,
    ),
    "force back of a job that has ended": (
        "running",
        lambda b, job: b.store.fail(job, actor="alice", reason="x", quarantine=False),
        lambda c, job: c.force(job, JobState.PENDING, reason="x"),
        JobState.FAILED,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RACES)
def test_who_decided_on_an_old_view_is_told_where_the_job_is_now(bench: Bench, name: str) -> None:
    state, meanwhile, act, now = RACES[name]
    job_id = STATES[state](bench)
    client = Client(LooksEarly(bench.store, lambda: meanwhile(bench, job_id)), actor=OPERATOR)

    with pytest.raises(StateTransitionRaceError) as lost:
        act(client, job_id)

    assert lost.value.state is now is bench.state(job_id)
    assert f"is {now} now" in str(lost.value)
    assert OPERATOR not in {entry.actor for entry in bench.journal(job_id)}
    bench.assert_sound()


def test_cancelling_a_job_that_succeeded_meanwhile_is_a_lost_race(bench: Bench) -> None:
    claim = bench.committed()
    job_id = claim.job.job_id
    old = msgspec.structs.replace(bench.job(job_id), state=JobState.PENDING)

    with pytest.raises(StateTransitionRaceError) as lost:
        bench.store.cancel(job_id, actor=OPERATOR, reason="x", seen=old.state)

    assert lost.value.state is JobState.RUNNING


def test_a_wish_that_somebody_else_has_fulfilled_meanwhile_is_no_lost_race(bench: Bench) -> None:
    job_id = bench.ended(Disposition.FAILED)
    meanwhile = LooksEarly(
        bench.store, lambda: bench.store.retry(job_id, actor="alice", reason="x", from_state=JobState.FAILED)
    )

    assert Client(meanwhile, actor=OPERATOR).retry(job_id, reason="x") is JobState.PENDING
    assert OPERATOR not in {entry.actor for entry in bench.journal(job_id)}


def at_once(acts: Sequence[Callable[[], object]]) -> list[object]:
    """Each in a thread of its own, begun in the same moment; what each has returned, or its error."""
    answers: list[object] = [None] * len(acts)
    barrier = threading.Barrier(len(acts))

    def run(number: int) -> None:
        barrier.wait(60)
        try:
            answers[number] = acts[number]()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return answers


SAME: dict[str, Act] = {
    "retry": lambda c, job: c.retry(job, reason="x"),
    "cancel": lambda c, job: c.cancel(job, reason="x"),
    "fail": lambda c, job: c.store.fail(job, actor=OPERATOR, reason="x", quarantine=True),
}


@pytest.mark.parametrize("verb", SAME)
def test_of_many_that_wish_the_same_at_once_one_changes_something_and_all_get_the_answer(
    backend: Backend, bench: Bench, clock: SettableClock, verb: str
) -> None:
    clients = [Client(backend.open(clock), actor=OPERATOR) for _ in range(4)]
    for _turn in range(5):
        job_id = STATES["failed" if verb == "retry" else "running"](bench)

        answers = at_once([partial(SAME[verb], client, job_id) for client in clients])

        assert answers == [bench.state(job_id)] * len(clients)
        entries = [entry for entry in bench.journal(job_id) if entry.actor == OPERATOR and entry.job_to != "failed"]
        assert len(entries) == 1
        bench.claim()  # out of the way of the next turn
    bench.assert_sound()


def test_of_opposite_wishes_at_once_each_is_fulfilled_or_told_why_not(
    backend: Backend, bench: Bench, clock: SettableClock
) -> None:
    """Every answer is a state, or an error that says where the job is; the journal tells a legal story."""
    clients = [Client(backend.open(clock), actor=f"operator-{number}") for number in range(3)]
    acts: list[Act] = [
        SAME["retry"],
        lambda c, job: c.force(job, JobState.QUARANTINED, reason="x"),
        SAME["cancel"],
    ]
    for _turn in range(6):
        job_id = bench.ended(Disposition.FAILED)

        answers = at_once([partial(act, client, job_id) for act, client in zip(acts, clients, strict=True)])

        assert None not in answers
        assert not [each for each in answers if isinstance(each, Exception) and not isinstance(each, StateError)]
        bench.claim()  # out of the way of the next turn
    bench.assert_sound()


# --- what goes with an action --------------------------------------------------------------------------------


def test_metadata_of_an_action_is_journaled(bench: Bench) -> None:
    client = client_of(bench)
    given = {"ticket": "OPS-12", "approved_by": ["alice", "bob"]}
    jobs = {
        "retry": bench.ended(Disposition.FAILED),
        "release": bench.ended(Disposition.QUARANTINED),
        "cancel": bench.running().job.job_id,
        "force": bench.running().job.job_id,
    }

    client.retry(jobs["retry"], reason="x", metadata=given)
    client.release(jobs["release"], reason="x", metadata=given)
    client.cancel(jobs["cancel"], reason="x", metadata=given)
    client.force(jobs["force"], JobState.FAILED, reason="x", metadata=given)
    waiting = bench.submit()
    client.reschedule(waiting, reason="x", priority=4, metadata=given)

    for job_id in (*jobs.values(), waiting):
        entries = [entry for entry in bench.journal(job_id) if entry.actor == OPERATOR]
        assert entries
        for entry in entries:
            assert msgspec.json.decode(entry.metadata)["given"] == given
    assert msgspec.json.decode(bench.journal(jobs["force"])[-1].metadata)["code"] == "forced"


def test_metadata_cannot_pass_for_evidence(bench: Bench) -> None:
    """What the engine notes in an entry is compared with the rows: nobody else may say it."""
    claim = bench.running()
    forged = {"code": 7, "forgiven": True, "steps": "9:nonsense", "not_before": -1, "rescheduled": "no"}

    client_of(bench).force(claim.job.job_id, JobState.FAILED, reason="x", metadata=forged)

    assert msgspec.json.decode(bench.journal(claim.job.job_id)[-1].metadata)["code"] == "forced"
    bench.assert_sound()


@pytest.mark.parametrize("metadata", [{"x": object()}, {"x": "y" * 20_000}, ["a"]], ids=["object", "large", "list"])
def test_metadata_that_cannot_be_kept_is_refused(bench: Bench, metadata: Any) -> None:
    job_id = bench.ended(Disposition.FAILED)

    with pytest.raises(BadInput):
        client_of(bench).retry(job_id, reason="x", metadata=metadata)

    assert bench.state(job_id) is JobState.FAILED


# --- dry runs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["retry", "release", "cancel of one that never ran", "cancel of one that runs"])
def test_a_dry_run_gives_the_answer_and_changes_nothing(bench: Bench, name: str) -> None:
    state, _ = REPEATED[name]
    job_id = STATES[state](bench)
    before = (bench.job(job_id), bench.journal(job_id))
    client = client_of(bench)
    verb = getattr(client, name.split(maxsplit=1)[0])

    dry = verb(job_id, reason="x", dry_run=True)
    unchanged = (bench.job(job_id), bench.journal(job_id))
    real = verb(job_id, reason="x")

    assert unchanged == before
    assert dry is real


def test_a_dry_run_is_refused_where_the_action_would_be(bench: Bench) -> None:
    client = client_of(bench)
    running = bench.running().job.job_id

    with pytest.raises(InvalidStateTransitionError):
        client.retry(running, reason="x", dry_run=True)


# --- another time, place or rank -------------------------------------------------------------------------------


def test_a_job_is_rescheduled_and_the_journal_says_from_what_to_what(bench: Bench) -> None:
    job_id = bench.submit(queue="slow", priority=1)
    later = bench.clock() + 60_000

    bench.store.reschedule(job_id, actor=OPERATOR, reason="night", not_before=later, priority=7, queue="fast")

    job = bench.job(job_id)
    assert (job.state, job.hold, job.not_before, job.priority, job.queue) == ("pending", "until", later, 7, "fast")
    entry = bench.journal(job_id)[-1]
    assert (entry.job_from, entry.job_to, entry.actor, entry.reason) == (
        "pending", "pending", OPERATOR, "rescheduled: night",
    )  # fmt: skip
    assert msgspec.json.decode(entry.metadata) == {
        "rescheduled": {"not_before": [0, later], "priority": [1, 7], "queue": ["slow", "fast"]}
    }
    assert bench.claim() == []
    bench.clock.advance(60)
    assert bench.take().job.queue == "fast"
    bench.assert_sound()


def test_a_job_that_has_run_may_go_on_in_another_queue(bench: Bench) -> None:
    """Its executions stay where they were; the check knows of both places."""
    claim = bench.running(queue="slow")
    bench.apply(give_back(claim))
    bench.store.reschedule(claim.job.job_id, actor=OPERATOR, reason="x", queue="fast")
    bench.take()

    assert [each.queue for each in bench.store.executions(claim.job.job_id)] == ["slow", "fast"]
    bench.assert_sound()
    assert [each for each in check(bench.store, deep=True) if each.severity is Severity.ERROR] == []


@pytest.mark.parametrize("column", ["queue", "priority"])
def test_nobody_but_an_operator_gives_a_job_another_place(backend: Backend, bench: Bench, column: str) -> None:
    job_id = bench.submit(queue="slow")
    bench.submit(queue="fast")
    value = "'fast'" if column == "queue" else "7"

    with pytest.raises(Exception, match="holdfast: "):
        backend.execute(f"UPDATE jobs SET {column} = {value} WHERE job_id = '{job_id}'")

    assert (bench.job(job_id).queue, bench.job(job_id).priority) == ("slow", 0)


def test_a_job_that_was_to_wait_may_be_started_at_once(bench: Bench) -> None:
    job_id = bench.submit(not_before=bench.clock() + 3_600_000)

    bench.store.reschedule(job_id, actor=OPERATOR, reason="now", not_before=0)

    assert bench.take().job.job_id == job_id


def test_a_job_that_waits_for_another_goes_on_waiting_and_then_for_its_time(bench: Bench) -> None:
    first = bench.submit()
    second = bench.submit(run_after=first)
    bench.store.reschedule(second, actor=OPERATOR, reason="later", not_before=bench.clock() + 60_000)

    assert (bench.job(second).hold, bench.job(second).waits_for) == ("after", first)
    assert [claim.job.job_id for claim in bench.claim()] == [first]


def test_a_job_that_is_being_cancelled_is_not_rescheduled(bench: Bench) -> None:
    claim = bench.running()
    bench.apply(give_back(claim))
    bench.store.cancel(claim.job.job_id, actor=OPERATOR, reason="x")

    with pytest.raises(InvalidStateTransitionError) as refused:
        bench.store.reschedule(claim.job.job_id, actor=OPERATOR, reason="x", priority=9)

    assert "being cancelled" in str(refused.value.hint)


# --- queues --------------------------------------------------------------------------------------------------


def history(bench: Bench) -> list[tuple[str, str, str | None, str | None, str]]:
    events = bench.store.queue_history("q")
    return [(each.actor, each.action, each.before, each.after, each.reason) for each in reversed(events)]


def test_changes_of_a_queue_are_on_record_once_each(bench: Bench) -> None:
    bench.submit(queue="q")
    bench.store.set_queue("q", max_running=5, actor=None)
    for _ in range(2):
        bench.store.pause_queue("q", actor="alice", reason="maintenance")
        bench.store.pause_queue("q", actor="bob", reason="lunch")
    bench.store.resume_queue("q", actor="bob", reason="done", metadata={"ticket": "OPS-1"})
    bench.store.resume_queue("q", actor="bob", reason="done")
    bench.store.set_queue("q", max_running=2, actor="bob", reason="less")
    bench.store.set_queue("q", max_running=2, actor="alice", reason="less")
    bench.store.set_queue("q", max_running=9, actor=None)

    assert history(bench) == [
        ("application", "limit", "none", "5", ""),
        ("alice", "pause", "open", "paused", "maintenance"),
        ("bob", "resume", "paused", "open", "done"),
        ("bob", "limit", "5", "2", "less"),
    ]
    assert msgspec.json.decode(bench.store.queue_history("q")[1].metadata) == {"ticket": "OPS-1"}
    assert [each.seq for each in bench.store.queue_history("q", limit=2)] == [4, 3]


def test_who_paused_a_queue_first_stays_on_record(bench: Bench) -> None:
    bench.submit(queue="q")
    bench.store.pause_queue("q", actor="alice", reason="maintenance")
    bench.store.pause_queue("q", actor="bob", reason="lunch")

    [queue] = [each for each in bench.store.queues() if each.name == "q"]
    assert (queue.paused_by, queue.paused_reason) == ("alice", "maintenance")


def test_the_history_of_a_queue_does_not_change(backend: Backend, bench: Bench) -> None:
    bench.submit(queue="q")
    bench.store.pause_queue("q", actor="alice", reason="maintenance")
    for statement in ("UPDATE queue_events SET actor = 'nobody'", "DELETE FROM queue_events"):
        with pytest.raises(Exception, match="append-only"):
            backend.execute(statement)

    assert history(bench) == [("alice", "pause", "open", "paused", "maintenance")]


def test_a_queue_that_is_not_there_has_no_history(bench: Bench) -> None:
    assert bench.store.queue_history("nowhere") == []
    with pytest.raises(QueueNotFoundError):
        bench.store.resume_queue("nowhere", actor=OPERATOR)
