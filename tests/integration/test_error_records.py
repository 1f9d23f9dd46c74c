"""The error of a job comes back as data: its class, message, hint and facts, whatever way it ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast import Abort, Engine, ErrorRecord, Flow, HoldfastError, JobFailed, Pipeline, Run, Unrecoverable, fixed
from tests.integration.conftest import QUICK, OpenEngine
from tests.support.flows import Answer, Ask, flow_of, note


class CardDeclined(HoldfastError):
    def __init__(self, amount: int) -> None:
        super().__init__("the card was declined: (5 > 3)", hint="use another card (or less)")
        self.facts = {"amount": amount, "limit": 3, "codes": ["A", "B"]}


class Odd(Exception):
    """Whatever is asked of it raises, or is no JSON."""

    def __init__(self, facts: object) -> None:
        super().__init__("odd \0 \ud800")
        self.facts = facts

    @property
    def hint(self) -> str:
        raise SystemExit(1)


def declines(_run: Run[Any, Any]) -> None:
    raise CardDeclined(5)


async def declines_later(_run: Run[Any, Any]) -> None:
    await asyncio.sleep(0)
    raise CardDeclined(5)


def aborts(_run: Run[Any, Any]) -> None:
    raise Abort(CardDeclined(5))


def never_again(_run: Run[Any, Any]) -> None:
    raise Unrecoverable(CardDeclined(5))


def commits(_run: Run[Any, Any], _tx: Any) -> None:
    raise Abort(CardDeclined(5))


DECLINED = ErrorRecord(
    type="CardDeclined",
    message="the card was declined: (5 > 3)",
    hint="use another card (or less)",
    facts={"amount": 5, "limit": 3, "codes": ["A", "B"]},
    step="step",
)


def error_of(engine: Engine, flow: Flow[Any, Any], request: object = None) -> ErrorRecord:
    job_id = engine.submit(flow, request or Ask())
    with engine.worker(**QUICK), pytest.raises(JobFailed) as failed:
        engine.result(flow, job_id, timeout=60)
    result = engine.wait(job_id)
    assert result.error is not None
    assert failed.value.error == result.error
    assert failed.value.hint == (result.error.hint or f"see what happened: holdfast job show {job_id}")
    assert engine.explain(job_id).details["error_type"] == result.error.type
    return result.error


def test_an_exception_given_as_the_reason_comes_back_as_it_was(open_engine: OpenEngine) -> None:
    flows: list[Flow[Any, Any]] = [
        Flow("aborts", request=Ask, response=Answer).start("step", aborts),
        Flow("never", request=Ask, response=Answer).start("step", never_again),
        Flow("commits", request=Ask, response=Answer).start("first", note("first")).commit("step", commits),
        Flow("cleans", request=Ask, response=Answer, cleanup=lambda _run: None).start("step", aborts),
    ]
    engine = open_engine(*flows)

    assert [error_of(engine, flow) for flow in flows] == [DECLINED] * 4


@pytest.mark.parametrize("step", [declines, declines_later])
def test_the_error_of_the_last_try_comes_back_with_the_number_of_tries(open_engine: OpenEngine, step: Any) -> None:
    flow: Flow[Any, Any] = Flow("flow", request=Ask, response=Answer)
    flow.start("step", step, retry=fixed(2, delay=0.01))
    error = error_of(open_engine(flow), flow)

    assert error.tries == 3
    assert (error.type, error.hint, error.facts) == (DECLINED.type, DECLINED.hint, DECLINED.facts)


def test_a_reason_in_words_is_the_message(open_engine: OpenEngine) -> None:
    def words(_run: Run[Any, Any]) -> None:
        raise Abort("not today: (hint: none)")

    flow = flow_of(words)

    assert error_of(open_engine(flow), flow) == ErrorRecord(
        type="Abort", message="not today: (hint: none)", step=flow.steps[0].name
    )


def test_a_pipeline_fails_with_the_error_of_its_stage(open_engine: OpenEngine) -> None:
    stage: Flow[Any, Any] = Flow("stage", request=Ask, response=Answer).start("step", aborts)
    pipeline = Pipeline("pipeline", request=Ask).then(stage, request=lambda view: view.request)
    error = error_of(open_engine(stage, pipeline), pipeline)

    assert error == DECLINED


@pytest.mark.parametrize("facts", [object(), {"a": object()}, {"x": "y" * 10_000}, {"n": "\0\ud800"}, {1: 2}, [1]])
def test_an_odd_error_leaves_what_can_be_kept_of_it(open_engine: OpenEngine, facts: object) -> None:
    def fails(_run: Run[Any, Any]) -> None:
        raise Abort(Odd(facts))

    flow = flow_of(fails)
    error = error_of(open_engine(flow), flow)

    assert (error.type, error.hint) == ("Odd", None)
    assert error.message == "odd ␀ \\ud800"


def test_a_cancelled_job_says_so(open_engine: OpenEngine) -> None:
    flow = flow_of(note("never runs"))
    engine = open_engine(flow)
    job_id = engine.submit(flow, Ask())
    engine.cancel(job_id, reason="not needed")
    with engine.worker(**QUICK):
        result = engine.wait(job_id, timeout=60)

    assert result.error == ErrorRecord(type="cancelled", message="not needed")
