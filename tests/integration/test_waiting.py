"""What a client sees: wait, result, bad input refused before anything is written, and explanations."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from holdfast import Flow, JobState
from holdfast.errors import (
    BadInput,
    CycleError,
    InvalidKeyError,
    JobFailed,
    JobNotFoundError,
    RequestInvalidError,
    RequestTooLargeError,
    UnknownFlowError,
    WaitTimeout,
)
from holdfast.store.rows import new_ulid
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, AskFlow, Gate, flow_of, note, raises


def test_a_wait_ends_with_the_job(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=20)

    assert (result.state, result.outcome, result.reason) == (JobState.SUCCEEDED, "completed", None)
    assert result.seconds >= 0


def test_a_wait_that_takes_too_long_says_so(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    began = time.monotonic()
    with pytest.raises(WaitTimeout, match="pending") as caught:
        engine.wait(job_id, timeout=0.1)

    assert time.monotonic() - began < 3
    assert job_id in (caught.value.hint or "")


def test_a_wait_is_woken_and_does_not_poll(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine, client = open_engine(flow), open_engine(flow)
    job_id = engine.submit(flow, Ask())
    took: list[float] = []

    def wait() -> None:
        client.wait(job_id, timeout=20)
        took.append(time.monotonic())

    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.2)
        opened = time.monotonic()
        gate.open()
        waiter.join(20)

    assert took[0] - opened < 2


def test_many_may_wait_for_one_job(open_engine: OpenEngine) -> None:
    gate = Gate()
    flow = flow_of(gate.pass_through)
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    states: list[JobState] = []
    with engine.worker(**QUICK):
        gate.wait_for_arrival()
        waiters = [threading.Thread(target=lambda: states.append(engine.wait(job_id, 20).state)) for _ in range(10)]
        for waiter in waiters:
            waiter.start()
        gate.open()
        for waiter in waiters:
            waiter.join(20)

    assert states == [JobState.SUCCEEDED] * 10


def test_the_result_of_a_job_that_failed_is_an_error_with_its_reason(open_engine: OpenEngine) -> None:
    flow = flow_of(raises(ValueError("no luck")))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK), pytest.raises(JobFailed, match="no luck") as caught:
        engine.result(flow, job_id, timeout=20)

    assert (caught.value.job_id, caught.value.state) == (job_id, JobState.QUARANTINED)


def test_a_result_can_be_had_again_and_by_somebody_else(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    with engine.worker(**QUICK):
        first = engine.result(flow, job_id, timeout=20)
    second = open_engine(flow).result(flow, job_id)

    assert first == second == Answer(trail=["work"], total=1)


def test_waiting_for_a_job_that_does_not_exist_is_an_error(open_engine: OpenEngine) -> None:
    engine = open_engine()
    with pytest.raises(JobNotFoundError):
        engine.wait(new_ulid(1), timeout=1)

    assert engine.store.jobs() == []


# --- bad input ---------------------------------------------------------------------------------------------


def bad_calls(flow: AskFlow) -> dict[str, tuple[type[BadInput], dict[str, object]]]:
    return {
        "unknown flow": (UnknownFlowError, {"flow": "nowhere", "request": Ask()}),
        "wrong type": (RequestInvalidError, {"flow": flow, "request": {"number": "many"}}),
        "not serialisable": (RequestInvalidError, {"flow": flow, "request": object()}),
        "too large": (RequestTooLargeError, {"flow": flow, "request": Ask("x" * (1 << 20))}),
        "empty key": (InvalidKeyError, {"flow": flow, "request": Ask(), "key": ""}),
        "long key": (InvalidKeyError, {"flow": flow, "request": Ask(), "key": "k" * 513}),
        "unprintable key": (InvalidKeyError, {"flow": flow, "request": Ask(), "key": "a\x00b"}),
        "bad queue": (BadInput, {"flow": flow, "request": Ask(), "queue": "no spaces"}),
        "bad predecessor": (InvalidKeyError, {"flow": flow, "request": Ask(), "run_after": "nonsense"}),
        "bad priority": (BadInput, {"flow": flow, "request": Ask(), "priority": 10**9}),
        "fractional priority": (BadInput, {"flow": flow, "request": Ask(), "priority": 1.5}),
        "endless delay": (BadInput, {"flow": flow, "request": Ask(), "delay": float("inf")}),
        "no delay at all": (BadInput, {"flow": flow, "request": Ask(), "delay": float("nan")}),
        "bad parent": (BadInput, {"flow": flow, "request": Ask(), "parent": "nonsense"}),
        "far too late": (BadInput, {"flow": flow, "request": Ask(), "not_before": 1 << 70}),
    }


@pytest.mark.parametrize("name", bad_calls(flow_of(note("x"))))
def test_bad_input_is_refused_and_changes_nothing(open_engine: OpenEngine, name: str) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    error, arguments = bad_calls(flow)[name]
    with pytest.raises(error) as caught:
        engine.submit(**arguments)  # type: ignore[arg-type]

    assert str(caught.value)
    assert engine.store.jobs() == []
    assert engine.store.queues() == []


def test_a_request_of_exactly_the_limit_is_taken(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    overhead = len(b'{"name":"","number":0}')
    job_id = engine.submit(flow, Ask("x" * ((1 << 20) - overhead)))

    assert len(engine.store.request(job_id)) == 1 << 20


def test_a_cycle_of_predecessors_is_refused(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    ids = [new_ulid(1) for _ in range(3)]
    jobs = [engine.prepare(flow, Ask(), job_id=ids[n], run_after=ids[(n + 1) % 3]) for n in range(3)]
    with pytest.raises(CycleError):
        engine.submit_many(jobs)
    with pytest.raises(CycleError):
        engine.prepare(flow, Ask(), job_id=ids[0], run_after=ids[0])

    assert engine.store.jobs() == []


def test_two_flows_of_one_name_are_refused(open_engine: OpenEngine) -> None:
    engine = open_engine(flow_of(note("one")))
    with pytest.raises(BadInput):
        engine.register(flow_of(note("two")))

    assert list(engine.flows) == ["flow"]


def test_a_flow_without_steps_is_refused(open_engine: OpenEngine) -> None:
    empty: AskFlow = Flow("empty", request=Ask, response=Answer)
    with pytest.raises(BadInput):
        open_engine(empty)

    assert empty.steps == []


def test_the_default_request_is_checked_like_any_other(open_engine: OpenEngine) -> None:
    """A struct is not validated when it is made, only when it is read back."""
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    with pytest.raises(RequestInvalidError):
        engine.submit(flow, Ask(name=5))  # type: ignore[arg-type]

    assert engine.store.jobs() == []


# --- explanations ------------------------------------------------------------------------------------------


def test_a_finished_job_is_explained_even_if_its_predecessor_was_forgotten(open_engine: OpenEngine) -> None:
    flow = flow_of(note("work"))
    engine = open_engine(flow)
    first = engine.submit(flow, Ask())
    second = engine.submit(flow, Ask(), run_after=first)
    with engine.worker(**QUICK):
        engine.wait(second, timeout=20)
    engine.store.prune(before=engine.store.now() + 1000, limit=1, actor="operator", dry_run=False)

    with pytest.raises(JobNotFoundError):
        engine.store.job(first)
    assert engine.explain(second).code == "succeeded"


@pytest.mark.parametrize("situation", ["ready", "scheduled", "waiting", "paused", "full", "failed", "backing-off"])
def test_every_job_that_does_not_run_can_be_explained(open_engine: OpenEngine, situation: str) -> None:
    from holdfast import fixed

    bad = flow_of(raises(ValueError("no luck")), "bad", job_retry=fixed(3, delay=50), queue="bad")
    flow = flow_of(note("work"), queue="q")
    engine = open_engine(flow, bad)
    blocker = engine.submit(flow, Ask(), delay=100)
    engine.store.pause_queue("q", actor="alice", reason="lunch") if situation == "paused" else None
    engine.queue("q", limit=0 if situation == "full" else 5)
    with engine.worker(**QUICK):
        if situation in ("failed", "backing-off"):
            job_id = engine.submit(bad, Ask())
            while engine.store.job(job_id).failures == 0:
                time.sleep(0.01)
            if situation == "failed":
                engine.force(job_id, JobState.FAILED, reason="enough")
        else:
            job_id = engine.submit(
                flow,
                Ask(),
                delay=50 if situation == "scheduled" else 0,
                run_after=blocker if situation == "waiting" else None,
                queue="nobody" if situation == "ready" else None,
            )
            if situation == "ready":
                engine.wait(job_id, timeout=20)
        explanation = engine.explain(job_id)

    expected = {
        "ready": "succeeded",
        "scheduled": "scheduled",
        "waiting": "waiting-for-job",
        "paused": "queue-paused",
        "full": "queue-full",
        "failed": "failed",
        "backing-off": "backing-off",
    }
    assert explanation.code == expected[situation]
    assert explanation.sentence.endswith(".")


def test_an_engine_is_closed_by_its_block(state: Path) -> None:
    from holdfast import Engine

    with Engine.open(state) as engine:
        engine.store.jobs()

    with pytest.raises(Exception):  # noqa: B017 - any error is better than a silent success
        engine.store.jobs()
