"""A database that cannot be opened for a moment: the worker goes on when it can, and no job is blamed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from holdfast import Abort, Engine, Flow, JobState, Run, never
from tests.support.flows import Answer, Ask

ROOT = Path(__file__).parents[2]

DESCRIPTORS = """
import os, resource, sys, threading, time
from holdfast import Engine, Flow
import msgspec

class Ask(msgspec.Struct):
    n: int

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

def first(run):
    time.sleep(0.3)

flow = Flow("f", request=Ask, response=type(None)).start("a", first).to("b", first)
with Engine.open(sys.argv[1], flows=[flow]) as engine, engine.worker(lease=3, recovery_interval=0.2) as worker:
    jobs = [engine.submit(flow, Ask(n)) for n in range(6)]
    time.sleep(0.2)
    hog = []
    until = time.monotonic() + 4
    while time.monotonic() < until:
        try:
            hog.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            time.sleep(0.01)
    for one in hog:
        os.close(one)
    states = [engine.wait(job, 60).state.value for job in jobs]
    print(worker.failure, sorted(set(states)), flush=True)
"""


def test_a_process_without_descriptors_goes_on_when_it_has_some_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS, tmp_path / "state"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=150,
    )

    assert done.stdout.split("\n")[0] == "None ['succeeded']", done.stderr[-2000:]


def test_a_database_that_is_away_for_a_moment_costs_no_job_a_try(tmp_path: Path) -> None:
    """Renamed, as by a mount that is away: the connections that are open go on, new ones cannot be made."""
    path = tmp_path / "state" / "holdfast.db"

    def stop(_run: Run[Ask, Answer]) -> None:
        path.rename(path.with_name("away"))
        time.sleep(1.0)
        path.with_name("away").rename(path)
        raise Abort("no")

    flow = Flow("f", request=Ask, response=Answer).start("stop", stop, retry=never()).to("never", stop)
    with Engine.open(tmp_path / "state", flows=[flow]) as engine, engine.worker(recovery_interval=0.1) as worker:
        result = engine.wait(engine.submit(flow, Ask()), timeout=60)

        assert (result.state, result.reason) == (JobState.FAILED, "no")
        assert worker.failure is None
        assert list(engine.check()) == []
