"""What a flow may look like; what cannot run is refused when it is declared."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.flow import Flow
from holdfast.core.retry import exponential, minutes
from holdfast.errors import DefinitionError


class Request(msgspec.Struct):
    url: str


class Response(msgspec.Struct):
    size: int = 0


class Demanding(msgspec.Struct):
    size: int


def step(run: Any) -> None: ...


async def slow_step(run: Any) -> None: ...


def commit(run: Any, tx: Any) -> None: ...


async def slow_commit(run: Any, tx: Any) -> None: ...


def a_flow(**settings: Any) -> Flow[Request, Response]:
    return Flow("demo", **{"request": Request, "response": Response} | settings)


def test_a_flow_reads_like_what_it_does() -> None:
    flow = (
        a_flow(queue="downloads")
        .start("check", step, retry=exponential(3))
        .to("fetch", slow_step, timeout=minutes(5))
        .commit("store", commit)
    )
    flow.check_complete()

    assert [(s.name, s.is_commit, s.is_async) for s in flow.steps] == [
        ("check", False, False),
        ("fetch", False, True),
        ("store", True, False),
    ]
    assert flow.definition.steps == ("check", "fetch", "store")
    assert flow.position_of("fetch") == 1
    assert flow.steps[1].timeout == 300.0


def test_a_flow_without_steps_is_not_complete() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().check_complete()

    assert "demo" in str(refused.value)


def test_a_flow_has_one_start() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step).start("two", step)

    assert refused.value.hint == "use .to"


def test_a_flow_begins_with_start() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().to("one", step)

    assert refused.value.hint == "begin with .start"


def test_two_steps_cannot_have_one_name() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step).to("one", step)

    assert "two steps named 'one'" in str(refused.value)


def test_nothing_comes_after_the_commit() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step).commit("store", commit).to("late", step)

    assert "commit step" in str(refused.value)


def test_a_commit_step_cannot_be_async() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().commit("store", slow_commit)  # type: ignore[arg-type]

    assert "async" in str(refused.value)


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_is_positive(timeout: float) -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step, timeout=timeout)

    assert "timeout" in str(refused.value)


def test_a_step_is_a_function() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", "not a function")  # type: ignore[arg-type]

    assert "not a function" in str(refused.value)


@pytest.mark.parametrize("settings", [{"crash_limit": 0}, {"stall_after": 0}, {"stall_after": -1.0}])
def test_limits_are_positive(settings: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow(**settings)

    assert "crash_limit" in str(refused.value)


@pytest.mark.parametrize("name", ["", "two words", "-x"])
def test_names_of_flows_queues_and_steps_are_checked(name: str) -> None:
    with pytest.raises(DefinitionError):
        Flow(name, request=Request, response=Response)
    with pytest.raises(DefinitionError):
        a_flow().start(name, step)
    if name:
        with pytest.raises(DefinitionError):
            a_flow(queue=name)

    assert a_flow(queue="").queue == ""


def test_an_unknown_step_is_named_together_with_those_that_exist() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step).to("two", step).position_of("three")

    assert refused.value.hint == "it has: one, two"


def test_the_first_response_comes_from_the_type_or_from_the_request() -> None:
    request = Request("s3://bucket/key")

    assert a_flow().first_response(request) == Response()
    assert Flow("n", request=Request, response=type(None)).first_response(request) is None
    custom = Flow("d", request=Request, response=Demanding, initial=lambda r: Demanding(len(r.url)))
    assert custom.first_response(request) == Demanding(15)


def test_a_response_that_cannot_be_made_needs_an_initial_one() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow(response=Demanding)

    assert refused.value.hint is not None
    assert "initial=" in refused.value.hint


@given(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), st.sampled_from(["1", "2"]))
def test_a_fingerprint_depends_on_name_version_and_steps_alone(names: list[str], version: str) -> None:
    def build(name: str, *, retries: int) -> Flow[Request, Response]:
        flow = Flow(name, request=Request, response=Response, version=version)
        flow.start(names[0], step, retry=exponential(retries))
        for other in names[1:]:
            flow.to(other, step)
        return flow

    assert build("demo", retries=1).fingerprint == build("demo", retries=9).fingerprint
    assert build("demo", retries=1).fingerprint != build("other", retries=1).fingerprint
    assert build("demo", retries=1).fingerprint != build("demo", retries=1).to("last", step).fingerprint


class Callable:
    async def __call__(self, run: object) -> None: ...


def test_an_object_with_an_async_call_is_an_async_step() -> None:
    flow: Flow[int, int] = Flow("demo", request=int, response=int).start("one", Callable())

    assert flow.steps[0].is_async
