"""How a step ends decides how the job goes on: the table of outcomes, row by row, with a real worker."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Abort, Flow, Handoff, JobState, Rewind, Run, Transaction, Unrecoverable, fixed, never
from holdfast.core.step import EndCode
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.backends import Backend
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Tally, fails_cleaning, flow_of, note, raises, write_effect
from tests.support.waiting import eventually

Effects = Callable[[], list[str]]


def states_of(journal: list[tuple[str | None, str]]) -> list[str]:
    states: list[str] = []
    for _, to in journal:
        if not states or states[-1] != to:
            states.append(to)
    return states


def test_a_step_that_returns_is_followed_by_the_next(open_engine: OpenEngine, effects: Effects) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("two", note("two")).to("three", note("three")).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer == Answer(trail=["one", "two", "three"], total=3)
    assert [step.step for step in engine.store.steps(job_id)] == ["one", "two", "three", "save"]
    assert [e.status for e in engine.store.executions(job_id)] == ["done"]
    assert effects() == [job_id]


def test_any_other_exception_is_tried_again_within_the_same_execution(
    open_engine: OpenEngine, effects: Effects
) -> None:
    flow = flow_of(raises(ValueError("one"), KeyError("two"), None), retry=fixed(3, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    [execution] = engine.store.executions(job_id)
    assert result.state is JobState.SUCCEEDED
    assert (execution.attempt, engine.store.steps(job_id)[0].tries) == (1, 3)
    assert effects() == [job_id]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_a_step_that_wants_to_exit_has_failed_and_takes_nobody_along(
    open_engine: OpenEngine, error: BaseException
) -> None:
    bad = flow_of(raises(error), "bad", retry=fixed(1, delay=0.01))
    good = flow_of(note("good"), "good")
    engine = open_engine(bad, good)
    job_id = engine.submit(bad, Ask())
    with engine.worker(concurrency=1, **QUICK):
        result = engine.wait(job_id, timeout=20)
        other = engine.wait(engine.submit(good, Ask()), timeout=20)

    assert result.state is JobState.QUARANTINED
    assert type(error).__name__ in (result.reason or "")
    assert other.state is JobState.SUCCEEDED


def test_a_step_that_calls_sys_exit_in_a_commit_has_failed_and_the_worker_goes_on(
    open_engine: OpenEngine, effects: Effects
) -> None:
    def save(run: AskRun, tx: Transaction) -> None:
        write_effect(run, tx)
        sys.exit(1)

    bad: AskFlow = Flow("bad", request=Ask, response=Answer)
    bad.start("one", note("one")).commit("save", save)
    good = flow_of(note("good"), "good")
    engine = open_engine(bad, good)
    job_id = engine.submit(bad, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)
        other = engine.submit(good, Ask())
        assert engine.wait(other, timeout=20).state is JobState.SUCCEEDED

    assert result.state is JobState.QUARANTINED
    assert effects() == [other]


def test_an_async_step_that_wants_to_exit_takes_nobody_along(open_engine: OpenEngine) -> None:
    async def leave(run: AskRun) -> Answer:
        await asyncio.sleep(0)
        sys.exit(1)

    async def stay(run: AskRun) -> Answer:
        await asyncio.sleep(0.2)
        return Answer(total=7)

    bad, good = flow_of(leave, "bad"), flow_of(stay, "good")
    engine = open_engine(bad, good)
    jobs = [engine.submit(good, Ask()), engine.submit(bad, Ask()), engine.submit(good, Ask())]
    with engine.worker(**QUICK):
        states = [engine.wait(job_id, timeout=20).state for job_id in jobs]

    assert states == [JobState.SUCCEEDED, JobState.QUARANTINED, JobState.SUCCEEDED]


class UnspeakableError(Exception):
    """An error that cannot even be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("where", ["step", "commit", "cleanup"])
def test_an_error_that_cannot_be_printed_fails_its_own_job_and_not_the_worker(
    open_engine: OpenEngine, where: str
) -> None:
    def save(run: AskRun, tx: Transaction) -> None:
        if where == "commit":
            raise UnspeakableError

    cleanup = fails_cleaning(UnspeakableError()) if where == "cleanup" else None
    bad: AskFlow = Flow("bad", request=Ask, response=Answer, cleanup=cleanup, cleanup_retry=fixed(0))
    first = {"step": UnspeakableError(), "cleanup": Abort("no"), "commit": None}[where]
    bad.start("one", raises(first)).commit("save", save)
    good = flow_of(note("good"), "good")
    engine = open_engine(bad, good)
    job_id = engine.submit(bad, Ask())
    with engine.worker(lease=3, stop_grace=1) as worker:
        result = engine.wait(job_id, timeout=15)
        other = engine.wait(engine.submit(good, Ask()), timeout=15)

    assert result.state is JobState.QUARANTINED
    assert other.state is JobState.SUCCEEDED
    assert worker.failure is None


class AbortWithoutReason(Abort):
    """An outcome that forgot to be one."""

    def __init__(self) -> None:
        """Leaves out what the base class keeps."""


def endless() -> dict[str, object]:
    """A response that contains itself."""
    response: dict[str, object] = {}
    response["trail"] = response
    return response


def fails_when_asked_again() -> Callable[[Ask], Answer]:
    """An `initial` that works once: the response of a second try cannot be made."""
    tally = Tally()

    def initial(request: Ask) -> Answer:
        if tally.add("asked") > 1:
            raise RuntimeError("asked again")
        return Answer()

    return initial


BAD_OUTCOMES: dict[str, tuple[Callable[[], object], JobState, str]] = {
    "abort for an exception": (lambda: Abort(ValueError("no luck")), JobState.FAILED, "no luck"),
    "unrecoverable for an exception": (
        lambda: Unrecoverable(ValueError("no luck")),
        JobState.QUARANTINED,
        "no luck",
    ),
    "abort without a reason": (AbortWithoutReason, JobState.QUARANTINED, "cannot be recorded"),
    "endless response": (endless, JobState.QUARANTINED, "cannot be saved"),
    "no first response": (lambda: ValueError("once more"), JobState.QUARANTINED, "asked again"),
}


@pytest.mark.parametrize("kind", ["plain", "async", "commit"])
@pytest.mark.parametrize("bad", BAD_OUTCOMES)
def test_an_outcome_that_cannot_be_recorded_ends_its_own_job_and_not_the_worker(
    open_engine: OpenEngine, bad: str, kind: str
) -> None:
    make, ends_as, reason = BAD_OUTCOMES[bad]

    def plain(run: AskRun, tx: Transaction | None = None) -> object:
        outcome = make()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def as_task(run: AskRun) -> object:
        await asyncio.sleep(0)
        return plain(run)

    initial = fails_when_asked_again() if bad == "no first response" else None
    flow: AskFlow = Flow("bad", request=Ask, response=Answer, initial=initial)
    if kind == "commit":
        flow.commit("save", plain, retry=fixed(1, delay=0.01))  # type: ignore[arg-type]
    else:
        flow.start("one", plain if kind == "plain" else as_task, retry=fixed(1, delay=0.01))  # type: ignore[arg-type]
    good = flow_of(note("good"), "good")
    engine = open_engine(flow, good)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=3, stop_grace=1) as worker:
        result = engine.wait(job_id, timeout=10)
        other = engine.wait(engine.submit(good, Ask()), timeout=10)

    assert result.state is ends_as
    assert reason in (result.reason or "")
    assert other.state is JobState.SUCCEEDED
    assert worker.failure is None


def test_a_database_that_cannot_be_written_is_waited_for_and_costs_the_job_nothing(
    open_engine: OpenEngine, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entered = threading.Event()

    def set_read_only(on: bool) -> None:
        engine.store._database._writer.execute(f"PRAGMA query_only = {on}")  # type: ignore[attr-defined]

    def step(run: AskRun) -> Answer:
        set_read_only(True)
        entered.set()
        return note("work")(run)

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(lease=10):
        assert entered.wait(20)
        time.sleep(0.5)
        set_read_only(False)
        result = engine.wait(job_id, timeout=20)

    words = [record for record in caplog.records if record.name == "holdfast.writer"]
    assert result.state is JobState.SUCCEEDED, result.reason
    assert engine.store.job(job_id).attempt == 1
    assert 1 <= len(words) < 10


REFUSE_ENDS = {
    "sqlite": (
        "CREATE TRIGGER no_ends BEFORE UPDATE OF code ON executions BEGIN SELECT raise(ABORT, 'not now'); END",
        "DROP TRIGGER no_ends",
    ),
    "postgres": (
        "ALTER TABLE executions ADD CONSTRAINT no_ends CHECK (status <> 'aborted')",
        "ALTER TABLE executions DROP CONSTRAINT no_ends",
    ),
}


def test_an_end_that_the_database_refuses_is_left_to_the_next_attempt_and_not_said_again_and_again(
    open_engine: OpenEngine, home: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    refuse, allow = REFUSE_ENDS[home.name]
    flow = flow_of(raises(Abort("no such image")))
    engine = open_engine(flow)
    with engine.worker(**QUICK) as worker:
        home.execute(refuse)  # now: a worker does not start where somebody has added a trigger
        job_id = engine.submit(flow, Ask())
        eventually(lambda: engine.store.job(job_id).attempt == 1)
        eventually(lambda: worker.active == 0, "the worker lets go of it")
        home.execute(allow)
        result = engine.wait(job_id, timeout=20)

    words = [record for record in caplog.records if record.name == "holdfast.writer"]
    job = engine.store.job(job_id)
    assert (result.state, result.outcome) == (JobState.FAILED, EndCode.ABORT)
    assert (job.attempt, job.crashes) == (2, 1)
    assert len(words) == 1


def test_tries_used_up_end_the_job_in_quarantine_by_way_of_failed(open_engine: OpenEngine, effects: Effects) -> None:
    flow = flow_of(raises(ValueError("no luck")), retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    journal = [(entry.job_from, entry.job_to) for entry in engine.store.journal(job_id)]
    assert result.state is JobState.QUARANTINED
    assert result.outcome == EndCode.ERROR
    assert "work failed 3 time(s): ValueError: no luck" in (result.reason or "")
    assert states_of(journal) == ["pending", "running", "failed", "quarantined"]
    assert effects() == []


def test_a_job_with_attempts_left_is_failed_and_then_pending_again(open_engine: OpenEngine, effects: Effects) -> None:
    flow = flow_of(raises(ValueError("no"), ValueError("no"), None), retry=never(), job_retry=fixed(3, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    job = engine.store.job(job_id)
    journal = [(entry.job_from, entry.job_to) for entry in engine.store.journal(job_id)]
    assert result.state is JobState.SUCCEEDED
    assert (job.attempt, job.failures, job.crashes) == (3, 2, 0)
    assert states_of(journal) == ["pending", *["running", "failed", "pending"] * 2, "running", "succeeded"]
    assert effects() == [job_id]


def test_attempts_used_up_end_the_job_in_quarantine(open_engine: OpenEngine) -> None:
    tally = Tally()

    def step(run: AskRun) -> Answer:
        tally.add("tried")
        raise ValueError("no")

    flow = flow_of(step, retry=fixed(1, delay=0.01), job_retry=fixed(2, delay=0.01))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert tally.count("tried") == 6
    assert engine.store.job(job_id).attempt == 3


@pytest.mark.parametrize("returned", [True, False], ids=["returned", "raised"])
def test_a_handoff_commits_with_its_response_and_skips_the_rest(open_engine: OpenEngine, returned: bool) -> None:
    tally = Tally()

    def hand_off(run: AskRun) -> Answer | Handoff:
        outcome = Handoff(Answer(trail=["it was there"]))
        if returned:
            return outcome
        raise outcome

    def save(run: AskRun, tx: Transaction) -> None:
        tally.add("saved")

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("check", hand_off).to("work", note("work")).commit("save", save)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["it was there"]
    assert engine.wait(job_id).outcome == EndCode.HANDOFF
    assert tally.events == []
    assert [entry.exec_to for entry in engine.store.journal(job_id)][-2:] == ["committed", "done"]


def test_a_handoff_without_a_response_keeps_the_one_so_far(open_engine: OpenEngine) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("two", raises(Handoff())).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["one"]


@pytest.mark.parametrize("response", [None, Answer(trail=["given"])])
def test_a_handoff_returned_by_the_commit_step_keeps_the_effect_and_a_response(
    open_engine: OpenEngine, effects: Effects, response: Answer | None
) -> None:
    def save(run: AskRun, tx: Transaction) -> Handoff:
        write_effect(run, tx)
        return Handoff(response)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).commit("save", save)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == (["given"] if response else ["one"])
    assert effects() == [job_id]


def test_a_handoff_raised_by_the_commit_step_is_the_same_as_one_returned(
    open_engine: OpenEngine, effects: Effects
) -> None:
    def save(run: AskRun, tx: Transaction) -> None:
        write_effect(run, tx)
        raise Handoff(Answer(trail=["given"]))

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).commit("save", save)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["given"]
    assert effects() == [job_id], "the job has succeeded, but what its commit step wrote is gone"


@pytest.mark.parametrize(
    "outcome, ends_as, code",
    [
        (Abort("no such image"), JobState.FAILED, EndCode.ABORT),
        (Unrecoverable("a bad image"), JobState.QUARANTINED, EndCode.UNRECOVERABLE),
    ],
)
@pytest.mark.parametrize("where", ["first", "later", "commit"])
def test_giving_up_cleans_up_and_is_not_tried_again(
    open_engine: OpenEngine,
    effects: Effects,
    outcome: Abort | Unrecoverable,
    ends_as: JobState,
    code: EndCode,
    where: str,
) -> None:
    tally = Tally()

    def give_up(run: AskRun) -> Answer:
        tally.add("tried")
        raise outcome

    def save(run: AskRun, tx: Transaction) -> None:
        write_effect(run, tx)
        if where == "commit":
            give_up(run)

    flow: AskFlow = Flow(
        "flow", request=Ask, response=Answer, cleanup=lambda run: tally.note("cleaned"), job_retry=fixed(5)
    )
    flow.start("one", give_up if where == "first" else note("one"), retry=fixed(5))
    flow.to("two", give_up if where == "later" else note("two"), retry=fixed(5)).commit("save", save, retry=fixed(5))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (ends_as, code, outcome.reason)
    assert tally.events == ["tried", "cleaned"]
    assert effects() == []
    assert engine.store.executions(job_id)[-1].attempt == 1


def test_a_rewind_goes_on_from_an_earlier_step_with_the_response_it_had_there(open_engine: OpenEngine) -> None:
    tally = Tally()

    def extract(run: AskRun) -> Answer:
        if tally.add("extracted") == 1:
            raise Rewind("create", "the device is gone")
        return note("extract")(run)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("check", note("check")).to("create", note("create")).to("extract", extract).commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["check", "create", "extract"]
    assert len(engine.store.executions(job_id)) == 1
    assert any("the device is gone" in entry.reason for entry in engine.store.journal(job_id))


@pytest.mark.parametrize("target", ["later", "nowhere"])
def test_a_rewind_to_a_step_that_is_not_earlier_is_a_bug_in_the_flow(open_engine: OpenEngine, target: str) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("two", raises(Rewind(target))).to("later", note("later"))
    flow.commit("save", write_effect)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert target in (result.reason or "")


def test_a_flow_without_a_commit_step_commits_with_its_last_step(open_engine: OpenEngine) -> None:
    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", note("one")).to("two", note("two"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        answer = engine.result(flow, job_id, timeout=20)

    assert answer.trail == ["one", "two"]
    assert engine.wait(job_id).outcome == EndCode.COMPLETED


def test_a_response_that_cannot_be_saved_is_said_so(open_engine: OpenEngine) -> None:
    def step(run: Run[Ask, Answer]) -> object:
        return object()

    flow = flow_of(step)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert "cannot be saved" in (result.reason or "")


def test_a_response_of_the_wrong_type_is_found_when_it_is_returned_and_not_after_the_next_crash(
    open_engine: OpenEngine,
) -> None:
    def step(run: Run[Ask, Answer]) -> object:
        return {"total": "many"}

    flow: AskFlow = Flow("flow", request=Ask, response=Answer)
    flow.start("one", step).to("two", note("two")).commit("save", write_effect)  # type: ignore[arg-type]
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert result.state is JobState.QUARANTINED
    assert "one" in (result.reason or "")
