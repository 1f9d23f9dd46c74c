"""A connection that hangs is noticed by whoever waits on it, and what nobody can record is left to others."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.errors import StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.postgres.connection import OF_CLIENTS, OF_EFFECTS, OF_READS, OF_WORKERS
from holdfast.store.protocol import Store
from tests.integration.fleet_app import Work, fleet_flow
from tests.support.backends import PostgresBackend
from tests.support.cutting_proxy import COMMIT
from tests.support.fleet import assert_all_done_once, engine_on, fleet, submit, wait_until_done
from tests.support.hanging_proxy import HangingProxy
from tests.support.waiting import eventually

ANY = re.compile(rb"")
STORE = "holdfast.store.postgres.store"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(tmp_path)
    yield backend
    backend.close()


@pytest.fixture
def proxy(backend: PostgresBackend) -> Iterator[HangingProxy]:
    proxy = HangingProxy(backend.server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same relations between the limits, on the scale of a test."""
    monkeypatch.setattr("holdfast.store.postgres.connection.ANSWER_MARGIN", 1.0)
    monkeypatch.setattr(f"{STORE}.GREETING", 2.0)
    monkeypatch.setattr("holdfast.store.postgres.connection.GREETING", 2.0)
    monkeypatch.setattr("holdfast.store.postgres.connection.HEARTBEAT", 1.0)
    for name, limits in {"OF_WORKERS": OF_WORKERS, "OF_CLIENTS": OF_CLIENTS, "OF_READS": OF_READS}.items():
        monkeypatch.setattr(f"{STORE}.{name}", limits._replace(statement=2.0))


def place_through(backend: PostgresBackend, proxy: HangingProxy) -> str:
    return f"{backend.place_at(backend.server.url_of('postgres', port=proxy.port))}&sslmode=disable&gssencmode=disable"


def is_done(engine: Engine, job_id: str) -> bool:
    return engine.store.job(job_id).state is JobState.SUCCEEDED


@pytest.mark.usefixtures("short_limits")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("delivered", [False, True])
def test_a_worker_gives_hung_connections_up_and_goes_on(
    backend: PostgresBackend, proxy: HangingProxy, delivered: bool
) -> None:
    """Whichever of its transactions it was: a claim, a group of writes, a renewal, a commit with its effect."""
    count = 0
    with ExitStack() as stack:
        engine = stack.enter_context(engine_on(backend))
        hanging = stack.enter_context(Engine.open(place_through(backend, proxy), flows=[fleet_flow]))
        worker = stack.enter_context(hanging.worker(concurrency=8, lease=4, recovery_interval=0.5))
        for _ in range(6):
            proxy.hang_at(COMMIT, delivered=delivered)
            submit(engine, range(count, count + 6), seconds=0.01)
            count += 6
            eventually(proxy.hung.is_set, "no connection was hung", within=60)
            wait_until_done(engine, 120)

        assert worker.failure is None
        assert proxy.given_up.is_set()
        assert_all_done_once(engine, backend, count)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.timeout(300)
def test_a_worker_all_of_whose_connections_hang_makes_new_ones(backend: PostgresBackend, proxy: HangingProxy) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(engine_on(backend))
        hanging = stack.enter_context(Engine.open(place_through(backend, proxy), flows=[fleet_flow]))
        worker = stack.enter_context(hanging.worker(concurrency=8, lease=4, recovery_interval=0.5))
        submit(engine, range(8), seconds=0.3)
        eventually(lambda: worker.active, "nothing was claimed", within=60)
        proxy.hang_all()
        submit(engine, range(8, 16))
        wait_until_done(engine, 120)

        assert worker.failure is None
        assert_all_done_once(engine, backend, 16)


@pytest.mark.timeout(300)
def test_a_healthy_worker_takes_over_what_another_cannot_record(
    backend: PostgresBackend, proxy: HangingProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For as long as the connection hangs its worker renews no lease under which nobody works, and claims nothing."""
    monkeypatch.setattr(f"{STORE}.OF_WORKERS", OF_WORKERS._replace(statement=30.0))
    group = re.compile(rb'"(a|b|record)"')  # the names of steps are said by nobody else
    caplog.set_level(logging.WARNING, "holdfast.leases")
    with ExitStack() as stack:
        engine = stack.enter_context(engine_on(backend))
        hanging = stack.enter_context(Engine.open(place_through(backend, proxy), flows=[fleet_flow]))
        worker = stack.enter_context(hanging.worker(concurrency=8, lease=2, recovery_interval=0.5, stop_grace=0.1))
        submit(engine, range(8))
        wait_until_done(engine, 60)
        proxy.hang_at(group, delivered=False)
        submit(engine, range(8, 16), seconds=0.2)
        eventually(proxy.hung.is_set, "no connection was hung", within=60)
        with fleet([backend.place]):
            later = [engine.submit(fleet_flow, Work(number)) for number in range(16, 24)]
            eventually(lambda: all(is_done(engine, job) for job in later), "no later job was run", within=120)
            kept_back = proxy.given_up.is_set()
            # What the hung transaction has locked is free when it is given up, and ended on the server.
            wait_until_done(engine, 120)

        assert not kept_back
        assert worker.failure is None
        assert "not renewed" in caplog.text
        assert_all_done_once(engine, backend, 24)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("look", [lambda store: store.counts(), lambda store: list(store.integrity(deep=False))])
def test_a_read_over_a_hung_connection_fails_instead_of_waiting(
    backend: PostgresBackend, proxy: HangingProxy, look: Callable[[Store], object]
) -> None:
    store = open_store(place_through(backend, proxy))
    store.counts()
    proxy.hang_at(ANY, delivered=True)
    answers: list[object] = []

    def read() -> None:
        try:
            answers.append(look(store))
        except StoreUnavailable as error:
            answers.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(60)

    assert proxy.hung.is_set()
    assert answers
    assert store.counts() == {}
    store.close()


@pytest.mark.usefixtures("short_limits")
def test_a_listener_whose_connection_hangs_listens_again(backend: PostgresBackend, proxy: HangingProxy) -> None:
    through = open_store(place_through(backend, proxy))
    listener = through.listen()
    proxy.hang_all()
    deadline = time.monotonic() + 60
    while not proxy.given_up.is_set() and time.monotonic() < deadline:
        listener.wait(0.2)
    time.sleep(1.2)  # it does not connect again at once
    while listener.wait(0.2):
        pass
    with Engine.open(backend.place, flows=[fleet_flow]) as engine:
        engine.submit(fleet_flow, Work(1))
        heard = listener.wait(30)

        assert proxy.given_up.is_set()
        assert heard
        assert engine.store.counts() == {("fleet", JobState.PENDING): 1}
    listener.close()
    through.close()


def test_the_limits_leave_the_server_time_to_speak_first() -> None:
    """What the server ends by itself is told with its reason; a connection is given up only if nobody says anything."""
    for limits in (OF_WORKERS, OF_CLIENTS, OF_READS, OF_EFFECTS):
        assert limits.lock < limits.statement < limits.answer
