"""Cleanup: runs before the job ends, is tried again, survives crashes, and what it cannot do is for an operator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Abort, Flow, Handoff, JobState, Rewind, Unrecoverable, WaitFor, fixed
from holdfast.core.step import EndCode
from holdfast.crash_points import set_hook
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import (
    Answer,
    Ask,
    AskFlow,
    AskRun,
    Gate,
    Tally,
    fails_cleaning,
    note,
    raises,
    work_for,
    write_effect,
)
from tests.support.waiting import eventually


def flow_with(cleanup: object, step: object = None, **settings: object) -> AskFlow:
    """A first step that works, a second one that gives up, and a cleanup."""
    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=cleanup, **settings)  # type: ignore[arg-type]
    flow.start("one", note("one")).to("two", step or raises(Abort("no such image")))  # type: ignore[arg-type]
    return flow.commit("save", write_effect)


def test_a_cleanup_sees_the_request_and_the_response_so_far(open_engine: OpenEngine) -> None:
    seen: list[object] = []
    flow = flow_with(lambda run: seen.append((run.request, run.response.trail, run.step)))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask("x", 3))
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.FAILED
    assert seen == [(Ask("x", 3), ["one"], "cleanup")]


def test_a_job_that_succeeds_is_not_cleaned_up(open_engine: OpenEngine) -> None:
    tally = Tally()
    flow = flow_with(lambda run: tally.note("cleaned"), note("two"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert tally.events == []


def test_a_job_that_will_be_tried_again_is_not_cleaned_up(open_engine: OpenEngine) -> None:
    tally = Tally()
    flow = flow_with(lambda run: tally.note("cleaned"), raises(ValueError("no"), None), job_retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.SUCCEEDED
    assert tally.events == []


def test_a_retry_after_a_cleanup_begins_at_the_first_step(open_engine: OpenEngine) -> None:
    tally = Tally()

    def first(run: AskRun) -> Answer:
        tally.add("first")
        return note("first")(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"))
    flow.start("first", first).to("second", raises(Abort("no"), None)).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
        engine.retry(job_id, reason="again")
        answer = engine.result(flow, job_id, timeout=20)

    assert tally.events == ["first", "cleaned", "first"]
    assert answer.trail == ["first", "second"]


def test_a_cleanup_that_fails_is_tried_again(open_engine: OpenEngine) -> None:
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        if tally.add("cleanup") < 3:
            raise OSError("busy")

    flow = flow_with(cleanup, cleanup_retry=fixed(5, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.ABORT)
    assert tally.count("cleanup") == 3


def test_a_cleanup_that_never_works_puts_the_job_into_quarantine_and_says_both_reasons(
    open_engine: OpenEngine,
) -> None:
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        tally.add("cleanup")
        raise OSError("device is busy")

    flow = flow_with(cleanup, cleanup_retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.CLEANUP_FAILED)
    assert "no such image" in (result.reason or "")
    assert "device is busy" in (result.reason or "")
    assert tally.count("cleanup") == 3


STEERING = {
    "abort": (Abort("cannot unmount"), "Abort: cannot unmount"),
    "unrecoverable": (Unrecoverable("still busy"), "Unrecoverable: still busy"),
    "rewind": (Rewind("one"), "Rewind: rewind to one"),
    "wait": (WaitFor("01HZXK3V9Y0000000000000000"), "WaitFor: wait for job 01HZXK3V9Y0000000000000000"),
    "handoff": (Handoff(Answer()), "Handoff: handed off"),
}


@pytest.mark.parametrize("manner", ["raised", "returned", "raised by async", "returned by async"])
@pytest.mark.parametrize("name", STEERING)
def test_a_cleanup_that_ends_as_only_a_step_can_has_not_succeeded(
    open_engine: OpenEngine, name: str, manner: str
) -> None:
    """Each is a failed try, counted and told; taken for success it would hide what was left behind."""
    outcome, told = STEERING[name]
    tally = Tally()

    def plain(run: AskRun) -> object:
        tally.add("cleanup")
        if "raised" in manner:
            raise outcome
        return outcome

    async def asynchronous(run: AskRun) -> object:
        return plain(run)

    flow = flow_with(asynchronous if "async" in manner else plain, cleanup_retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=30)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.CLEANUP_FAILED)
    assert result.reason == f"no such image; then cleanup failed 2 time(s): {told}"
    assert tally.count("cleanup") == 2
    assert [step.step for step in engine.store.steps(job_id)] == ["one"]


@pytest.mark.parametrize("value", [False, 1, "could not", Answer()], ids=repr)
def test_a_cleanup_that_returns_something_has_not_succeeded(open_engine: OpenEngine, value: object) -> None:
    flow = flow_with(lambda run: value, cleanup_retry=fixed(0))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=30)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.CLEANUP_FAILED)
    assert f"the cleanup returned {value!r}" in str(result.reason)


def test_a_cleanup_that_forgets_to_await_has_not_succeeded(open_engine: OpenEngine) -> None:
    """A lambda around an async function returns what nobody runs."""
    tally = Tally()

    async def remove(run: AskRun) -> None:
        tally.add("removed")

    made = []

    def cleanup(run: AskRun) -> object:
        made.append(remove(run))
        return made[-1]

    flow = flow_with(cleanup, cleanup_retry=fixed(0))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=30)
    made[0].close()

    assert result.outcome == EndCode.CLEANUP_FAILED
    assert tally.events == []


def test_a_job_released_after_its_cleanup_failed_begins_at_the_first_step(open_engine: OpenEngine) -> None:
    """The cleanup that failed may have removed what the first step had made."""
    tally = Tally()

    def first(run: AskRun) -> Answer:
        tally.add("first")
        return note("first")(run)

    flow: AskFlow = Flow(
        "flow", request=Ask, response=Answer, cleanup=fails_cleaning(OSError("busy")), cleanup_retry=fixed(0)
    )
    flow.start("first", first).to("second", raises(Abort("no"), None)).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        engine.wait(job_id, timeout=20)
        engine.release(job_id, reason="unmounted it by hand")
        engine.result(flow, job_id, timeout=20)

    assert tally.count("first") == 2


def test_a_job_forced_back_to_pending_during_its_cleanup_begins_at_the_first_step(open_engine: OpenEngine) -> None:
    """The cleanup that was under way may have removed what the first step had made."""
    tally, gate = Tally(), Gate()

    def first(run: AskRun) -> Answer:
        tally.add("first")
        return note("first")(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=gate.pass_through)
    flow.start("first", first).to("second", raises(Abort("no"), None)).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        engine.force(job_id, JobState.PENDING, reason="try again")
        answer = engine.result(flow, job_id, timeout=20)

    assert tally.count("first") == 2
    assert answer.trail == ["first", "second"]


def test_a_cleanup_whose_lease_is_lost_while_it_sleeps_does_not_run_again(open_engine: OpenEngine) -> None:
    """The job belongs to the next attempt, which the cleanup would destroy the work of."""
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        tally.add(run.request.name)
        raise OSError("busy")

    flow = flow_with(cleanup, cleanup_retry=fixed(3, delay=1.0))
    engine = open_engine(flow)
    lost = engine.submit(flow, Ask("lost"))
    with engine.worker(**QUICK) as worker:
        eventually(lambda: [e for e in engine.store.executions(lost) if e.retry_at])
        engine.force(lost, JobState.FAILED, reason="stop it now")
        eventually(lambda: worker.active == 0, "the worker lets go of it")
        kept = engine.submit(flow, Ask("kept"))
        eventually(lambda: tally.count("kept") == 2, "the time of an earlier sleeper is over, too")
        engine.force(kept, JobState.FAILED, reason="enough")

    assert tally.count("lost") == 1


def test_an_async_cleanup_is_awaited(open_engine: OpenEngine) -> None:
    import asyncio

    tally = Tally()

    async def cleanup(run: AskRun) -> None:
        await asyncio.sleep(0.01)
        tally.add("cleaned")

    flow = flow_with(cleanup)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.FAILED
    assert tally.events == ["cleaned"]


def test_a_cleanup_after_a_cancel_may_report_progress_and_check_whether_to_stop(open_engine: OpenEngine) -> None:
    """The wish to cancel was for the step; it must not stop the cleanup that follows from it."""
    tally, gate = Tally(), Gate()

    def cleanup(run: AskRun) -> None:
        run.check()
        run.progress(1, 2)
        tally.add("cleaned")

    flow = flow_with(cleanup, gate.pass_through, cleanup_retry=fixed(1, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.CANCELLED)
    assert tally.events == ["cleaned"]


def test_a_cleanup_after_a_timeout_may_check_whether_to_stop(open_engine: OpenEngine) -> None:
    tally, gate = Tally(), Gate()

    def cleanup(run: AskRun) -> None:
        run.check()
        tally.add("cleaned")

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=cleanup, cleanup_retry=fixed(0))
    flow.start("slow", gate.pass_through, timeout=0.1).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome) == (JobState.QUARANTINED, EndCode.TIMEOUT)
    assert tally.events == ["cleaned"]


def test_the_time_limit_of_a_step_does_not_run_on_into_its_cleanup(open_engine: OpenEngine) -> None:
    """The step gives up at once; when its time would have been up, the cleanup is at work."""
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        tally.add("cleanup")
        work_for(0.6, run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=cleanup, cleanup_retry=fixed(0))
    flow.start("quick", raises(Abort("no")), timeout=0.3).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.ABORT, "no")
    assert tally.events == ["cleanup"]


def test_the_time_limit_of_a_step_that_was_never_entered_does_not_run_on_into_its_cleanup(
    open_engine: OpenEngine,
) -> None:
    """It was cancelled while it slept before its next try: when its time would have been up, the cleanup is at work."""
    tally = Tally()

    def cleanup(run: AskRun) -> None:
        tally.add("cleanup")
        work_for(0.6, run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=cleanup, cleanup_retry=fixed(0))
    flow.start("again", raises(ValueError("no")), timeout=0.3, retry=fixed(5, delay=50)).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        eventually(lambda: [e for e in engine.store.executions(job_id) if e.retry_at])
        engine.cancel(job_id, reason="not needed")
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (JobState.FAILED, EndCode.CANCELLED, "not needed")
    assert tally.events == ["cleanup"]


def test_a_cleanup_that_takes_too_long_is_given_up_and_tried_again(open_engine: OpenEngine) -> None:
    tally, gate = Tally(), Gate()

    def cleanup(run: AskRun) -> None:
        if tally.add("cleanup") == 1:
            gate.pass_through()

    flow = flow_with(cleanup, cleanup_timeout=0.1, cleanup_retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)
        gate.open()

    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.ABORT)
    assert tally.count("cleanup") == 2


def test_a_flow_that_lost_its_cleanup_ends_its_jobs_all_the_same(open_engine: OpenEngine) -> None:
    """Between the plan to end and the cleanup a new version was deployed, which has none."""
    gate = Gate()
    old = flow_with(gate.pass_through, cleanup_retry=fixed(5))
    first = open_engine(old)
    job_id = first.submit(old, Ask())
    with first.worker(**QUICK):
        gate.wait_for_arrival()
    assert first.store.job(job_id).ending is not None
    new: AskFlow = Flow("flow", request=Ask, response=Answer)
    new.start("one", note("one")).to("two", note("two")).commit("save", write_effect)
    second = open_engine(new)
    with second.worker(**QUICK):
        result = second.wait(job_id, timeout=20)

    assert result.state is JobState.FAILED
    assert "no such image" in (result.reason or "")


CHILD = """
import os, signal, sys
from holdfast import Engine
from holdfast.crash_points import set_hook
from tests.integration.test_cleanup import files_flow

def die(name):
    if name == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)

flow = files_flow(sys.argv[1])
with Engine.open(sys.argv[1], flows=[flow]) as engine:
    set_hook(die)
    with engine.worker(concurrency=1) as worker:
        engine.wait(sys.argv[3], timeout=30)
"""


def files_flow(directory: str) -> AskFlow:
    """Makes two files, gives up, and removes them again."""
    files = [Path(directory) / "one.part", Path(directory) / "two.part"]

    def make(run: AskRun) -> None:
        for file in files:
            file.touch()

    def remove(run: AskRun) -> None:
        for file in files:
            with run.effect("remove"):
                file.unlink(missing_ok=True)

    flow: AskFlow = Flow("files", request=Ask, response=Answer, cleanup=remove)
    return flow.start("make", make).to("give-up", raises(Abort("no"))).commit("save", write_effect)


@pytest.mark.parametrize(
    "point",
    [
        "step.give-up.after",
        "write.PlanEnding.after-commit",
        "step.cleanup.before",
        "effect.remove.after",
        "step.cleanup.after",
    ],
)
def test_a_cleanup_that_was_killed_runs_again(open_engine: OpenEngine, state: Path, point: str) -> None:
    flow = files_flow(str(state))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    root = Path(__file__).parents[2]
    killed = subprocess.run(
        [sys.executable, "-c", CHILD, state, point, job_id], cwd=root, capture_output=True, check=False
    )
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.ABORT)
    assert sorted(name for name in os.listdir(state) if name.endswith(".part")) == []
    assert engine.store.job(job_id).crashes == 1
    set_hook(None)
