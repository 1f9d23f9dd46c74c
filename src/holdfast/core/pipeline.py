"""Flows one after the other, as one parent job: the response of each makes the request of the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.core.flow import Flow
from holdfast.core.names import checked_name
from holdfast.core.outcomes import Abort, WaitFor
from holdfast.core.retry import exponential
from holdfast.core.run import Run
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.errors import DefinitionError, JobPrunedError

Req = TypeVar("Req")

STAGE_RETRY = exponential(5, delay=0.5)
"""A stage only submits and looks: what fails there is mostly a database that is busy."""


class StageResult(msgspec.Struct, kw_only=True):
    """How one stage of a pipeline ended."""

    job_id: str
    state: str
    outcome: str
    seconds: float
    response: Any = None


class PipelineResponse(msgspec.Struct, kw_only=True):
    """The response of a pipeline: the stages that have ended, in order."""

    stages: dict[str, StageResult] = {}


class PipelineView(Generic[Req]):
    """What the mapping of a stage sees: the pipeline's request and the typed responses so far."""

    def __init__(self, request: Req, responses: dict[str, Any]) -> None:
        self.request = request
        self.responses = responses

    @property
    def previous(self) -> Any:
        """The response of the stage before; None for the first."""
        return next(reversed(self.responses.values()), None)


RequestOf = Callable[[PipelineView[Req]], Any]
KeyOf = Callable[[PipelineView[Req]], str | None]


class Pipeline(Flow[Req, PipelineResponse]):
    """`Pipeline("process", request=R).then(flow_a, request=...).then(flow_b, request=...)`.

    While a stage runs the pipeline holds neither worker nor slot; it goes on when the stage has ended.
    Crash: the child of a stage is submitted once, whatever happens in between.
    """

    def __init__(self, name: str, *, request: type[Req], **settings: Any) -> None:
        super().__init__(name, request=request, response=PipelineResponse, **settings)
        self.stages: dict[str, Flow[Any, Any]] = {}

    def then(
        self,
        flow: Flow[Any, Any],
        *,
        request: RequestOf[Req],
        name: str | None = None,
        key: KeyOf[Req] | None = None,
    ) -> Pipeline[Req]:
        """Run `flow` next, with the request made by `request(view)`, deduplicated by `key(view)`."""
        stage = checked_name(name or flow.name, "stage")
        if stage in self.stages:
            raise DefinitionError(f"pipeline {self.name} has two stages named {stage!r}", hint="pass name=")
        self.stages[stage] = flow

        def run_stage(run: Run[Req, PipelineResponse]) -> PipelineResponse:
            view = PipelineView(run.request, self._responses(run.response))
            child = run.submit_child(stage, flow, request(view), key=key(view) if key else None)
            try:
                result = run.child_result(child)
            except JobPrunedError as error:
                # Its key lasts longer than it was kept: it will not be done again, and its answer is gone.
                raise Abort(f"stage {stage}: {error}") from None
            if result.state in UNFINISHED_STATES:
                raise WaitFor(child)
            if result.state is not JobState.SUCCEEDED:
                reason = result.reason or "no reason recorded"
                raise Abort(f"stage {stage} (job {child}) is {result.state}: {reason}", error=result.error)
            stages = dict(run.response.stages)
            stages[stage] = StageResult(
                job_id=child,
                state=result.state,
                outcome=result.outcome or "completed",
                seconds=result.seconds,
                response=msgspec.json.decode(result.response or "null"),
            )
            return PipelineResponse(stages=stages)

        add = self.to if self._steps else self.start
        add(stage, run_stage, retry=STAGE_RETRY)
        return self

    def _responses(self, response: PipelineResponse) -> dict[str, Any]:
        codecs = {stage: flow.response_codec for stage, flow in self.stages.items()}
        return {stage: codecs[stage].convert(result.response) for stage, result in response.stages.items()}
