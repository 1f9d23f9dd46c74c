"""Faults of a server, a network and of hosts, with real worker processes: nothing is lost, nothing doubled."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from click.core import ParameterSource

from holdfast import Engine, Flow, JobState, Run, Transaction, fixed
from holdfast.cli.command import CommandSettings
from holdfast.cli.context import opened
from holdfast.cli.worker import StopSignals, wait_until_idle
from holdfast.core.states import ExecutionStatus
from holdfast.errors import StoreBusy, StoreCorrupt, StoreUnavailable
from holdfast.sql_files import load_migrations
from holdfast.store.open import open_store
from holdfast.store.place import postgres_place
from holdfast.store.postgres.connection import OF_EFFECTS
from holdfast.store.postgres.store import PostgresStore, without_password
from tests.integration.fleet_app import Done, Work, fleet_flow, record
from tests.support.backends import PostgresBackend
from tests.support.cutting_proxy import CuttingProxy
from tests.support.fleet import (
    ROOT,
    assert_all_done_once,
    engine_on,
    fleet,
    submit,
    unfinished,
    wait_until_done,
)
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import eventually


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def own_backend(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PostgresBackend]:
    """On a server of its own, which the test may stop; settings as parameters."""
    server = PostgresServer(**getattr(request, "param", {}))
    try:
        server.start()
        yield PostgresBackend(tmp_path, server)
    finally:
        server.close()


OURS = "application_name = 'holdfast'"


def test_connections_killed_while_idle_are_replaced(backend: PostgresBackend) -> None:
    with engine_on(backend) as engine, fleet([backend.place] * 2):
        submit(engine, range(20))
        wait_until_done(engine)
        killed = backend.server.kill_backends(OURS)
        submit(engine, range(20, 40))
        wait_until_done(engine)

        assert killed >= 4
        assert_all_done_once(engine, backend, 40)


def test_connections_killed_in_the_midst_of_steps_lose_nothing(backend: PostgresBackend) -> None:
    with engine_on(backend) as engine, fleet([backend.place] * 2) as workers:
        submit(engine, range(80), seconds=0.02)
        kills = 0
        for _ in range(15):
            time.sleep(0.1)
            kills += backend.server.kill_backends(OURS)
        wait_until_done(engine)

        assert kills > 15
        assert all(worker.process.poll() is None for worker in workers)
        assert_all_done_once(engine, backend, 80)


@pytest.mark.timeout(400)
def test_a_connection_cut_during_commit_is_followed_by_a_look_for_evidence(
    backend: PostgresBackend, rng: random.Random
) -> None:
    proxy = CuttingProxy(backend.server.port, rng)
    place = backend.place_at(backend.server.url_of("postgres", port=proxy.port))
    with engine_on(backend) as engine, fleet([place] * 2) as workers:
        proxy.chance = 0.3
        count = 0
        while proxy.before < 5 or proxy.after < 5:
            # A cut may cost its worker seconds, so that work is added only as it is done.
            if unfinished(engine) < 12:
                submit(engine, range(count, count + 3))
                count += 3
            time.sleep(0.1)
        proxy.chance = 0.0
        wait_until_done(engine, 120)
        proxy.close()
        print(f"{proxy.before} cut before COMMIT reached the server, {proxy.after} after")

        assert min(proxy.before, proxy.after) >= 5
        assert all(worker.process.poll() is None for worker in workers)
        assert_all_done_once(engine, backend, count)


def test_a_server_that_is_away_leaves_nobody_idle(own_backend: PostgresBackend) -> None:
    """A worker that is to end when nothing is left to do cannot know that, and does not end."""
    with engine_on(own_backend) as engine, StopSignals() as signals, engine.worker() as worker:
        job_id = engine.submit(fleet_flow, Work(1), delay=1.0)
        own_backend.server.stop()
        waiter = threading.Thread(
            target=wait_until_idle, args=(engine.store, [fleet_flow.name], worker, signals), daemon=True
        )
        waiter.start()
        waiter.join(3)
        ended_early = not waiter.is_alive()
        own_backend.server.start()
        waiter.join(40)

        assert not ended_early
        assert not waiter.is_alive()
        assert engine.store.job(job_id).state is JobState.SUCCEEDED


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_a_server_that_is_restarted_finds_its_workers_waiting(own_backend: PostgresBackend, crash: bool) -> None:
    server = own_backend.server
    with engine_on(own_backend) as engine, fleet([own_backend.place] * 2) as workers:
        submit(engine, range(60), seconds=0.05)
        time.sleep(0.3)
        server.kill() if crash else server.stop()
        time.sleep(1.0)
        server.start()
        wait_until_done(engine)

        assert all(worker.process.poll() is None for worker in workers)
        assert_all_done_once(engine, own_backend, 60)


def test_a_worker_that_was_frozen_past_its_lease_can_write_nothing(backend: PostgresBackend, tmp_path: Path) -> None:
    log = str(tmp_path / "log")
    with engine_on(backend) as engine, fleet([backend.place], lease=1.5, concurrency=4) as [frozen]:
        [job_id] = submit(engine, range(1), seconds=1.0, log=log)
        while not Path(log).exists():
            time.sleep(0.01)
        frozen.freeze()
        with fleet([backend.place], lease=1.5) as [other]:
            wait_until_done(engine)
            before = list(engine.store.journal(job_id))
            frozen.thaw()
            time.sleep(3.0)
            after = list(engine.store.journal(job_id))
            executions = engine.store.executions(job_id)

            assert [execution.status for execution in executions] == [ExecutionStatus.ABORTED, ExecutionStatus.DONE]
            assert [execution.lease_owner for execution in executions] == [frozen.worker_id, other.worker_id]
            assert after == before
            assert [number for number, exec_id in backend.query("SELECT * FROM effects")] == [0]
            assert_all_done_once(engine, backend, 1)
        # It is a worker again like any other.
        submit(engine, range(1, 5))
        wait_until_done(engine)
        assert_all_done_once(engine, backend, 5)


def test_workers_that_race_for_one_job_run_it_once(backend: PostgresBackend) -> None:
    with engine_on(backend) as engine, fleet([backend.place] * 3):
        for number in range(60):
            submit(engine, range(number, number + 1))
        wait_until_done(engine)

        assert {job.attempt for job in engine.store.jobs(limit=100)} == {1}
        assert_all_done_once(engine, backend, 60)


def test_hosts_whose_clocks_are_an_hour_off_do_not_matter(backend: PostgresBackend) -> None:
    """Leases of two seconds, hours apart by their hosts' clocks: only the server's clock judges them."""
    with engine_on(backend) as engine, fleet([backend.place] * 3, clock_errors=[3600, -3600, 0], lease=2.0):
        submit(engine, range(30), seconds=0.2)
        later = engine.submit(fleet_flow, Work(30), delay=3.0)
        wait_until_done(engine)
        [first] = engine.store.executions(later)

        assert first.started_at - engine.store.job(later).created_at >= 2900
        assert {job.attempt for job in engine.store.jobs(limit=100)} == {1}
        assert_all_done_once(engine, backend, 31)


def test_a_pool_of_one_connection_is_enough_to_go_on(backend: PostgresBackend) -> None:
    place = f"{backend.place}&holdfast_connections=1"
    with engine_on(backend) as engine, fleet([place] * 2, concurrency=16):
        submit(engine, range(80), seconds=0.005)
        wait_until_done(engine)

        assert_all_done_once(engine, backend, 80)


def test_an_exhausted_pool_is_said_to_be_busy_and_recovers(backend: PostgresBackend) -> None:
    store = PostgresStore(backend.server.url, schema=backend.schema, connections=1, timeout=0.2)
    with store.reading(), pytest.raises(StoreBusy):
        store.jobs()

    assert store.jobs() == []
    store.close()


@pytest.mark.parametrize(
    "own_backend", [{"max_connections": "10", "superuser_reserved_connections": "0"}], indirect=True
)
def test_a_server_out_of_connections_is_asked_again(own_backend: PostgresBackend) -> None:
    """Three workers and a client want more connections than there are; whoever gets none waits."""
    with engine_on(own_backend) as engine:
        with fleet([own_backend.place] * 3, concurrency=8) as workers:
            submit(engine, range(80), seconds=0.01)
            wait_until_done(engine, 90)

            assert all(worker.process.poll() is None for worker in workers)
        eventually(lambda: _has_room(own_backend), "the server has connections again")
        assert_all_done_once(engine, own_backend, 80)


def _has_room(backend: PostgresBackend) -> bool:
    try:
        return bool(backend.query("SELECT 1"))
    except psycopg.OperationalError:
        return False


@pytest.mark.parametrize("limit, processes", [(1, 1), (3, 2)])
def test_the_limit_of_a_queue_is_exact_across_processes(
    backend: PostgresBackend, tmp_path: Path, limit: int, processes: int
) -> None:
    """A worker may run two at a time: three are run by at least two, one may always be run by the same."""
    log = tmp_path / "log"
    with engine_on(backend) as engine:
        engine.queue("fleet", limit=limit)
        submit(engine, range(limit), log=str(log), together=limit)
        submit(engine, range(limit, 30), seconds=0.05, log=str(log))
        with fleet([backend.place] * 4, concurrency=2):
            wait_until_done(engine)
        assert_all_done_once(engine, backend, 30)
    running: set[str] = set()
    most = 0
    pids = set()
    for line in sorted(log.read_text().splitlines(), key=lambda line: int(line.split()[2])):
        what, number, _, pid = line.split()
        running.add(number) if what == "start" else running.discard(number)
        most = max(most, len(running))
        pids.add(pid)

    assert most == limit
    assert len(pids) >= processes


def test_eight_processes_that_start_at_once_migrate_once(backend: PostgresBackend) -> None:
    script = "import sys; from holdfast.store.open import open_store; print(open_store(sys.argv[1]).jobs())"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, backend.place],
            env={"PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(8)
    ]
    answers = [process.communicate()[0] for process in processes]

    assert answers == ["[]\n"] * 8
    versions = [(migration.version,) for migration in load_migrations("holdfast.store", "postgres")]
    assert backend.query("SELECT version FROM holdfast_migrations ORDER BY version") == versions
    assert list(backend.open(None).integrity(deep=True)) == []


def test_the_same_key_submitted_from_many_sides_at_once_is_one_job(backend: PostgresBackend) -> None:
    answers: list[str] = []
    stores = [Engine.open(backend.place, flows=[fleet_flow]) for _ in range(4)]

    def submit_keys(engine: Engine) -> None:
        ids = (engine.submit(fleet_flow, Work(number), key=f"k{number}") for number in range(25))
        answers.extend(ids)

    threads = [threading.Thread(target=submit_keys, args=(engine,)) for engine in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in stores:
        engine.close()

    assert len(answers) == 100
    assert len(set(answers)) == 25


# --- waking up ---------------------------------------------------------------------------------------------


def test_a_submit_wakes_a_worker_in_another_process_at_once(backend: PostgresBackend) -> None:
    """The slow look comes once in 60 seconds: only the notification can be in time."""
    with engine_on(backend) as engine, fleet([backend.place] * 2, recovery_interval=60.0):
        took = []
        for number in range(5):
            time.sleep(0.3)
            began = time.monotonic()
            [job_id] = submit(engine, range(number, number + 1))
            engine.wait(job_id, timeout=30)
            took.append(time.monotonic() - began)
        print("submit to success:", ", ".join(f"{1000 * each:.0f} ms" for each in took))

        assert max(took) < 5.0
        assert_all_done_once(engine, backend, 5)


def test_a_lost_notification_is_made_up_for_by_the_slow_look(backend: PostgresBackend) -> None:
    with engine_on(backend) as engine, fleet([backend.place] * 2, recovery_interval=1.0):
        engine.store._notify = lambda _connection: None  # type: ignore[attr-defined]
        submit(engine, range(3))
        wait_until_done(engine, 20)

        assert_all_done_once(engine, backend, 3)


# --- the parts ---------------------------------------------------------------------------------------------


def test_a_claim_whose_answer_was_lost_is_found_by_the_next_one(backend: PostgresBackend, rng: random.Random) -> None:
    """Until its lease has run out nobody else could take it over."""
    proxy = CuttingProxy(backend.server.port, rng)
    store = open_store(backend.place_at(backend.server.url_of("postgres", port=proxy.port)))
    with engine_on(backend) as engine:
        submit(engine, range(3))
        flows = {"fleet": fleet_flow.fingerprint}
        lost = 0
        claims = []
        while proxy.after == 0:
            submit(engine, range(3, 4))
            proxy.chance = 1.0
            with pytest.raises(StoreUnavailable):
                store.claim(worker_id="w:1:1:b:1:n", flows=flows, limit=10, lease_ms=60_000)
            lost += 1
            proxy.chance = 0.0
            held = len(engine.store.under_way())
            claims += store.claim(worker_id="w:1:1:b:1:n", flows=flows, limit=10, lease_ms=60_000)

            assert len(claims) == len(engine.store.under_way()) >= held
    proxy.close()
    store.close()

    assert lost
    assert len({claim.exec_id for claim in claims}) == len(claims)


@pytest.mark.parametrize("then", ["returns", "writes", "raises"])
def test_a_commit_step_that_keeps_the_server_waiting_has_failed(
    backend: PostgresBackend, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The server ends such a transaction: tried again for ever, it would never let the others of its group through."""
    monkeypatch.setattr("holdfast.store.postgres.store.OF_EFFECTS", OF_EFFECTS._replace(idle=0.2))

    def dawdle(run: Run[Work, Done], tx: Transaction) -> None:
        time.sleep(0.6)
        if then == "writes":
            record(run, tx)
        if then == "raises":
            raise ValueError("no")

    slow = Flow("slow", request=Work, response=Done).commit("dawdle", dawdle, retry=fixed(1))
    quick = Flow("quick", request=Work, response=Done).commit("record", record, retry=fixed(1))
    with engine_on(backend) as engine:
        engine.register(slow)
        engine.register(quick)
        with engine.worker():
            jobs = [engine.submit(slow, Work(9)), *[engine.submit(quick, Work(n)) for n in range(5)]]
            results = [engine.wait(job_id, timeout=60) for job_id in jobs]

        assert [result.state for result in results] == [JobState.QUARANTINED, *[JobState.SUCCEEDED] * 5]
        assert "dawdle failed 2 time(s)" in (results[0].reason or "")
        assert sorted(backend.query("SELECT number FROM effects")) == [(n,) for n in range(5)]


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://me:secret@db.example:5432/x", "postgresql://me@db.example:5432/x"),
        ("postgresql://me:se/cret@db.example/x", "postgresql://me@db.example/x"),
        ("postgresql://db/x?user=me&password=secret&sslmode=require", "postgresql://db/x?user=me&sslmode=require"),
        ("postgresql://db/x?pass%77ord=secret", "postgresql://db/x"),
        ("postgresql://db/x?sslkey=me.key&sslpassword=secret", "postgresql://db/x?sslkey=me.key"),
        ("postgresql://me@db/x?sslmode=require", "postgresql://me@db/x?sslmode=require"),
        ("postgresql:///x?host=/run/postgresql", "postgresql:///x?host=/run/postgresql"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_a_password_is_not_shown_with_a_row_that_cannot_be_understood(backend: PostgresBackend) -> None:
    settings = CommandSettings()
    settings.take("store", f"{backend.place}&password=secret", ParameterSource.COMMANDLINE)
    with pytest.raises(StoreCorrupt, match="cannot be understood") as caught, opened(settings):
        raise msgspec.ValidationError("not a number")

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("of_the_images", [False, True], ids=["engine", "images"])
def test_a_url_reaches_the_server_as_it_was_written(backend: PostgresBackend, of_the_images: bool) -> None:
    """Without a host of its own, as for a local socket, and with a plus sign, which is one."""
    port = backend.server.port
    url = f"postgresql:///postgres?host=127.0.0.1&port={port}&user=postgres&options=-cmy.word%3Da+b"
    place = f"{url}&holdfast_schema={backend.schema}"
    store = open_store(place)
    assert isinstance(store, PostgresStore)
    store.close()
    conninfo = postgres_place(place).url if of_the_images else store._conninfo
    with psycopg.connect(conninfo) as connection:
        word = connection.execute("SHOW my.word").fetchone()

    assert word == ("a+b",)
