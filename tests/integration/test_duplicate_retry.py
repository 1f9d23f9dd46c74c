"""FM_001: a lease expires while its worker still works, a second worker does the job too.

Reproduced with the effect in a plain step, where nothing stands between two executions; prevented with the effect in
the commit step; and recovered from when the worker dies between the commit and the end.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Flow, JobState, Transaction
from holdfast.core.states import ExecutionStatus
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, note, write_effect
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]
ROOT = Path(__file__).parents[2]


def charge_flow(charge: Callable[[AskRun], None], *, in_commit: bool) -> AskFlow:
    """Charges a customer: in the commit step, or (as it should not be) in a plain one."""

    def charge_in_commit(run: AskRun, tx: Transaction) -> None:
        charge(run)
        write_effect(run, tx)

    flow: AskFlow = Flow("charge", request=Ask, response=Answer)
    if in_commit:
        return flow.start("prepare", note("prepare")).commit("charge", charge_in_commit)
    return flow.start("charge", charge).commit("save", write_effect)


def test_without_the_commit_boundary_the_effect_happens_twice(open_engine: OpenEngine) -> None:
    """The failure mode itself: worker A is slow, its lease is taken, worker B charges, and then A does."""
    gate, charges = Gate(), Tally()

    def charge(run: AskRun) -> None:
        if run.job.attempt == 1 and run.tries == 1 and not run.interrupted:
            gate.pass_through()
        charges.add("charged")

    flow = charge_flow(charge, in_commit=False)
    first, second = open_engine(flow), open_engine(flow)
    job_id = first.submit(flow, Ask())
    with first.worker(**QUICK):
        gate.wait_for_arrival()
        second.store.recover(is_dead=lambda _owner: True, actor="the lease has expired")
        with second.worker(**QUICK):
            result = second.wait(job_id, timeout=20)
            gate.open()
            eventually(lambda: charges.count("charged") == 2, "worker A charges as well")

    assert result.state is JobState.SUCCEEDED
    assert charges.count("charged") == 2, "this is what the commit boundary is for"
    assert [e.status for e in first.store.executions(job_id)] == ["aborted", "done"]


def test_with_the_commit_boundary_the_effect_happens_once(open_engine: OpenEngine, effects: Effects) -> None:
    gate = Gate()

    def slow(run: AskRun) -> Answer:
        if not run.interrupted:
            gate.pass_through()
        return note("prepared")(run)

    flow: AskFlow = Flow("charge", request=Ask, response=Answer)
    flow.start("prepare", slow).commit("charge", write_effect)
    first, second = open_engine(flow), open_engine(flow)
    job_id = first.submit(flow, Ask())
    with first.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        second.store.recover(is_dead=lambda _owner: True, actor="the lease has expired")
        with second.worker(**QUICK):
            result = second.wait(job_id, timeout=20)
            gate.open()
            eventually(lambda: worker.active == 0, "worker A has let go")

    assert result.state is JobState.SUCCEEDED
    assert effects() == [job_id]
    assert [e.status for e in first.store.executions(job_id)] == ["aborted", "done"]


def test_a_duplicate_that_reaches_the_commit_after_the_winner_stops_there(
    open_engine: OpenEngine, effects: Effects
) -> None:
    """Both workers are past every step: the database lets one of them through."""
    from tests.support.bench import OTHER, WORKER, Bench, SettableClock, commit, effect_of, finish

    engine = open_engine()
    clock = SettableClock(engine.store.now())
    bench = Bench(engine.store, clock)
    late = bench.running(WORKER)
    engine.store.recover(is_dead=lambda _owner: True, actor="the lease has expired")
    winner = bench.take(OTHER)
    bench.apply(commit(winner, effect_of(winner)), worker=OTHER)
    [answer] = bench.write(commit(late, effect_of(late)), worker=WORKER)
    bench.apply(finish(winner), worker=OTHER)

    assert answer is not None
    assert effects() == [late.job.job_id]


CHILD = """
import os, signal, sys
from holdfast import Engine
from holdfast.crash_points import set_hook
from tests.integration.test_duplicate_retry import durable_flow

def die(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

flow = durable_flow()
with Engine.open(sys.argv[1], flows=[flow]) as engine:
    set_hook(die)
    with engine.worker(concurrency=1):
        engine.wait(sys.argv[3], timeout=30)
"""


def durable_flow() -> AskFlow:
    flow: AskFlow = Flow("charge", request=Ask, response=Answer)
    return flow.start("prepare", note("prepare")).commit("charge", write_effect)


@pytest.mark.parametrize(
    "point, status_left, effects_left",
    [
        ("write.Commit.before-commit", ExecutionStatus.IN_PROGRESS, 0),
        ("write.Commit.after-commit", ExecutionStatus.COMMITTED, 1),
        ("write.Finish.before-commit", ExecutionStatus.COMMITTED, 1),
        ("write.Finish.after-commit", ExecutionStatus.DONE, 1),
    ],
)
def test_a_crash_around_the_commit_is_recovered_from_without_repeating_the_effect(
    open_engine: OpenEngine,
    state: Path,
    effects: Effects,
    point: str,
    status_left: ExecutionStatus,
    effects_left: int,
) -> None:
    flow = durable_flow()
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, state, point, job_id], cwd=ROOT, capture_output=True, check=False
    )
    left = engine.store.executions(job_id)[-1].status
    effects_before = len(effects())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (left, effects_before) == (status_left, effects_left)
    assert answer.trail == ["prepare"]
    assert effects() == [job_id]
    assert os.path.exists(state)
