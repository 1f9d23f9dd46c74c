"""Starting: a worker waits for a database that cannot be used just now, and says so; a wrong place is told at once."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Engine, JobState
from holdfast.errors import StoreError, StoreReadOnly, StoreUnavailable
from holdfast.store.commit_step import is_passing
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import PostgresBackend
from tests.support.flows import EFFECTS, Ask, AskFlow, flow_of, note
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
APP = "from tests.integration.test_starting import quick_flow\nflow = quick_flow()\n"


def quick_flow() -> AskFlow:
    return flow_of(note("work"), "quick")


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Held as a process holds it that was frozen in a transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def command(place: str, directory: Path) -> Iterator[subprocess.Popen[str]]:
    """`holdfast worker` of the quick flow; its log is in the file `log`."""
    directory.mkdir(exist_ok=True)
    (directory / "quick_app.py").write_text(APP)
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
    where = "--store" if "://" in place else "--state"
    arguments = [sys.executable, "-m", "holdfast.cli", where, place, "--app", "quick_app:flow", "worker"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(arguments, cwd=directory, env=environment, stderr=log, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)


def says(directory: Path, words: str) -> Callable[[], bool]:
    return lambda: words in (directory / "log").read_text()


def test_a_worker_in_this_process_waits_for_a_lock_that_somebody_holds(
    open_engine: OpenEngine, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = quick_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with write_lock(state / "holdfast.db"):
        context = engine.worker(**QUICK)
        worker = context.__enter__()
        waited = not worker.is_ready
    result = engine.wait(job_id, timeout=PATIENCE)
    ready = worker.is_ready
    context.__exit__(None, None, None)

    assert waited
    assert ready
    assert result.state is JobState.SUCCEEDED
    assert "the database cannot be used yet" in caplog.text


def test_a_worker_that_waits_for_the_database_can_be_stopped(open_engine: OpenEngine, state: Path) -> None:
    engine = open_engine(quick_flow())
    with write_lock(state / "holdfast.db"), engine.worker(**QUICK) as worker:
        clean = worker.stop()
    assert clean
    assert list((state / "holdfast.db.wake").iterdir()) == []


def test_a_worker_that_is_stopped_before_it_has_started_does_not_start(open_engine: OpenEngine) -> None:
    flow = quick_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        pass
    again = type(worker)(engine.store, engine.flows, worker._settings, worker.telemetry)
    stopped = again.stop()
    before = engine.store.job(job_id).attempt
    again.start()
    time.sleep(0.3)

    assert stopped
    assert engine.store.job(job_id).attempt == before
    assert engine.store.workers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_waits_for_a_lock_and_can_be_stopped_meanwhile(
    open_engine: OpenEngine, state: Path, tmp_path: Path, number: signal.Signals
) -> None:
    open_engine(quick_flow())
    with write_lock(state / "holdfast.db"), command(str(state), tmp_path / "app") as process:
        eventually(says(tmp_path / "app", "the database cannot be used yet"), within=60)
        process.send_signal(number)
        code = process.wait(60)

    assert code == 0


def test_the_command_begins_when_the_lock_is_free(open_engine: OpenEngine, state: Path, tmp_path: Path) -> None:
    flow = quick_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with command(str(state), tmp_path / "app") as process:
        with write_lock(state / "holdfast.db"):
            eventually(says(tmp_path / "app", "cannot"), within=60)
        result = engine.wait(job_id, timeout=60)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)

    assert (result.state, code) == (JobState.SUCCEEDED, 0)


def test_the_command_waits_for_a_server_that_is_away(tmp_path: Path) -> None:
    server = PostgresServer()
    server.start()
    home = PostgresBackend(tmp_path, server)
    home.execute(f"SET search_path TO {home.user_schema}; {EFFECTS}")
    flow = quick_flow()
    try:
        with Engine.open(home.place, flows=[flow]) as engine:
            job_id = engine.submit(flow, Ask())
        server.stop()
        with command(home.place, tmp_path / "app") as process:
            eventually(says(tmp_path / "app", "the database cannot be used yet"), within=60)
            server.start()
            with Engine.open(home.place, flows=[flow]) as engine:
                result = engine.wait(job_id, timeout=60)
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    finally:
        server.close()

    assert (result.state, code) == (JobState.SUCCEEDED, 0)


def test_a_worker_waits_for_descriptors(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flow = quick_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    left = [2]
    listen = engine.store.listen

    def without_descriptors() -> Any:
        if threading.current_thread() is not threading.main_thread() or left[0] > 1:
            left[0] -= 1
            if left[0] >= 0:
                raise OSError(errno.EMFILE, "Too many open files")
        return listen()

    monkeypatch.setattr(engine.store, "listen", without_descriptors)
    with caplog.at_level(logging.WARNING), engine.worker(**QUICK) as worker:
        eventually(lambda: worker.is_ready)
        result = engine.wait(job_id, timeout=PATIENCE)

    assert result.state is JobState.SUCCEEDED
    assert "Too many open files" in caplog.text


def test_what_waiting_cannot_mend_is_not_waited_for() -> None:
    no_descriptors = StoreReadOnly("cannot open")
    no_descriptors.__cause__ = OSError(errno.EMFILE, "Too many open files")

    assert is_passing(StoreUnavailable("away"))
    assert is_passing(no_descriptors)
    assert not is_passing(StoreReadOnly("not yours"))
    assert not is_passing(StoreError("strange"))
    assert not is_passing(ValueError("a bug"))


class _Asking(sqlite3.Connection):
    """A connection whose first question about a new database is followed by another process that makes it."""

    makes: Callable[[], None] | None = None

    def execute(self, sql: str, *parameters: Any) -> Any:
        answer = super().execute(sql, *parameters)
        makes, asked = _Asking.makes, "application_id" in sql or "sqlite_master" in sql
        if makes is None or not asked:
            return answer
        _Asking.makes = None
        row = answer.fetchone()
        makes()
        return super().execute(f"SELECT {row[0]}")  # the answer that was given before


def test_a_database_that_another_makes_at_this_moment_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *words, **named: connect(*words, **{**named, "factory": _Asking}))
    monkeypatch.setattr(_Asking, "makes", lambda: Engine.open(tmp_path, flows=[]).close())
    with Engine.open(tmp_path, flows=[]) as engine:
        found = list(engine.check())

    assert _Asking.makes is None, "it was made in between"
    assert found == []
