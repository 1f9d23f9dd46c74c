"""What a flow may look like; what cannot run is refused when it is declared."""

from __future__ import annotations

import functools
import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.flow import Flow
from holdfast.core.retry import exponential, fixed, minutes
from holdfast.errors import DefinitionError


class Request(msgspec.Struct):
    url: str


class Response(msgspec.Struct):
    size: int = 0


class Bare: ...


class HoldsBare(msgspec.Struct):
    bare: Bare | None = None


class Early(msgspec.Struct):
    late: Late | None = None  # type: ignore[name-defined]  # noqa: F821 - what the test is about


class Demanding(msgspec.Struct):
    size: int


def step(run: Any) -> None: ...


async def slow_step(run: Any) -> None: ...


def step_with_a_default(run: Any, tried: int = 0) -> None: ...


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


@pytest.mark.parametrize("timeout", [0, -1, "5", True, math.nan, math.inf, timedelta(0), timedelta(seconds=-1), 1e-9])
def test_a_timeout_is_a_positive_duration(timeout: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", step, timeout=timeout)

    assert str(refused.value).startswith("flow demo: step 'one': timeout ")


def test_durations_of_a_definition_may_be_timedeltas() -> None:
    flow = a_flow(cleanup=step, cleanup_timeout=timedelta(minutes=1), stall_after=timedelta(hours=1))
    flow.start("one", step, timeout=timedelta(seconds=90))

    assert (flow.cleanup_timeout, flow.stall_after, flow.steps[0].timeout) == (60.0, 3600.0, 90.0)


@pytest.mark.parametrize(
    "function",
    [lambda: None, lambda run, tx: None, 7, "name", None, lambda run: (yield), iter(())],
)
def test_a_step_that_could_not_be_called_is_refused(function: Any) -> None:
    with pytest.raises(DefinitionError):
        a_flow().start("one", function)


def test_a_commit_step_takes_the_transaction_too() -> None:
    with pytest.raises(DefinitionError, match=r"cannot be called with \(run, tx\)"):
        a_flow().commit("one", step)  # type: ignore[arg-type]


def test_functions_of_every_kind_are_steps() -> None:
    flow = a_flow().start("one", functools.partial(commit, tx=None))
    flow.to("two", lambda *arguments: None).to("three", step_with_a_default).to("four", Callable())
    flow.commit("five", functools.partial(commit))

    assert len(flow.steps) == 5


def test_a_step_is_a_function() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow().start("one", "not a function")  # type: ignore[arg-type]

    assert "not a function" in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        *({"crash_limit": wrong} for wrong in (0, -1, 2.5, True, "5", None, 10**30)),
        *({"stall_after": wrong} for wrong in (0, -1.0, math.nan, math.inf, "600", True)),
        *({"cleanup_timeout": wrong} for wrong in (0, -1, math.nan, "1")),
        *({"job_retry": wrong} for wrong in (2.5, True, "3", None, [1, 2])),
        {"job_retry": fixed(1, limits={OSError: 1})},
        *({"cleanup_retry": wrong} for wrong in (2.5, "3", None)),
        *({"unique": wrong} for wrong in ("always", "", 0, -1, True, None, math.nan, timedelta(0))),
        *({"version": wrong} for wrong in (2, None, b"1")),
        *({"cleanup": wrong} for wrong in ("remove", lambda: None)),
        *({"initial": wrong} for wrong in (Response(), lambda: None)),
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_setting_that_cannot_be_is_refused_when_the_flow_is_made(settings: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow(**settings)

    [name] = settings
    assert str(refused.value).startswith("flow demo: ")
    assert name in str(refused.value)


def test_a_policy_may_be_a_whole_number() -> None:
    flow = a_flow(job_retry=2, cleanup=step, cleanup_retry=1).start("one", step, retry=3)

    assert flow.job_retry == exponential(2)
    assert flow.cleanup_retry == exponential(1)
    assert flow.steps[0].retry == exponential(3)


@pytest.mark.parametrize(
    "unique, lasts_ms",
    [("unfinished", 0), ("forever", None), (60, 60_000), (0.5, 500), (timedelta(hours=1), 3_600_000)],
)
def test_a_key_lasts_as_long_as_the_flow_says(unique: Any, lasts_ms: int | None) -> None:
    assert a_flow(unique=unique).key_lasts_ms == lasts_ms


@pytest.mark.parametrize("what", ["request", "response"])
@pytest.mark.parametrize("kind", ["x", object, Bare, list[Bare], dict[tuple[int, int], int], complex, 5, HoldsBare])
def test_a_type_that_json_cannot_hold_is_refused_when_the_flow_is_made(what: str, kind: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        a_flow(**{what: kind}, initial=lambda request: None)

    assert str(refused.value).startswith(f"flow demo: {what} ")
    assert refused.value.hint is not None


def test_a_type_that_names_one_defined_later_is_judged_when_the_flow_is_registered() -> None:
    flow = Flow("early", request=Early, response=Response).start("one", step)
    with pytest.raises(DefinitionError, match="Late"):
        flow.check_complete()

    globals()["Late"] = Response
    try:
        flow.check_complete()
    finally:
        del globals()["Late"]


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
        flow = Flow(
            name, request=Request, response=Response, version=version, job_retry=retries, crash_limit=retries,
            stall_after=100 * retries, unique=retries, queue=f"q{retries}",
        )  # fmt: skip
        flow.start(names[0], step, retry=exponential(retries, limits={OSError: retries}), timeout=retries)
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
