"""A pipeline is a flow whose steps are other flows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.flow import Flow, Pipeline, PipelineResponse
from holdfast.core.records import JobResult
from holdfast.core.states import JobState
from holdfast.core.step import Abort, WaitFor
from holdfast.core.values import ulid_from
from holdfast.errors import DefinitionError


class Request(msgspec.Struct):
    url: str


class Size(msgspec.Struct):
    size: int = 0


def id_of(name: str) -> str:
    """The id of the child of a stage."""
    return ulid_from(0, int.from_bytes(name.encode()))


class PretendRun:
    """As much of a run as a stage uses: children have the results they were given here."""

    def __init__(self, results: dict[str, JobResult], response: PipelineResponse | None = None) -> None:
        self.request = Request("s3://bucket/key")
        self.response = response or PipelineResponse()
        self.submitted: list[tuple[str, Any, str | None]] = []
        self._results = results

    def submit_child(self, name: str, flow: Any, request: Any, *, key: str | None = None) -> str:
        self.submitted.append((name, request, key))
        return id_of(name)

    def child_result(self, job_id: str) -> JobResult:
        return self._results[job_id]


FETCH: Flow[Any, Size] = Flow("fetch", request=Request, response=Size)


def a_pipeline() -> Pipeline[Request]:
    return (
        Pipeline("process", request=Request)
        .then(FETCH, request=lambda view: view.request, key=lambda view: view.request.url)
        .then(FETCH, name="again", request=lambda view: Request(f"size {view.previous.size}"))
    )


def result(name: str, state: JobState, **fields: Any) -> dict[str, JobResult]:
    return {id_of(name): JobResult(job_id=id_of(name), state=state, **fields)}


def perform(stage: str, run: PretendRun) -> PipelineResponse:
    pipeline = a_pipeline()
    response = next(each for each in pipeline.steps if each.name == stage).function(run)
    assert isinstance(response, PipelineResponse)
    return response


def test_the_stages_of_a_pipeline_are_its_steps() -> None:
    assert a_pipeline().definition.steps == ("fetch", "again")


def test_two_stages_cannot_have_one_name() -> None:
    with pytest.raises(DefinitionError) as refused:
        a_pipeline().then(FETCH, request=lambda view: view.request)

    assert refused.value.hint == "pass name="


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING])
def test_a_stage_lets_go_until_its_child_has_ended(state: JobState) -> None:
    with pytest.raises(WaitFor) as outcome:
        perform("fetch", PretendRun(result("fetch", state)))

    assert outcome.value.job_id == id_of("fetch")


@pytest.mark.parametrize("state", [JobState.FAILED, JobState.QUARANTINED])
def test_a_child_without_success_aborts_the_pipeline_with_its_reason(state: JobState) -> None:
    with pytest.raises(Abort) as outcome:
        perform("fetch", PretendRun(result("fetch", state, reason="no such bucket")))

    assert outcome.value.reason == f"stage fetch (job {id_of('fetch')}) is {state}: no such bucket"


def test_a_stage_that_succeeded_is_part_of_the_response() -> None:
    run = PretendRun(result("fetch", JobState.SUCCEEDED, outcome="handoff", response='{"size": 7}', seconds=1.5))
    stage = perform("fetch", run).stages["fetch"]

    assert (stage.state, stage.outcome, stage.seconds, stage.response) == ("succeeded", "handoff", 1.5, {"size": 7})
    assert run.submitted == [("fetch", Request("s3://bucket/key"), "s3://bucket/key")]


def test_the_response_of_one_stage_makes_the_request_of_the_next() -> None:
    done = perform("fetch", PretendRun(result("fetch", JobState.SUCCEEDED, response='{"size": 7}')))
    stored = msgspec.json.decode(msgspec.json.encode(done), type=PipelineResponse)
    run = PretendRun(result("again", JobState.SUCCEEDED, response='{"size": 8}'), stored)
    response = perform("again", run)

    assert run.submitted == [("again", Request("size 7"), None)]
    assert list(response.stages) == ["fetch", "again"]
