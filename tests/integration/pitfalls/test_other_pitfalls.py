"""The other pitfalls, and at the end a table of those that cannot happen on SQLite."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Engine, Flow, JobState, WaitFor, fixed
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.bench import (
    OPERATOR,
    Bench,
)
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, write_effect
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]


@pytest.mark.parametrize("whom", ["itself", "its parent"])
def test_a_job_cannot_wait_for_what_only_itself_could_bring_about(open_engine: OpenEngine, whom: str) -> None:
    """A run was suspended until a result came that only the run itself could have produced."""

    def step(run: AskRun) -> None:
        raise WaitFor(run.job.job_id if whom == "itself" else run.job.parent or "")

    child = flow_of(step, "child")

    def parent_step(run: AskRun) -> None:
        kid = run.submit_child("kid", child, Ask())
        if run.child_result(kid).state in (JobState.PENDING, JobState.RUNNING):
            raise WaitFor(kid)

    parent: AskFlow = Flow("parent", request=Ask, response=Answer)
    parent.start("wait", parent_step).commit("save", write_effect)
    engine = open_engine(parent, child)
    job_id = engine.submit(parent, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    [kid] = engine.store.children(job_id)
    assert result.state is JobState.SUCCEEDED
    assert kid.state is JobState.QUARANTINED
    assert "CycleError" in (engine.wait(kid.job_id).reason or "")


def test_a_backup_taken_in_the_middle_of_everything_comes_to_life_again(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    """A snapshot taken during a transition was restored as a machine that looked healthy and never moved again."""
    gate = Gate()
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("slow", gate.pass_through).commit("save", write_effect)
    engine = open_engine(flow)
    jobs = [engine.submit(flow, Ask()) for _ in range(3)]
    with engine.worker(lease=1.0):
        gate.wait_for_arrival()
        engine.store.backup(tmp_path / "copy.db")
        gate.open()
        for job_id in jobs:
            engine.wait(job_id, timeout=20)
    with Engine.open(tmp_path / "copy.db", flows=[flow]) as copy:
        running = [copy.store.job(job_id).state for job_id in jobs]
        with copy.worker(lease=1.0, recovery_interval=0.2):
            states = [copy.wait(job_id, timeout=20).state for job_id in jobs]

    assert JobState.RUNNING in running
    assert states == [JobState.SUCCEEDED] * 3


def test_of_many_triggers_at_the_same_moment_one_makes_the_transition(bench: Bench) -> None:
    """Two threads looked at the state, both found the transition allowed, and both made it."""
    job_id = bench.ended()
    barrier, passed = threading.Barrier(8), Tally()

    def retry() -> None:
        barrier.wait()
        bench.store.retry(job_id, actor=OPERATOR, reason="x", from_state=JobState.FAILED)
        passed.add("answered")

    threads = [threading.Thread(target=retry) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert passed.count("answered") == 8, "the wish of each has come true"
    assert bench.states(job_id) == ["pending", "running", "failed", "pending"]


def test_work_that_goes_on_after_its_timeout_is_recorded_nowhere(open_engine: OpenEngine, effects: Effects) -> None:
    """The timeout fired, the work went on all the same, and it was started a second time next to the first."""
    gate, tally = Gate(), Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("entered") == 1:
            gate.pass_through()
            tally.add("late")
            return Answer(trail=["first"])
        assert run.interrupted, "the second must know that a first one may still be at it"
        gate.open()
        eventually(lambda: tally.count("late"))
        return Answer(trail=["second"])

    flow = flow_of(step, timeout=0.5, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=30)

    assert answer.trail == ["second"]
    assert effects() == [job_id]


def test_a_lock_held_by_somebody_else_is_waited_for_by_every_part_of_a_worker(
    open_engine: OpenEngine, state: Path
) -> None:
    """`database is locked`, said to a heartbeat, cost the lease of a job that was at work."""
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=3.0, recovery_interval=0.2) as worker:
        gate.wait_for_arrival()
        with closing(sqlite3.connect(state / "holdfast.db", isolation_level=None)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            time.sleep(1.5)
            shell.execute("ROLLBACK")
        gate.open()
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert engine.store.job(job_id).attempt == 1
    assert worker.telemetry.lost_leases == 0


def test_a_reader_that_never_ends_its_transaction_holds_up_nobody(open_engine: OpenEngine, state: Path) -> None:
    """A session left idle in a transaction froze the dequeuing of queues that had nothing to do with it."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    engine.submit(flow, Ask())
    with closing(sqlite3.connect(state / "holdfast.db", isolation_level=None)) as shell:
        shell.execute("BEGIN")
        before = shell.execute("SELECT count(*) FROM jobs").fetchone()
        with engine.worker(**QUICK):
            states = {engine.wait(engine.submit(flow, Ask()), timeout=20).state for _ in range(5)}
        after = shell.execute("SELECT count(*) FROM jobs").fetchone()

    assert states == {JobState.SUCCEEDED}
    assert before == after == (1,)


# What cannot happen on SQLite, or not here, and why:
#
# | pitfall                                       | why not                                                         |
# |-----------------------------------------------|-----------------------------------------------------------------|
# | 5, as a restart of the database server        | there is no server; a database that is away is StoreUnavailable |
# | 10, cleanup interrupted between two databases | jobs, steps, journal and `pruned` are one database and go in    |
# |                                               | one transaction                                                 |
# | NOTIFY takes a global lock at commit          | wake-ups are bytes in FIFOs, written after the commit           |
# | an idle writer freezes unrelated queues       | there is one write lock for all; who waits for it is told       |
# |                                               | StoreBusy after the busy timeout and tries again                |
