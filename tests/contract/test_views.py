"""Views: what a page, an API and a terminal show of a store."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast import Client, Flow
from holdfast.core.records import ErrorRecord
from holdfast.core.states import Disposition, JobState
from holdfast.errors import BadInput, JobNotFoundError, UnknownFlowError
from holdfast.store.rows import new_ulid
from holdfast.views import BoundedCount, JobFilter, JobRow, Views
from tests.support.bench import (
    FINGERPRINT,
    OLD,
    OTHER,
    WORKER,
    Bench,
    commit,
    definition_of,
    end,
    finish,
    finish_step,
    record_try,
)
from tests.support.flows import Answer, Ask, note

Shown = Sequence[JobRow]


@pytest.fixture
def views(bench: Bench) -> Views:
    return Views(Client(bench.store))


def ids(rows: Shown) -> list[str]:
    return [row.job.job_id for row in rows]


def a_flow() -> Flow[Ask, Answer]:
    """The flow that the jobs of the bench are of."""
    flow = Flow("demo", request=Ask, response=Answer, version="1")
    flow.start("one", note("one"))
    flow.to("two", note("two"))
    flow.commit("three", lambda _run, _tx: Answer())
    return flow


# --- the list ----------------------------------------------------------------------------------------------


def test_pages_go_from_the_newest_to_the_oldest_and_back(bench: Bench, views: Views) -> None:
    jobs = [bench.submit() for _ in range(7)][::-1]

    first = views.jobs(limit=3)
    second = views.jobs(cursor=first.next, limit=3)
    third = views.jobs(cursor=second.next, limit=3)
    back = views.jobs(cursor=third.previous, limit=3)
    start = views.jobs(cursor=back.previous, limit=3)

    assert [ids(page.rows) for page in (first, second, third)] == [jobs[:3], jobs[3:6], jobs[6:]]
    assert (first.previous, third.next) == (None, None)
    assert ids(back.rows) == jobs[3:6]
    assert (ids(start.rows), start.previous) == (jobs[:3], None)
    assert ids(views.jobs(cursor=start.next, limit=3).rows) == jobs[3:6]


def test_jobs_that_come_while_one_turns_pages_move_nothing(bench: Bench, views: Views) -> None:
    jobs = [bench.submit() for _ in range(4)][::-1]
    first = views.jobs(limit=2)
    bench.clock.advance(1)
    bench.submit()

    assert ids(views.jobs(cursor=first.next, limit=2).rows) == jobs[2:]


def test_a_list_shows_the_jobs_of_which_all_is_true(bench: Bench, views: Views) -> None:
    done = bench.succeeded(queue="q", key="order-1")
    failed = bench.running(key="order_2")
    bench.apply(end(failed, error="The disk is 100% full"))
    bench.clock.advance(60)
    running = bench.running(queue="q")
    bench.apply(finish_step(running))
    pending = bench.submit(flow="other", fingerprint=definition_of("1", "other")["fingerprint"])

    def listed(**fields: object) -> list[str]:
        wanted = JobFilter(**fields)  # type: ignore[arg-type]
        found = ids(views.jobs(wanted).rows)
        assert views.count(wanted) == BoundedCount(count=len(found))
        return found

    assert listed() == [pending, running.job.job_id, failed.job.job_id, done]
    assert listed(states=(JobState.SUCCEEDED, JobState.FAILED)) == [failed.job.job_id, done]
    assert listed(states=(JobState.PENDING,)) == [pending]
    assert listed(flow="other") == [pending]
    assert listed(queue="q") == [running.job.job_id, done]
    assert listed(key_prefix="order") == [failed.job.job_id, done]
    assert listed(key_prefix="order_") == [failed.job.job_id]
    assert listed(error_text="DISK is 100% f") == [failed.job.job_id]
    assert listed(error_text="disk_is") == []
    assert listed(older_than=bench.clock()) == [failed.job.job_id, done]
    assert listed(newer_than=bench.clock()) == [pending, running.job.job_id]
    assert listed(step="two") == [running.job.job_id]
    assert listed(step="one") == [pending, failed.job.job_id]
    assert listed(queue="q", states=(JobState.RUNNING,), step="two") == [running.job.job_id]
    assert listed(queue="nobody's") == []
    assert listed(job_ids=(done, pending)) == [pending, done]
    assert listed(job_ids=(done, pending), queue="q") == [done]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "'; DROP TABLE jobs; --", "%", "!"])
def test_a_filter_may_say_anything(bench: Bench, views: Views, text: str) -> None:
    bench.submit()
    wanted = JobFilter(flow=text, queue=text, key_prefix=text, error_text=text, step=text)

    assert views.jobs(wanted).rows == []
    assert len(views.jobs().rows) == 1


@pytest.mark.parametrize("cursor", ["x", "f", "b1", "f" + "Z" * 26 + "0", "é"])
def test_a_cursor_that_nobody_gave_out_is_refused(views: Views, cursor: str) -> None:
    with pytest.raises(BadInput) as refused:
        views.jobs(cursor=cursor)

    assert "begin again" in (refused.value.hint or "")


@pytest.mark.parametrize("limit", [0, -1, 501])
def test_a_page_has_a_size(views: Views, limit: int) -> None:
    with pytest.raises(BadInput):
        views.jobs(limit=limit)


def test_a_row_says_where_its_job_is(bench: Bench, views: Views) -> None:
    running = bench.running()
    bench.apply(finish_step(running))
    bench.apply(record_try(running, 2, position=1, error="not yet"))
    failed = bench.running()
    bench.apply(end(failed, error="no luck"))
    waiting = bench.submit(run_after=running.job.job_id)
    rows = {row.job.job_id: row for row in views.jobs().rows}

    one = rows[running.job.job_id]
    assert (one.step, one.tries, one.worker) == ("two", 2, WORKER)
    ended = rows[failed.job.job_id]
    assert ended.error is not None
    assert (ended.error.message, ended.step) == ("no luck", None)
    assert running.job.job_id in rows[waiting].explanation
    for job_id, row in rows.items():
        assert row.explanation == Client(bench.store).explain(job_id).sentence


def test_a_count_stops_where_it_is_told_to(bench: Bench, views: Views) -> None:
    bench.store.submit([bench.new_job() for _ in range(10_001)], actor="client")

    assert views.count() == BoundedCount(count=10_000, capped=True)
    assert views.count(JobFilter(states=(JobState.PENDING,))) == BoundedCount(count=10_000, capped=True)
    assert views.count(JobFilter(states=(JobState.FAILED,))) == BoundedCount(count=0)


def test_given_jobs_are_shown_in_the_order_in_which_they_are_given(bench: Bench, views: Views) -> None:
    one, two, three = (bench.submit() for _ in range(3))

    assert ids(views.rows([two, new_ulid(1), one, three])) == [two, one, three]
    assert ids(views.rows([])) == []
    with pytest.raises(BadInput):
        views.rows([one] * 501)


# --- one job -----------------------------------------------------------------------------------------------


def test_one_job_is_shown_whole(bench: Bench, views: Views) -> None:
    parent = bench.submit()
    first = bench.take()
    bench.apply(finish_step(first, response='{"a":1}'))
    bench.crash()
    again = bench.take(OTHER)
    bench.apply(finish_step(again, 1, "two", response='{"a":2}'), worker=OTHER)
    shown = views.job(parent)

    assert (shown.job.job_id, shown.request) == (parent, '{"n":1}')
    assert [(one.execution.attempt, [step.step for step in one.steps]) for one in shown.executions] == [
        (1, ["one"]),
        (2, ["two"]),
    ]
    assert [step.response for step in shown.steps] == ['{"a":1}', '{"a":2}']
    assert shown.current is not None
    assert shown.current.step == "three"
    assert shown.head == bench.journal(parent)[-1].hash
    assert shown.entries == len(bench.journal(parent))
    with pytest.raises(JobNotFoundError):
        views.job(new_ulid(1))


# --- flows -------------------------------------------------------------------------------------------------


def test_a_flow_is_a_machine_with_figures(bench: Bench) -> None:
    flow = a_flow()
    views = Views(Client(bench.store, [flow]))
    done = bench.running()
    bench.apply(finish_step(done))
    bench.clock.advance(2)
    bench.apply(finish_step(done, 1, "two"))
    bench.apply(commit(done, position=2), finish(done))
    failed = bench.running()
    bench.apply(end(failed, error="no", position=0))
    bench.submit(**OLD)
    shown = views.flow("demo")
    figures = {one.step: one for one in shown.statistics}

    assert [(node.name, node.kind) for node in shown.steps] == [("one", "step"), ("two", "step"), ("three", "commit")]
    assert (figures["one"].done_last_hour, figures["two"].done_last_minute) == (1, 1)
    assert figures["one"].failed_last_hour == 1
    assert [(edge.source, edge.target, edge.count) for edge in shown.edges] == [("one", "two", 1), ("two", "three", 1)]
    assert (shown.ways_out.succeeded, shown.ways_out.failed) == (1, 1)
    assert [(one.fingerprint, one.version, one.jobs.count) for one in shown.older] == [(OLD["fingerprint"], "0", 1)]
    assert [one.name for one in views.flows()] == ["demo"]
    assert shown.fingerprint == FINGERPRINT
    with pytest.raises(UnknownFlowError):
        views.flow("nobody's")


def test_a_flow_shows_where_jobs_fail_of_what_and_where_they_are_done_already(bench: Bench) -> None:
    views = Views(Client(bench.store, [a_flow()]))
    early = bench.running()
    bench.apply(finish_step(early))
    bench.apply(commit(early, position=1), finish(early))
    for text in ("the disk is full", "the disk is full again"):
        failed = bench.running()
        record = ErrorRecord(type="NoSpace", message=text, step="two")
        bench.apply(end(failed, error=text, failure=record))
        bench.clock.advance(1)
    bench.running()
    bench.crash()
    shown = views.flow("demo")
    figures = {one.step: one for one in shown.statistics}

    assert [(edge.source, edge.target, edge.count) for edge in shown.handoffs] == [("two", "succeeded", 1)]
    assert [(one.type, one.step, one.count, one.message) for one in shown.failures] == [
        ("NoSpace", "two", 2, "the disk is full again")
    ]
    assert (shown.entered, shown.crashes, shown.pending.count) == (4, 1, 1)
    assert sum(figures["one"].histogram) == figures["one"].done_last_hour == 1
    assert shown.p95_ms is not None


def test_a_flow_that_is_not_registered_is_known_by_its_jobs(bench: Bench, views: Views) -> None:
    bench.submit(**OLD)
    bench.clock.advance(1)
    bench.submit()
    shown = views.flow("demo")

    assert (shown.registered, shown.fingerprint) == (False, FINGERPRINT)
    assert [node.name for node in shown.steps] == ["one", "two", "three"]
    assert [one.fingerprint for one in shown.older] == [OLD["fingerprint"]]
    assert views.flow_names() == ["demo"]


# --- the house ---------------------------------------------------------------------------------------------


def test_the_house_shows_queues_workers_and_counts(bench: Bench, views: Views) -> None:
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    bench.running(queue="q")
    bench.store.set_queue("q", max_running=3, actor="operator")
    bench.store.pause_queue("q", actor="operator", reason="inventory")
    bench.submit(queue="q")
    bench.ended(Disposition.QUARANTINED)
    shown = views.overview()

    [queue] = [one for one in shown.queues if one.queue.name == "q"]
    assert (queue.queue.max_running, queue.queue.paused_reason, queue.queue.running) == (3, "inventory", 1)
    assert queue.backlog.ready == 1
    [worker] = shown.workers
    assert (worker.worker.worker_id, worker.leases) == (WORKER, 1)
    assert {state: one.count for state, one in shown.counts.items()} == {
        "pending": 1,
        "running": 1,
        "succeeded": 0,
        "failed": 0,
        "quarantined": 1,
    }
    assert (len(shown.throughput), sum(shown.throughput), shown.throughput[-1]) == (60, 1, 1)


def test_jobs_that_get_nowhere_are_found(bench: Bench, views: Views) -> None:
    stuck = bench.running()
    bench.clock.advance(400)
    slow = views.slow()
    bench.running()
    bench.clock.advance(300)
    stalled = views.slow()

    assert [(one.job_id, one.step, one.stalled) for one in slow] == [(stuck.job.job_id, "one", False)]
    assert [(one.job_id, one.stalled) for one in stalled] == [(stuck.job.job_id, True)]


def test_the_house_counts_what_was_lost_with_a_worker_by_host(bench: Bench, views: Views) -> None:
    claim = bench.running()
    bench.crash()
    again = bench.take(OTHER)
    bench.apply(record_try(again, 1, position=0, error="not yet"), worker=OTHER)
    done = bench.ended(Disposition.QUARANTINED)
    shown = views.overview()

    assert claim.job.job_id == again.job.job_id
    assert shown.crashes == {"host-a": 1}
    assert shown.retrying == 1
    assert shown.last_hour.quarantined == 1
    assert shown.oldest_quarantined_at == bench.store.job(done).updated_at
