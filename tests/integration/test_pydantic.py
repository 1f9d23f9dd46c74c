"""Pydantic models as requests and responses, through every door that a message goes through."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from holdfast import Engine, Flow, Handoff, JobState, Pipeline, PipelineView, Run, Transaction, WaitFor
from holdfast.errors import DefinitionError, RequestInvalidError
from holdfast.testing import VirtualClock, run_until_idle
from tests.integration.conftest import QUICK, OpenEngine


class Line(pydantic.BaseModel):
    name: str
    price: Decimal = pydantic.Field(gt=0, alias="unitPrice")


class Order(pydantic.BaseModel):
    number: str
    lines: list[Line] = []
    at: dt.datetime = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    @pydantic.field_validator("number")
    @classmethod
    def _is_spelled_so(cls, number: str) -> str:
        if not number.startswith("A-"):
            raise ValueError("an order's number begins with A-")
        return number


class Receipt(pydantic.BaseModel):
    total: Decimal = Decimal(0)
    steps: list[str] = []


class Demanding(pydantic.BaseModel):
    number: int


ORDER = Order(number="A-1", lines=[Line(name="pen", unitPrice=Decimal("1.50")), Line(name="ink", unitPrice=Decimal(4))])


def add(run: Run[Order, Receipt]) -> Receipt:
    assert isinstance(run.request, Order)
    return Receipt(total=sum((line.price for line in run.request.lines), Decimal(0)), steps=["add"])


async def sign(run: Run[Order, Receipt]) -> None:
    assert isinstance(run.response, Receipt)
    run.response.steps.append("sign")


def save(run: Run[Order, Receipt], tx: Transaction) -> Receipt:
    return run.response.model_copy(update={"steps": [*run.response.steps, "save"]})


def order_flow(**settings: Any) -> Flow[Order, Receipt]:
    flow = Flow("order", request=Order, response=Receipt, **settings)
    return flow.start("add", add).to("sign", sign).commit("save", save)


def test_a_flow_of_models_runs_from_submit_to_result(open_engine: OpenEngine) -> None:
    flow = order_flow()
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        job_id = engine.submit(flow, ORDER)
        receipt = engine.result(flow, job_id, timeout=60)

    assert receipt == Receipt(total=Decimal("5.50"), steps=["add", "sign", "save"])
    assert engine.wait(job_id).decode(flow) == receipt


def test_the_driver_of_tests_takes_models_too(open_engine: OpenEngine) -> None:
    clock = VirtualClock()
    flow = order_flow(unique="forever")
    engine = open_engine(flow, clock=clock)
    job_id = engine.submit(flow, ORDER, key="A-1")
    run_until_idle(engine, clock)

    assert engine.result(flow, job_id).total == Decimal("5.50")
    assert engine.submit_or_find(flow, ORDER, key="A-1").same_request


@pytest.mark.parametrize(
    "request_", [{"number": "B-1"}, {"number": "A-1", "lines": [{"name": "x", "unitPrice": -1}]}, None, 7]
)
def test_what_the_model_does_not_take_is_refused_at_submit(open_engine: OpenEngine, request_: Any) -> None:
    engine = open_engine(order_flow())

    with pytest.raises(RequestInvalidError) as refused:
        engine.submit("order", request_)

    assert "not a valid Order" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_spoiled_by_a_step_is_not_saved(open_engine: OpenEngine) -> None:
    def spoil(run: Run[Order, Receipt]) -> None:
        run.response.total = "much"  # type: ignore[assignment]

    flow = Flow("spoil", request=Order, response=Receipt).start("spoil", spoil)
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        result = engine.wait(engine.submit(flow, ORDER), timeout=60)

    assert result.state is JobState.QUARANTINED
    assert "cannot be saved" in (result.reason or "")


def test_a_handoff_may_carry_a_model(open_engine: OpenEngine) -> None:
    flow = Flow("known", request=Order, response=Receipt).start("look", lambda run: Handoff(Receipt(total=Decimal(1))))
    engine = open_engine(flow)
    with engine.worker(**QUICK):
        assert engine.result(flow, engine.submit(flow, ORDER), timeout=60).total == 1


def test_a_pipeline_maps_models(open_engine: OpenEngine) -> None:
    def receipt_of(view: PipelineView[Order]) -> Order:
        assert isinstance(view.previous, Receipt)
        return Order(number=f"A-{view.previous.total}")

    flow = order_flow()
    second = Flow("second", request=Order, response=Receipt).start("add", add)
    pipeline = Pipeline("both", request=Order).then(flow, request=lambda view: view.request)
    pipeline.then(second, request=receipt_of)
    engine = open_engine(pipeline)
    with engine.worker(**QUICK):
        job_id = engine.submit(pipeline, ORDER)
        response = engine.result(pipeline, job_id, timeout=60)

    assert response.stages["order"].response == {"total": "5.50", "steps": ["add", "sign", "save"]}
    assert '"A-5.50"' in engine.store.request(response.stages["second"].job_id)


def test_the_result_of_a_child_is_a_model_again(open_engine: OpenEngine) -> None:
    flow = order_flow()

    def ask(run: Run[Order, Receipt]) -> Receipt:
        child = run.submit_child("child", flow, run.request, key="c")
        receipt = run.child_result(child).decode(flow)
        if receipt is None:
            raise WaitFor(child)
        return receipt

    parent = Flow("parent", request=Order, response=Receipt).start("ask", ask)
    engine: Engine = open_engine(parent, flow)
    with engine.worker(**QUICK):
        assert engine.result(parent, engine.submit(parent, ORDER), timeout=60).total == Decimal("5.50")


def test_a_response_with_demands_needs_an_initial_one() -> None:
    with pytest.raises(DefinitionError, match="cannot be made without arguments"):
        Flow("f", request=Order, response=Demanding)

    flow = Flow("f", request=Order, response=Demanding, initial=lambda order: Demanding(number=len(order.lines)))
    assert flow.first_response(ORDER) == Demanding(number=2)
