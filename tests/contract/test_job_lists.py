"""What a list and a count look at does not grow with the jobs that there are, whatever is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast import Client
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.store import job_lists
from holdfast.store.job_lists import JobFilter
from holdfast.store.postgres.session import PostgresSession
from holdfast.store.protocol import Store
from holdfast.views import BoundedCount, Views
from tests.contract.conftest import BACKENDS
from tests.contract.test_scale import counted
from tests.support.backends import Backend
from tests.support.bench import Bench, end
from tests.support.listed import STEPS, fill

FEW, MANY = 6_000, 24_000
LIMIT = 10

FAILED, PENDING, SUCCEEDED = JobState.FAILED, JobState.PENDING, JobState.SUCCEEDED
FILTERS = {
    "everything": JobFilter(),
    "a state": JobFilter(states=(FAILED,)),
    "what has succeeded": JobFilter(states=(SUCCEEDED,)),
    "several states": JobFilter(states=(SUCCEEDED, FAILED, PENDING)),
    "a flow": JobFilter(flow="mail"),
    "a rare flow": JobFilter(flow="yearly-report"),
    "an unknown flow": JobFilter(flow="x"),
    "a queue": JobFilter(queue="slow"),
    "a rare queue": JobFilter(queue="attic"),
    "a common key": JobFilter(key_prefix="order-"),
    "a rare key": JobFilter(key_prefix="audit-"),
    "an unknown key": JobFilter(key_prefix="x"),
    "a common error": JobFilter(error_text="MIRROR"),
    "a rare error": JobFilter(error_text="moon"),
    "an unknown error of the failed": JobFilter(error_text="x-x", states=(FAILED,)),
    "the first step": JobFilter(step="fetch"),
    "a step that none is in": JobFilter(step="store"),
    "an unknown step": JobFilter(step="x"),
    "old ones": JobFilter(older_than=1),
    "old ones of a common key": JobFilter(older_than=1, key_prefix="order-"),
    "a flow in a queue": JobFilter(flow="mail", queue="slow"),
    "a rare flow that failed": JobFilter(flow="yearly-report", states=(FAILED,)),
    "a rare flow that succeeded": JobFilter(flow="yearly-report", states=(SUCCEEDED,)),
    "a flow that failed": JobFilter(flow="mail", states=(FAILED,)),
    "a key of a flow in a queue": JobFilter(flow="mail", queue="slow", key_prefix="order-"),
}


class _Filled:
    """A store with so many jobs."""

    def __init__(self, backend: Backend, jobs: int) -> None:
        self.store: Store = backend.open(None)
        schema = getattr(backend, "schema", None)
        fill(f"{backend.server.url}?options=-csearch_path%3D{schema}" if schema else str(backend.path), jobs)  # type: ignore[attr-defined]


@contextmanager
def looked_at(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Hundreds of instructions on SQLite; on PostgreSQL the rows that its scans have come across."""
    if not hasattr(store, "_pool"):
        with counted(store) as count:
            yield count
        return
    count = [0]
    run = PostgresSession.run_planned

    def run_twice(session: PostgresSession, sql: str, parameters: Any) -> Any:
        [[plan]] = run(session, f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
        count[0] += _rows_of((plan if isinstance(plan, list) else json.loads(plan))[0]["Plan"])
        return run(session, sql, parameters)

    with monkeypatch.context() as patched:
        patched.setattr(PostgresSession, "run_planned", run_twice)
        yield count


def _rows_of(plan: Any) -> int:
    rows = sum(_rows_of(one) for one in plan.get("Plans", ()))
    if "Scan" in plan["Node Type"] and plan["Node Type"] != "Subquery Scan":
        rows += int((plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"])
    return rows


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the few jobs of a test are many."""
    for name, number in {"LOOK": 40, "FENCE": 80, "FIRST_LOOK": 20}.items():
        monkeypatch.setattr(job_lists, name, number)


@pytest.mark.usefixtures("short_looks")
def test_no_list_and_no_count_looks_at_more_where_there_are_more_jobs(
    backend: Backend, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs: dict[str, list[int]] = {}
    other = BACKENDS[backend.name](tmp_path_factory.mktemp("many"))
    for place, jobs in ((backend, FEW), (other, MANY)):
        store = _Filled(place, jobs).store
        for name, wanted in FILTERS.items():
            for verb in ("list", "count"):
                with looked_at(store, monkeypatch) as count:
                    if verb == "list":
                        store.list_jobs(wanted, limit=LIMIT)
                    else:
                        store.count_jobs(wanted, most=LIMIT * 5)
                costs.setdefault(f"{verb} {name}", []).append(count[0])
    other.close()

    # A planner may sort a few hundred rows rather than read them in order.
    most = 500 if backend.name == "postgres" else 100
    assert {name: each for name, each in costs.items() if each[1] > each[0] + most} == {}


@pytest.mark.usefixtures("short_looks")
def test_whoever_goes_on_where_a_list_stopped_finds_all_that_is_wanted_once(backend: Backend) -> None:
    store = _Filled(backend, 1_200).store
    old = store.jobs(limit=2_000)[1_000].created_at
    filters = {**FILTERS, "old ones": JobFilter(older_than=old), "new ones": JobFilter(newer_than=old, flow="mail")}
    wrong: list[object] = []
    bounded: set[str] = set()
    for name, wanted in filters.items():
        expected = _wanted_of(store, wanted)
        for newest_first in (True, False):
            found, beyond = [], None
            while True:
                page = store.list_jobs(wanted, beyond=beyond, limit=LIMIT, newest_first=newest_first)
                found += [job.job_id for job in page.jobs]
                bounded |= {name} if page.looked else set()
                beyond = page.more
                if beyond is None:
                    break
            if found != (expected if newest_first else expected[::-1]):
                wrong.append((name, newest_first))
        counted = store.count_jobs(wanted, most=2_000)
        if counted.jobs > len(expected) or (counted.looked is None and counted.jobs != len(expected)):
            wrong.append((name, counted))

    assert wrong == []
    assert {"a common error", "a flow in a queue", "a step that none is in"} <= bounded
    assert not bounded & {"everything", "several states", "a rare flow", "a rare key", "a rare flow that failed"}


def _wanted_of(store: Store, wanted: JobFilter) -> list[str]:
    """What is wanted, job by job, newest first."""
    jobs = store.jobs(limit=2_000)
    ids = [job.job_id for job in jobs]
    executions, steps = store.executions_of(ids), store.steps_of(ids)

    def is_wanted(job: JobRecord) -> bool:
        last = executions.get(job.job_id, [None])[-1]
        done = len(steps.get(job.job_id, ()))
        is_settled = job.state is SUCCEEDED
        return (
            (not wanted.states or job.state in wanted.states)
            and (wanted.flow is None or job.flow == wanted.flow)
            and (wanted.queue is None or job.queue == wanted.queue)
            and (not wanted.key_prefix or (job.key or "").startswith(wanted.key_prefix))
            and (
                not wanted.error_text or (not is_settled and wanted.error_text.lower() in ((last and last.error) or ""))
            )
            and (not wanted.step or (not is_settled and STEPS[done : done + 1] == (wanted.step,)))
            and (wanted.older_than is None or job.created_at < wanted.older_than)
            and (wanted.newer_than is None or job.created_at >= wanted.newer_than)
        )

    return [job.job_id for job in jobs if is_wanted(job)]


def test_a_page_says_how_far_it_has_looked_and_goes_on_from_there(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in {"LOOK": 5, "FENCE": 10, "FIRST_LOOK": 2}.items():
        monkeypatch.setattr(job_lists, name, number)
    views = Views(Client(bench.store))
    failed = bench.running()
    bench.apply(end(failed, error="the moon is in the way"))
    for _ in range(12):
        bench.submit()
    wanted = JobFilter(error_text="moon")
    pages = [views.jobs(wanted)]
    while pages[-1].next is not None:
        pages.append(views.jobs(wanted, pages[-1].next))

    assert [[row.job.job_id for row in page.rows] for page in pages] == [[], [], [failed.job.job_id]]
    assert [page.looked for page in pages] == [5, 5, None]
    assert views.count(wanted) == BoundedCount(count=0, capped=True, looked=5)
    assert views.count(JobFilter(states=(FAILED,), error_text="moon")) == BoundedCount(count=1)


@pytest.mark.parametrize("prefix", ["a", "%", "a_", "\U0010ffff", "\ud7ff", "é", "'"])
def test_a_key_begins_as_it_is_written(bench: Bench, prefix: str) -> None:
    keys = ["a", "A", "a_", "ab", "%", "é", "e", "\U0010ffff\U0010ffff", "\ud7ff", "\ue000", "'", "b"]
    for key in keys:
        bench.submit(key=key)

    found = [job.key for job in bench.store.list_jobs(JobFilter(key_prefix=prefix), limit=50).jobs]
    assert sorted(filter(None, found)) == sorted(key for key in keys if key.startswith(prefix))
