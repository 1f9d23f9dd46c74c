"""However often and at whatever moment a worker is stopped: nothing stays running, and no job pays for it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import Engine, Flow, JobState
from tests.integration.conftest import OpenEngine
from tests.support.backends import Backend, PostgresBackend, SqliteBackend
from tests.support.flows import Answer, Ask, AskFlow, AskRun
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SAMPLE, WHOLE = 4, 100
PAUSES = [0.0, 0.005, 0.05]

APP = """
import time
from tests.integration.test_many_stops import busy_flow
flow = busy_flow({pause})
"""


def busy_flow(pause: float) -> AskFlow:
    """One that any crash would quarantine."""

    def step(run: AskRun) -> None:
        time.sleep(pause)

    return Flow("busy", request=Ask, response=Answer, crash_limit=1).start("work", step)


def left_running(engine: Engine) -> list[tuple[str, str]]:
    return [(execution.job_id, str(execution.status)) for execution in engine.store.under_way()]


def crashed(engine: Engine) -> list[str]:
    jobs = engine.store.jobs(states=[JobState.QUARANTINED, JobState.FAILED], limit=10)
    return [job.job_id for job in jobs]


def stop_again_and_again(engine: Engine, flow: AskFlow, stops: int, rng: random.Random) -> list[tuple[str, str]]:
    """Whatever was found running after one of the stops."""
    engine.submit_many([engine.prepare(flow, Ask(number=number)) for number in range(40 * stops)])
    for _ in range(stops):
        with engine.worker(lease=60, stop_grace=30) as worker:
            time.sleep(rng.uniform(0.0, 0.15))
            assert worker.stop()
        if left := left_running(engine):
            return left
    return []


@pytest.mark.parametrize("pause", PAUSES)
def test_no_stop_leaves_a_job_running(open_engine: OpenEngine, pause: float, rng: random.Random) -> None:
    flow = busy_flow(pause)
    engine = open_engine(flow)
    left = stop_again_and_again(engine, flow, SAMPLE, rng)

    assert left == []
    assert crashed(engine) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("pause", PAUSES)
def test_none_of_a_hundred_stops_leaves_a_job_running(
    open_engine: OpenEngine, pause: float, rng: random.Random
) -> None:
    flow = busy_flow(pause)
    engine = open_engine(flow)
    left = stop_again_and_again(engine, flow, WHOLE, rng)

    assert left == []
    assert crashed(engine) == []


def wait_for_change(engine: Engine, before: dict[tuple[str, str], int]) -> None:
    eventually(lambda: dict(engine.store.counts()) != before, "it has begun", within=60)


def kill_again_and_again(engine: Engine, home: Backend, directory: Path, pause: float, stops: int) -> list[object]:
    """The same by SIGTERM, which comes some time after the worker has begun with the first jobs."""
    flow = busy_flow(pause)
    directory.mkdir(exist_ok=True)
    (directory / "busy_app.py").write_text(APP.format(pause=pause))
    environment = {**os.environ, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}"}
    where = "--store" if "://" in home.place else "--state"
    command = [sys.executable, "-m", "holdfast.cli", where, home.place, "--app", "busy_app:flow", "worker"]
    for _ in range(stops):
        engine.submit_many([engine.prepare(flow, Ask()) for _ in range(100)])
        before = dict(engine.store.counts())
        with subprocess.Popen([*command, "--lease", "60"], cwd=directory, env=environment) as worker:
            wait_for_change(engine, before)
            worker.send_signal(signal.SIGTERM)
            code = worker.wait(60)
        left = left_running(engine)
        if code or left:
            return [code, *left]
    return list(crashed(engine))


def stop_commands(place: str, directory: Path, pause: float, stops: int) -> list[object]:
    home: Backend = PostgresBackend(directory) if place == "postgres" else SqliteBackend(directory / "state")
    with Engine.open(home.place, flows=[busy_flow(pause)]) as engine:
        return kill_again_and_again(engine, home, directory / "app", pause, stops)


@pytest.mark.parametrize("place", ["sqlite", "postgres"])
@pytest.mark.parametrize("pause", PAUSES)
def test_no_sigterm_leaves_a_job_running(place: str, tmp_path: Path, pause: float) -> None:
    assert stop_commands(place, tmp_path, pause, 1) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["sqlite", "postgres"])
@pytest.mark.parametrize("pause", PAUSES)
def test_none_of_a_hundred_sigterms_leaves_a_job_running(place: str, tmp_path: Path, pause: float) -> None:
    assert stop_commands(place, tmp_path, pause, WHOLE) == []
