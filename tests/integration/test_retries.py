"""Tries and attempts: how often, how long in between, and what a step finds when it is entered again."""

from __future__ import annotations

import itertools
import logging
import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    Engine,
    Flow,
    JobState,
    RetryPolicy,
    Run,
    Transaction,
    delays,
    exponential,
    fixed,
    hours,
)
from holdfast.core.step import EndCode
from holdfast.testing import VirtualClock, run_until_idle
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Tally, flow_of, note, raises, write_effect


def run_on_virtual_time(engine: Engine, clock: VirtualClock) -> None:
    run_until_idle(engine, clock)


def test_the_pause_before_each_try_grows_as_the_policy_says(open_engine: OpenEngine) -> None:
    clock = VirtualClock()
    began: list[int] = []

    def step(run: AskRun) -> Answer:
        began.append(clock())
        raise ValueError("no")

    flow = flow_of(step, retry=exponential(4, delay=1, factor=2, cap=5))
    engine = open_engine(flow, clock=clock)
    engine.submit(flow, Ask())
    run_on_virtual_time(engine, clock)

    assert [later - earlier for earlier, later in itertools.pairwise(began)] == [1000, 2000, 4000, 5000]


def test_a_short_pause_is_kept_by_a_real_worker(open_engine: OpenEngine) -> None:
    began: list[float] = []

    def step(run: AskRun) -> Answer:
        began.append(time.monotonic())
        if len(began) < 3:
            raise ValueError("no")
        return Answer()

    flow = flow_of(step, retry=fixed(5, delay=0.15))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    pauses = [later - earlier for earlier, later in itertools.pairwise(began)]
    assert result.state is JobState.SUCCEEDED
    assert all(0.14 <= pause < 2 for pause in pauses), pauses


def test_a_long_pause_gives_the_lease_and_the_slot_back(open_engine: OpenEngine) -> None:
    clock = VirtualClock()
    flow = flow_of(raises(ValueError("no"), None), retry=fixed(2, delay=hours(2)), queue="q")
    engine = open_engine(flow, clock=clock)
    job_id = engine.submit(flow, Ask())
    began = clock()
    run_on_virtual_time(engine, clock)

    executions = engine.store.executions(job_id)
    assert [e.code for e in executions] == [EndCode.BACKING_OFF, EndCode.COMPLETED]
    assert executions[1].started_at - began >= 2 * 3600 * 1000
    assert engine.store.steps(job_id)[0].tries == 2
    assert engine.store.job(job_id).failures == 0


def test_tries_are_counted_on_over_long_pauses(open_engine: OpenEngine) -> None:
    clock = VirtualClock()
    tally = Tally()

    def step(run: AskRun) -> Answer:
        tally.add(f"try {run.tries}")
        raise ValueError("no")

    flow = flow_of(step, retry=fixed(3, delay=hours(1)))
    engine = open_engine(flow, clock=clock)
    job_id = engine.submit(flow, Ask())
    run_on_virtual_time(engine, clock)

    assert tally.events == ["try 1", "try 2", "try 3", "try 4"]
    assert engine.store.job(job_id).state is JobState.QUARANTINED


def test_jobs_that_back_off_keep_nobody_from_working(open_engine: OpenEngine) -> None:
    bad = flow_of(raises(ValueError("no")), "bad", retry=fixed(3, delay=30))
    good = flow_of(note("good"), "good")
    engine = open_engine(bad, good)
    for _ in range(3):
        engine.submit(bad, Ask())
    with engine.worker(concurrency=4, **QUICK):
        result = engine.wait(engine.submit(good, Ask()), timeout=20)

    assert result.state is JobState.SUCCEEDED


def test_a_try_finds_the_response_as_it_was_before_the_failed_one(open_engine: OpenEngine) -> None:
    def step(run: AskRun) -> None:
        run.response.trail.append(f"try {run.tries}")
        if run.tries < 3:
            raise ValueError("no")

    flow = flow_of(step, retry=fixed(3, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["try 3"]


def test_a_commit_step_is_tried_again_by_its_policy_and_leaves_one_effect(open_engine: OpenEngine) -> None:
    tally = Tally()

    def save(run: AskRun, tx: Transaction) -> Answer:
        write_effect(run, tx)
        if tally.add("save") < 3:
            raise ValueError("deadlock detected")
        rows = tx.execute("SELECT count(*) FROM effects").fetchone()[0]
        return Answer(total=rows)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).commit("save", save, retry=fixed(5, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.total == 1
    assert engine.store.steps(job_id)[-1].tries == 3


def test_a_commit_step_whose_tries_are_used_up_fails_the_job(open_engine: OpenEngine) -> None:
    def save(run: AskRun, tx: Transaction) -> None:
        raise ValueError("never")

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).commit("save", save, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert "save failed 2 time(s)" in (result.reason or "")


def test_a_retried_job_goes_on_at_the_step_that_failed(open_engine: OpenEngine) -> None:
    tally = Tally()

    def first(run: AskRun) -> Answer:
        tally.add("first")
        return note("first")(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, job_retry=fixed(3, delay=0.01))
    flow.start("first", first).to("second", raises(ValueError("no"), ValueError("no"), None))
    flow.commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["first", "second"]
    assert tally.count("first") == 1


def test_an_operator_gives_a_quarantined_job_a_fresh_budget(open_engine: OpenEngine) -> None:
    tally = Tally()

    def step(run: AskRun) -> Answer:
        if tally.add("tried") < 4:
            raise ValueError("no")
        return Answer()

    flow = flow_of(step, retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        first = engine.wait(job_id, timeout=20)
        engine.release(job_id, reason="the disk is back")
        second = engine.wait(job_id, timeout=20)

    assert (first.state, second.state) == (JobState.QUARANTINED, JobState.SUCCEEDED)
    assert tally.count("tried") == 4


def test_the_error_of_a_step_may_contain_anything(open_engine: OpenEngine, caplog: pytest.LogCaptureFixture) -> None:
    """Names of files may be no valid text, and messages may be endless."""
    caplog.set_level(logging.CRITICAL, "holdfast")  # what is captured has to be sent to the process that reports
    errors = [OSError("caf\udce9"), ValueError("nul \x00 byte"), ValueError("x" * 1_000_000), ValueError("\x1b[31m")]
    flows = [
        flow_of(raises(error, error, None), f"flow-{n}", retry=fixed(5, delay=0.01)) for n, error in enumerate(errors)
    ]
    engine = open_engine(*flows)
    jobs = [engine.submit(flow, Ask()) for flow in flows]
    with engine.worker(**QUICK):
        states = [engine.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED] * 4


def test_the_error_that_ends_a_job_may_contain_anything(
    open_engine: OpenEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast")
    errors = [OSError("caf\udce9"), ValueError("nul \x00 byte"), ValueError("x" * 1_000_000)]
    flows = [flow_of(raises(error), f"flow-{n}") for n, error in enumerate(errors)]
    engine = open_engine(*flows)
    jobs = [engine.submit(flow, Ask()) for flow in flows]
    with engine.worker(**QUICK):
        results = [engine.wait(job_id, timeout=20) for job_id in jobs]

    assert [result.state for result in results] == [JobState.QUARANTINED] * 3
    assert all("caf" in (result.reason or "") for result in results[:1])
    assert all(len(result.reason or "") < 10_000 for result in results)


def test_what_a_run_tells_its_steps(open_engine: OpenEngine) -> None:
    seen: list[tuple[str, int, bool]] = []

    def look(run: Run[Ask, Answer]) -> Answer:
        seen.append((run.step, run.tries, run.interrupted))
        assert run.request == Ask("me", 5)
        assert run.job.flow == "flow"
        assert run.exec_id
        run.log.info("here")
        if run.tries == 1:
            raise ValueError("once more")
        return run.response

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", look, retry=fixed(1, delay=0.01)).to("two", look, retry=fixed(1, delay=0.01))
    flow.commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask("me", 5))
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert seen == [("one", 1, False), ("one", 2, False), ("two", 1, False), ("two", 2, False)]


# --- limits for classes of errors --------------------------------------------------------------------------


def errors_of(open_engine: OpenEngine, errors: list[BaseException], **settings: Any) -> tuple[int, JobState]:
    """How many tries a step gets that fails with these, the last one for ever; and how its job ends."""
    clock = VirtualClock()
    tries: list[int] = []

    def step(run: AskRun) -> Answer:
        tries.append(run.tries)
        raise errors[min(len(tries), len(errors)) - 1]

    flow = flow_of(step, **settings)
    engine = open_engine(flow, clock=clock)
    job_id = engine.submit(flow, Ask())
    run_on_virtual_time(engine, clock)
    return len(tries), engine.store.job(job_id).state


LIMITS = {ConnectionError: 4, OSError: 1, KeyError: 0}


@pytest.mark.parametrize(
    "errors, tries",
    [
        ([ConnectionResetError()], 5),
        ([FileNotFoundError()], 2),
        ([KeyError()], 1),
        ([ValueError()], 3),
        # Each class has a budget of its own, and the first to be used up ends the step.
        ([OSError(), ConnectionError(), ValueError(), ConnectionError(), ValueError(), OSError()], 6),
        ([ValueError(), ValueError(), ConnectionError(), KeyError()], 4),
    ],
)
@pytest.mark.parametrize("delay", [0.1, 100])
def test_an_error_with_a_limit_of_its_own_is_tried_again_so_often(
    open_engine: OpenEngine, errors: list[BaseException], tries: int, delay: float
) -> None:
    made, state = errors_of(open_engine, errors, retry=fixed(2, delay=delay, limits=LIMITS))

    assert state is JobState.QUARANTINED
    if delay > 60:
        # The lease was given back in between, and with it went the knowledge of what the tries had failed with.
        assert made <= tries
    else:
        assert made == tries


def test_a_lease_given_back_in_between_does_not_add_tries(open_engine: OpenEngine) -> None:
    made, _ = errors_of(open_engine, [ConnectionError()], retry=fixed(0, delay=3600, limits={ConnectionError: 3}))

    assert made == 4


def test_a_cleanup_has_limits_too(open_engine: OpenEngine) -> None:
    clock = VirtualClock()
    tries: list[int] = []

    def cleanup(run: AskRun) -> None:
        tries.append(run.tries)
        raise FileNotFoundError

    flow = flow_of(raises(ValueError()), cleanup=cleanup, cleanup_retry=fixed(9, limits={OSError: 2}))
    engine = open_engine(flow, clock=clock)
    engine.submit(flow, Ask())
    run_on_virtual_time(engine, clock)

    assert tries == [1, 2, 3]


def test_a_whole_number_and_delays_are_policies(open_engine: OpenEngine) -> None:
    assert errors_of(open_engine, [ValueError()], name="number", retry=3)[0] == 4
    assert errors_of(open_engine, [ValueError()], name="delays", retry=delays(1, timedelta(minutes=5)))[0] == 3


def test_a_policy_of_ones_own_that_raises_does_not_harm_the_worker(open_engine: OpenEngine) -> None:
    class Broken(RetryPolicy, frozen=True):
        def delay_before(self, next_try: int, *, chance: float) -> float:
            raise RuntimeError("no idea")

    broken = Broken(retries=1, delay=0, cap=0.01)
    flow = flow_of(raises(ValueError()), retry=broken, cleanup=raises(ValueError()), cleanup_retry=broken)
    good = flow_of(note("good"), name="good")
    engine = open_engine(flow, good)
    with engine.worker(**QUICK) as worker:
        bad = engine.wait(engine.submit(flow, Ask()), timeout=60)
        well = engine.wait(engine.submit(good, Ask()), timeout=60)

    assert worker.failure is None
    assert (bad.state, bad.outcome) == (JobState.QUARANTINED, EndCode.CLEANUP_FAILED)
    assert well.state is JobState.SUCCEEDED
