"""The roles that docs/how-to/run-a-fleet.md gives are enough for their work, and for nothing else; tried for real."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import psycopg
import pytest

from holdfast import Engine, Flow, JobState
from holdfast.errors import StoreReadOnly
from holdfast.guard import check
from tests.integration.fleet_app import Work, fleet_flow
from tests.support.fleet import EFFECTS, ROOT
from tests.support.postgres_server import PostgresServer

PAGE = ROOT / "docs" / "how-to" / "run-a-fleet.md"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """With the roles of the page, one job of the owner's, and a user's table."""
    by_administrator, by_owner, _ = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    server = PostgresServer()
    try:
        server.start()
        server.execute(by_administrator)
        Engine.open(server.url_of("holdfast_owner")).close()
        with psycopg.connect(server.url_of("holdfast_owner"), autocommit=True) as connection:
            connection.execute(by_owner.encode())
        server.execute(f"{EFFECTS}; GRANT INSERT, SELECT ON effects TO holdfast_worker")
        yield server
    finally:
        server.close()


def test_a_worker_needs_no_more_than_the_page_grants(server: PostgresServer) -> None:
    with Engine.open(server.url_of("holdfast_worker"), flows=[fleet_flow]) as engine:
        engine.queue("fleet", limit=2)
        cancelled = engine.submit(fleet_flow, Work(99), delay=600, key="k")
        engine.cancel(cancelled, reason="not wanted")
        with engine.worker(concurrency=2):
            done = engine.submit(fleet_flow, Work(1))
            state = engine.wait(done, timeout=60).state
        findings = check(engine.store, deep=True)

    assert state is JobState.SUCCEEDED
    assert findings == []


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM holdfast.journal",
        "UPDATE holdfast.journal SET reason = 'x'",
        "TRUNCATE holdfast.journal",
        "INSERT INTO holdfast.pruned VALUES ('x', 'x', 'failed', 1, 1, 'x', 1, 'x')",
        "ALTER TABLE holdfast.journal DISABLE TRIGGER journal_is_append_only",
        "DROP INDEX holdfast.executions_one_commit",
        "CREATE TABLE holdfast.mine (n int)",
        "SET session_replication_role = replica",
        "UPDATE holdfast.holdfast_rules SET definition = ''",
    ],
)
def test_a_worker_cannot_touch_the_rules(server: PostgresServer, statement: str) -> None:
    with (
        psycopg.connect(server.url_of("holdfast_worker"), autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement.encode())


def test_keys_that_last_are_taken_by_workers_and_outlive_what_the_operator_removes(server: PostgresServer) -> None:
    forever: Flow[int, int] = Flow("forever", request=int, response=int, unique="forever").start("a", lambda run: None)
    short: Flow[int, int] = Flow("short", request=int, response=int, unique=0.001).start("a", lambda run: None)
    jobs = []
    with Engine.open(server.url_of("holdfast_worker")) as engine:
        for flow in (forever, short, short):
            jobs.append(engine.submit(flow, 1, key="k"))
            engine.cancel(jobs[-1], reason="enough")
            time.sleep(0.01)
        later = engine.store.now() + 1000
    with Engine.open(server.url_of("holdfast_operator")) as engine:
        pruned = engine.store.prune(before=later, limit=1000, actor="me", dry_run=False)
        again = engine.submit(forever, 1, key="k")

    assert set(jobs) <= set(pruned)
    assert len(set(jobs)) == 3
    assert again == jobs[0]


def test_retention_needs_the_operator(server: PostgresServer) -> None:
    with Engine.open(server.url_of("holdfast_worker"), flows=[fleet_flow]) as engine:
        job_id = engine.submit(fleet_flow, Work(2), delay=600)
        engine.cancel(job_id, reason="not wanted")
        later = engine.store.now() + 1000
        with pytest.raises(StoreReadOnly):
            engine.store.prune(before=later, limit=1000, actor="me", dry_run=False)
    with Engine.open(server.url_of("holdfast_operator")) as engine:
        pruned = engine.store.prune(before=later, limit=1000, actor="me", dry_run=False)

    assert job_id in pruned


def test_a_reader_can_look_and_nothing_else(server: PostgresServer) -> None:
    with Engine.open(server.url_of("holdfast_worker"), flows=[fleet_flow]) as engine:
        job_id = engine.submit(fleet_flow, Work(3), delay=600)
    with Engine.open(server.url_of("holdfast_reader"), flows=[fleet_flow]) as engine:
        code = engine.explain(job_id).code
        findings = check(engine.store, deep=True)
        with pytest.raises(StoreReadOnly):
            engine.submit(fleet_flow, Work(4))
        with pytest.raises(StoreReadOnly):
            engine.cancel(job_id, reason="no")

    assert code
    assert findings == []
