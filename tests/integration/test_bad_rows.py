"""Rows that somebody has spoiled, beside good ones: workers live, the good jobs run, everything can be looked at."""

from __future__ import annotations

import time

import pytest

from holdfast import Engine, JobState
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import Backend
from tests.support.flows import Answer, Ask, AskFlow, note, write_effect
from tests.support.waiting import PATIENCE

pytestmark = [
    pytest.mark.damages_the_database,
    pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True),
]

EDITS = {
    "a done job stored as pending": "UPDATE jobs SET state = 'pending' WHERE job_id = '{done}'",
    "a garbage ending": "UPDATE jobs SET ending = 'garbage' WHERE job_id = '{waiting}'",
    "a request that is not JSON": "UPDATE requests SET request = 'garbage' WHERE job_id = '{waiting}'",
    "no request": "DELETE FROM requests WHERE job_id = '{waiting}'",
    "a definition that is not there": "UPDATE jobs SET fingerprint = 'nowhere' WHERE job_id = '{waiting}'",
    "a garbage definition": "UPDATE definitions SET definition = 'garbage'",
    "a queue that is not there": "UPDATE jobs SET queue = 'nowhere' WHERE job_id = '{waiting}'",
    "no queues at all": "DELETE FROM queues",
    "attempts that never were": "UPDATE jobs SET attempt = 7 WHERE job_id = '{waiting}'",
    "a state without its execution": "UPDATE jobs SET state = 'running' WHERE job_id = '{waiting}'",
    "a worker that is none": "INSERT INTO workers VALUES ('x', 'garbage', 1, 1)",
    "steps of nobody": "DELETE FROM steps WHERE job_id = '{done}'",
}


def flow() -> AskFlow:
    made: AskFlow = AskFlow("small", request=Ask, response=Answer)
    return made.start("a", note("a")).commit("b", write_effect)


def look_at_everything(engine: Engine, *job_ids: str) -> None:
    """Nothing of this may fail whole because of one row."""
    store = engine.store
    store.jobs()
    store.queues()
    store.workers()
    store.under_way()
    store.counts()
    list(store.journal())
    engine.live_workers()
    for job_id in job_ids:
        engine.explain(job_id)
        store.executions(job_id)
        store.steps(job_id)
        store.children(job_id)
        store.running([job_id])
    engine.check(deep=True)


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_one_bad_row_stops_no_worker_and_no_other_job(open_engine: OpenEngine, home: Backend, edit: str) -> None:
    small = flow()
    engine = open_engine(small)
    with engine.worker(**QUICK):
        done = engine.submit(small, Ask())
        assert engine.wait(done, PATIENCE).state is JobState.SUCCEEDED
    waiting = engine.submit(small, Ask())
    with home.shell() as shell:
        put_back = home.without_triggers(shell)
        shell.execute(edit.format(done=done, waiting=waiting))
        put_back()
    engine.close()

    engine = open_engine(small)
    for _ in range(2):
        with engine.worker(**QUICK) as worker:
            good = [engine.submit(small, Ask()) for _ in range(3)]
            states = {engine.wait(job_id, PATIENCE).state for job_id in good}
            assert worker.failure is None
        assert states == {JobState.SUCCEEDED}
    look_at_everything(engine, done, waiting)
    assert len(engine.store.executions(done)) == 1


def test_what_is_set_apart_runs_once_it_is_repaired(
    open_engine: OpenEngine, home: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.verbs.AGAIN_AFTER", 0.5)
    small = flow()
    engine = open_engine(small)
    job_id = engine.submit(small, Ask())

    def behind_the_rules(change: str) -> None:
        with home.shell() as shell:
            put_back = home.without_triggers(shell)
            shell.execute(f"UPDATE jobs SET {change} WHERE job_id = '{job_id}'")
            put_back()

    behind_the_rules("attempt = 7")
    with engine.worker(**QUICK) as worker:
        time.sleep(1)
        apart = engine.store.job(job_id).state
        behind_the_rules("attempt = 0")

        assert engine.wait(job_id, PATIENCE).state is JobState.SUCCEEDED
        assert worker.failure is None
    assert apart is JobState.PENDING
