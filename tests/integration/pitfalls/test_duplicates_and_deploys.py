"""Pitfalls 9 to 12: duplicates, forgetting, locks, deploys."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from holdfast import Flow, JobState, Rewind, fixed
from holdfast.core.step import EndCode
from holdfast.crash_points import set_hook
from holdfast.errors import StoreBusy
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.bench import (
    OPERATOR,
    Bench,
)
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, Tally, flow_of, note, write_effect
from tests.support.waiting import eventually


def test_09_the_duplicate_that_lost_stops_and_does_not_go_on_with_later_steps(open_engine: OpenEngine) -> None:
    """The loser was given the winner's result and went on with the next steps as if it had won."""
    gate, tally = Gate(), Tally()

    def first(run: AskRun) -> None:
        if not run.interrupted:
            gate.pass_through()

    def second(run: AskRun) -> None:
        tally.add(run.exec_id)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("first", first).to("second", second).commit("save", write_effect)
    one, two = open_engine(flow), open_engine(flow)
    job_id = one.submit(flow, Ask())
    with one.worker(**QUICK) as loser:
        gate.wait_for_arrival()
        two.store.recover(is_dead=lambda _owner: True, actor="blip")
        with two.worker(**QUICK):
            two.wait(job_id, timeout=20)
            gate.open()
            eventually(lambda: loser.active == 0)
            time.sleep(0.2)

    winner = two.store.executions(job_id)[-1].exec_id
    assert tally.events == [winner]


def test_10_a_key_that_was_forgotten_runs_anew_and_returns_no_old_result(open_engine: OpenEngine) -> None:
    """A half-finished cleanup of history let a reused id return the old result without running."""
    tally = Tally()

    def step(run: AskRun) -> Answer:
        return Answer(total=tally.add("ran"))

    flow = flow_of(step)
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        first = engine.submit(flow, Ask(), key="k")
        engine.wait(first, timeout=20)
        engine.store.prune(before=engine.store.now() + 1, limit=9, actor=OPERATOR, dry_run=False)
        second = engine.submit(flow, Ask(), key="k")
        answer = engine.result(flow, second, timeout=20)

    assert first != second
    assert answer.total == 2


def test_10_a_prune_that_was_cut_off_has_removed_all_of_a_job_or_nothing(bench: Bench) -> None:
    job_id = bench.succeeded()

    def die(name: str) -> None:
        if name == "prune.before-commit":
            raise KeyboardInterrupt

    set_hook(die)
    try:
        with pytest.raises(KeyboardInterrupt):
            bench.store.prune(before=bench.clock() + 1, limit=9, actor=OPERATOR, dry_run=False)
    finally:
        set_hook(None)

    assert bench.state(job_id) is JobState.SUCCEEDED
    assert bench.store.pruned_heads() == {}
    bench.assert_sound()


@pytest.mark.parametrize("verb", ["steps", "definitions", "children", "job", "next_due", "workers", "announce"])
def test_11_a_locked_database_at_any_read_is_no_failure_of_a_job(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """`database is locked` in a read before the loop that tries again became a terminal failure."""
    tally = Tally()

    def back(run: AskRun) -> None:
        # What a step asks itself is an error of the step, which is tried again by its policy.
        run.children()
        run.child_result(run.job.job_id)
        if tally.add("back") == 1:
            raise Rewind("one")

    def version(*names: str) -> AskFlow:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer)
        flow.start("one", note("one")).to("back", back, retry=fixed(2, delay=0.01))
        for name in names:
            flow.to(name, note(name))
        return flow.commit("save", write_effect)

    old, new = version(), version("more")
    job_id = open_engine(old).submit(old, Ask())
    engine = open_engine(new)
    original, calls = getattr(engine.store, verb), Tally()

    def locked(*args: object, **kwargs: object) -> object:
        mine = threading.current_thread().name.startswith("holdfast")
        if mine and calls.add(verb) in (1, 3):
            raise StoreBusy("database is locked")
        return original(*args, **kwargs)

    monkeypatch.setattr(engine.store, verb, locked)
    monkeypatch.setattr("holdfast.worker.worker.ANNOUNCE_INTERVAL", 0.1)
    with engine.worker(lease=2, recovery_interval=0.3, stop_grace=1):
        result = engine.wait(job_id, timeout=20)
        eventually(lambda: calls.count(verb), "it was asked, and was locked")

    assert result.state is JobState.SUCCEEDED, result.reason


def test_12_new_code_in_a_step_does_not_strand_jobs_and_a_changed_flow_says_so(open_engine: OpenEngine) -> None:
    """The version was a hash of the source: each deploy stranded what was running, unseen, its slots taken."""
    gate = Gate()

    def version(last: Callable[[AskRun], object], name: str = "two") -> AskFlow:
        flow: AskFlow = Flow("flow", request=Ask, response=Answer, queue="q")
        return flow.start("one", note("one")).to(name, last).commit("save", write_effect)  # type: ignore[arg-type]

    old = version(gate.pass_through)
    engine = open_engine(old)
    engine.queue("q", limit=1)
    jobs = [engine.submit(old, Ask()) for _ in range(2)]
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    same_names = version(note("rewritten"))
    later = open_engine(same_names)
    with later.worker(**QUICK):
        first = later.wait(jobs[0], timeout=20)
        later.wait(jobs[1], timeout=20)
    under_way = engine.submit(old, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
    changed: AskFlow = Flow("flow", request=Ask, response=Answer, queue="q")
    last = open_engine(changed.start("renamed", note("renamed")).commit("save", write_effect))
    with last.worker(**QUICK):
        stranded = last.wait(under_way, timeout=20)
        next_one = last.wait(last.submit(changed, Ask()), timeout=20)

    assert same_names.fingerprint == old.fingerprint
    assert first.state is JobState.SUCCEEDED
    assert (stranded.state, stranded.outcome) == (JobState.QUARANTINED, EndCode.DEFINITION_CHANGED)
    assert "flow flow changed" in (stranded.reason or "")
    assert next_one.state is JobState.SUCCEEDED, "its slot is free"
