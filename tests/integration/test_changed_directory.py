"""A relative place is where it was when it was opened, wherever a step goes; and a fork is told to open its own."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.errors import BadInput
from holdfast.store.open import _open_postgres, open_store
from holdfast.store.place import database_path
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Ask, AskRun, Gate, flow_of
from tests.support.waiting import PATIENCE


@pytest.mark.parametrize("place", ["state", "./state", "sqlite:///state", "state/holdfast.db"])
def test_a_step_that_changes_the_directory_does_not_move_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    def step(run: AskRun) -> None:
        os.chdir(elsewhere)
        run.children()

    flow = flow_of(step)
    with Engine.open(place, flows=[flow]) as engine, engine.worker(**QUICK):
        states = [engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE).state for _ in range(2)]
        findings = engine.check()
        engine.store.backup(Path("copy.db"))
        with engine.worker(**QUICK):
            states.append(engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE).state)

    assert states == [JobState.SUCCEEDED] * 3
    assert findings == []
    assert list(elsewhere.iterdir()) == [elsewhere / "copy.db"], "where the caller is, as ever"


def test_a_place_is_absolute_as_soon_as_it_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert database_path("state") == tmp_path / "state" / "holdfast.db"
    assert database_path("sqlite:///a/b.db") == tmp_path / "a" / "b.db"


def test_files_named_in_the_url_of_a_server_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.store.postgres import store

    given: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(store, "PostgresStore", lambda url, **_settings: given.append(url))
    url = "postgresql://host/db?sslrootcert=ca.pem&sslkey=%2Fetc%2Fkey&sslcert="
    _open_postgres(url, synchronous="FULL", clock=None, read_only=False)
    _open_postgres("postgresql://host/db?sslrootcert=system", synchronous="FULL", clock=None, read_only=False)

    root = str(tmp_path).replace("/", "%2F")
    assert f"sslrootcert={root}%2Fca.pem" in given[0] or f"sslrootcert={tmp_path}/ca.pem" in given[0]
    assert "key" in given[0]
    assert "sslrootcert=system" in given[1]


def in_a_child(act: Callable[[], str]) -> str:
    """What this says in a process that was forked here, and has nothing of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            answer = act()
        except BaseException:
            answer = traceback.format_exc()
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as answers:
        return answers.read()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_cannot_use_what_its_parent_has_opened(open_engine: OpenEngine) -> None:
    flow = flow_of(lambda run: None)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())

    def use() -> str:
        said = []
        for act in (lambda: engine.submit(flow, Ask()), lambda: engine.store.job(job_id), engine.check):
            try:
                act()
            except BadInput as error:
                said.append(str(error))
        engine.close()
        return "\n".join(said)

    said = in_a_child(use).splitlines()
    after = engine.store.job(job_id).state

    assert len(said) == 3
    assert all("do not survive a fork" in line for line in said)
    assert after is JobState.PENDING, "the parent goes on as before"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_that_leaves_the_block_of_a_worker_takes_nothing_from_its_parent(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        said = in_a_child(lambda: str(worker.stop()))
        workers = len(engine.store.workers())
        gate.open()
        state = engine.wait(job_id, timeout=PATIENCE).state

    assert said == "False"
    assert workers == 1
    assert state is JobState.SUCCEEDED


def test_a_store_can_be_opened_anew_in_a_fork(state: Path) -> None:
    with Engine.open(state):
        said = in_a_child(lambda: str(len(open_store(state).jobs())))

    assert said == "0"
