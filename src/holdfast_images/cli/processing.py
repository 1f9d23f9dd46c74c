"""An image through the engine: a job of three stages, and what they answered."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import PipelineResponse
from holdfast.cli.settings import Settings
from holdfast_images.cli.following import finish
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.process import Stage
from holdfast_images.flows.finished import Finished
from holdfast_images.flows.messages import ProcessRequest


def work(settings: Settings, request: ProcessRequest, **flags: Any) -> tuple[Finished, dict[str, Stage]]:
    """Submit the request, see it through, and give what is there now and how each stage ended."""
    with opened_images(settings, create=True, **flags) as images:
        response = finish(settings, images, images.submit(request), PipelineResponse)
    answers = {name: stage.response for name, stage in response.stages.items()}
    stages = {
        name: Stage(job_id=one.job_id, state=one.state, outcome=one.outcome, seconds=one.seconds)
        for name, one in response.stages.items()
    }
    return msgspec.convert(answers, Finished), stages
