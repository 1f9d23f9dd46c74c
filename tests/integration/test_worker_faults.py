"""An error that nobody expected, about one job or in one round, costs that job or that round and not the worker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from holdfast import Flow, JobState, Transaction
from holdfast.core.step import EndCode
from holdfast.errors import StateTransitionRaceError
from holdfast.worker import worker as worker_module
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, AskRun, Gate, flow_of, note, write_effect
from tests.support.waiting import PATIENCE, eventually

BEFORE, AFTER = "caf\udce9.txt", r"caf\udce9.txt"
"""A file name as Python has it that is not UTF-8, and as it is kept."""


class Unprintable(Exception):
    """An error that cannot be told."""

    def __init__(self, inner: BaseException) -> None:
        self._inner = inner

    def __str__(self) -> str:
        raise self._inner

    __repr__ = __str__


def endless(depth: int = 0) -> Answer:
    return endless(depth + 1)


class Refuse:
    """A verb of the store that fails a few times with what nobody expects."""

    def __init__(self, verb: Any, error: BaseException, times: int) -> None:
        self._verb, self._error, self.left = verb, error, times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.left > 0 and threading.current_thread().name == "holdfast-scheduler":
            self.left -= 1
            raise self._error
        return self._verb(*arguments, **named)


@pytest.mark.parametrize("error", [ValueError("strange row"), StateTransitionRaceError("refused"), KeyError("flow")])
@pytest.mark.parametrize(
    "verb, part",
    [("claim", "claim jobs"), ("recover", "recover"), ("next_due", "look at what is due"), ("workers", "recover")],
)
@pytest.mark.only_sqlite
def test_a_round_that_fails_is_tried_again(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, verb: str, part: str, error: Exception
) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    with engine.worker(**{**QUICK, "recovery_interval": 0.2}) as worker:
        refuse = Refuse(getattr(engine.store, verb), error, 2)
        monkeypatch.setattr(engine.store, verb, refuse)
        job_id = engine.submit(flow, Ask())
        result = engine.wait(job_id, timeout=PATIENCE)
        eventually(lambda: refuse.left == 0)
        eventually(lambda: worker.telemetry.faults[part] == 2)
        assert worker.failure is None

    assert result.state is JobState.SUCCEEDED


def test_a_worker_that_can_claim_nothing_for_long_fails_when_it_holds_nothing(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    monkeypatch.setattr(worker_module, "FAULT_PATIENCE", 0.5)
    with engine.worker(**QUICK) as worker:
        gate.wait_for_arrival()
        refuse = Refuse(engine.store.claim, ValueError("a bug"), 1_000_000)
        monkeypatch.setattr(engine.store, "claim", refuse)
        eventually(lambda: worker._claiming.faulty_for > 1.0)
        while_it_works = worker.failure
        gate.open()
        result = engine.wait(job_id, timeout=PATIENCE)
        eventually(lambda: worker.failure is not None)

    assert while_it_works is None
    assert result.state is JobState.SUCCEEDED
    assert str(worker.failure) == "a bug"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(BEFORE),
        SystemExit(2),
        KeyboardInterrupt(),
        GeneratorExit(),
        Unprintable(ValueError("no")),
        Unprintable(SystemExit("no")),
        RecursionError(),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("first", ["plain", "async", "commit"])
def test_an_initial_that_raises_anything_quarantines_its_job_alone(
    open_engine: OpenEngine, error: BaseException, first: str
) -> None:
    def initial(request: Ask) -> Answer:
        raise error

    async def later(run: AskRun) -> None:
        pass

    bad: AskFlow = Flow("bad", request=Ask, response=Answer, initial=initial)
    if first == "commit":
        # A flow may consist of its commit step only.
        bad._add("save", write_effect, fixed_never(), None, is_commit=True)
    else:
        bad.start("work", note("work") if first == "plain" else later).commit("save", write_effect)
    good = flow_of(note("work"), "good")
    engine = open_engine(bad, good)
    jobs = [engine.submit(bad, Ask()) for _ in range(3)]
    with engine.worker(**QUICK) as worker:
        fine = engine.wait(engine.submit(good, Ask()), timeout=PATIENCE)
        results = [engine.wait(job_id, timeout=PATIENCE) for job_id in jobs]
        assert worker.failure is None

    assert fine.state is JobState.SUCCEEDED
    assert {result.state for result in results} == {JobState.QUARANTINED}
    assert all("the flow's first response cannot be made" in str(result.reason) for result in results)
    assert {engine.store.executions(job_id)[-1].code for job_id in jobs} == {"unrecoverable"}
    assert {engine.explain(job_id).code for job_id in jobs} == {"quarantined"}


def fixed_never() -> Any:
    from holdfast import never

    return never()


def test_an_initial_without_an_end_quarantines_its_job_alone(open_engine: OpenEngine) -> None:
    bad: AskFlow = Flow("bad", request=Ask, response=Answer, initial=lambda _request: endless())
    bad.start("work", note("work"))
    engine = open_engine(bad)
    with engine.worker(**QUICK):
        result = engine.wait(engine.submit(bad, Ask()), timeout=PATIENCE)

    assert result.state is JobState.QUARANTINED
    assert "RecursionError" in str(result.reason)


def test_an_initial_that_takes_its_time_holds_up_nobody_else(open_engine: OpenEngine) -> None:
    gate = Gate()

    def initial(request: Ask) -> Answer:
        if request.number == 0:  # asked once more when the flow is defined or the job is submitted, perhaps
            gate.pass_through()
        return Answer()

    slow: AskFlow = Flow("slow", request=Ask, response=Answer, initial=initial)
    slow.start("work", note("work"))
    good = flow_of(note("work"), "good")
    engine = open_engine(slow, good)
    with engine.worker(**QUICK):
        waiting = engine.submit(slow, Ask())
        gate.wait_for_arrival()
        state = engine.wait(engine.submit(good, Ask()), timeout=PATIENCE).state
        gate.open()
        after = engine.wait(waiting, timeout=PATIENCE).state

    assert (state, after) == (JobState.SUCCEEDED, JobState.SUCCEEDED)


@pytest.mark.parametrize("inner", [ValueError("no"), SystemExit("no")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["plain", "async", "commit", "cleanup"])
def test_an_error_that_cannot_be_printed_is_one_like_any_other(
    open_engine: OpenEngine, where: str, inner: BaseException
) -> None:
    def fail(run: AskRun, _tx: Transaction | None = None) -> None:
        raise Unprintable(inner)

    async def fail_later(run: AskRun) -> None:
        raise Unprintable(inner)

    flow: AskFlow = Flow("flow", request=Ask, response=Answer, cleanup=fail if where == "cleanup" else None)
    steps: dict[str, Any] = {"async": fail_later, "commit": note("work")}
    flow.start("work", steps.get(where, fail))
    flow.commit("save", fail if where == "commit" else write_effect)
    engine = open_engine(flow)
    with engine.worker(**QUICK) as worker:
        result = engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE)
        assert worker.failure is None

    assert result.state is JobState.QUARANTINED
    assert "Unprintable" in str(result.reason)


@pytest.mark.parametrize("how", ["error", "abort", "unrecoverable", "rewind", "retry", "progress", "cancel"])
def test_half_characters_in_any_text_are_spelled_out(open_engine: OpenEngine, how: str) -> None:
    from holdfast import Abort, Rewind, Unrecoverable, fixed

    gate = Gate()
    rewound: list[bool] = []

    def step(run: AskRun) -> None:
        if how == "abort":
            raise Abort(BEFORE)
        if how == "unrecoverable":
            raise Unrecoverable(BEFORE)
        if how == "rewind":
            if not rewound:
                rewound.append(True)
                raise Rewind("work", BEFORE)
            raise ValueError(BEFORE)
        if how == "progress":
            run.progress(1, 2, BEFORE + "\0")
        if how == "cancel":
            gate.pass_through(run)
        raise ValueError(BEFORE + "\0")

    flow = flow_of(step, retry=fixed(1 if how == "retry" else 0, delay=0.01))
    engine = open_engine(flow)
    with engine.worker(**QUICK) as worker:
        job_id = engine.submit(flow, Ask())
        if how == "cancel":
            gate.wait_for_arrival()
            engine.store.cancel(job_id, actor=f"op {BEFORE}", reason=BEFORE)
        result = engine.wait(job_id, timeout=PATIENCE)
        assert worker.failure is None

    assert result.state in (JobState.QUARANTINED, JobState.FAILED)
    assert AFTER in str(result.reason)
    assert [entry for entry in engine.store.journal(job_id) if AFTER in entry.reason]


class Untouchable(Exception):
    """Nothing can be asked of it, not even of what class it is."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(2)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_that_cannot_be_looked_at_is_a_failed_try(open_engine: OpenEngine, is_async: bool) -> None:
    def step(run: AskRun) -> None:
        raise Untouchable

    async def async_step(run: AskRun) -> None:
        raise Untouchable

    flow = flow_of(async_step if is_async else step)
    engine = open_engine(flow)
    with engine.worker(**QUICK) as worker:
        result = engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE)
        assert worker.failure is None

    assert result.state is JobState.QUARANTINED
    assert "Untouchable" in str(result.reason)


@pytest.mark.parametrize("target", [None, "", 5, b"01HZZZZZZZZZZZZZZZZZZZZZZZ", BEFORE, "no job"], ids=repr)
def test_a_step_that_waits_for_what_is_no_job_has_failed(open_engine: OpenEngine, target: Any) -> None:
    from holdfast import WaitFor

    def step(run: AskRun) -> None:
        raise WaitFor(target)

    flow = flow_of(step)
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        job_id = engine.submit(flow, Ask())
        result = engine.wait(job_id, timeout=PATIENCE)

    [execution] = engine.store.executions(job_id)
    assert (result.state, execution.code) == (JobState.QUARANTINED, EndCode.ERROR)
    assert "is not a ULID" in str(result.reason)


def test_a_step_that_goes_on_waiting_for_a_job_that_has_ended_is_entered_now_and_then_only(
    open_engine: OpenEngine,
) -> None:
    from holdfast import WaitFor

    def nothing(run: AskRun) -> None:
        pass

    def waits(run: AskRun) -> None:
        raise WaitFor(target)

    ended, waiting = flow_of(nothing, "ended"), flow_of(waits, "waiting")
    engine = open_engine(ended, waiting)
    with engine.worker(**QUICK):
        target = engine.submit(ended, Ask())
        engine.wait(target, timeout=PATIENCE)
        eventually(lambda: engine.store.now() > engine.store.job(target).updated_at)
        job_id = engine.submit(waiting, Ask())
        eventually(lambda: engine.store.job(job_id).hold == "until", "it does not begin again at once")
        engine.cancel(job_id, reason="enough")
        state = engine.wait(job_id, timeout=PATIENCE).state

    assert state is JobState.FAILED


def test_the_limit_of_a_response_counts_bytes(open_engine: OpenEngine) -> None:
    def step(run: AskRun) -> Answer:
        return Answer(trail=["ü" * (3 << 20)])

    flow = flow_of(step)
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        result = engine.wait(engine.submit(flow, Ask()), timeout=PATIENCE)

    assert result.state is JobState.QUARANTINED
    assert "the limit is" in str(result.reason)
