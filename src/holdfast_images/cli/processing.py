"""Images through the engine: a job of three stages for each, and what they answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import HoldfastError, PipelineResponse
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.cli.following import answer_of, finish, finish_all
from holdfast_images.cli.opening import opened_images
from holdfast_images.cli.process import Stage, Worked
from holdfast_images.flows.finished import Finished
from holdfast_images.flows.messages import ProcessRequest
from holdfast_images.running import has_daemon


def work(settings: Settings, request: ProcessRequest, **flags: Any) -> Worked:
    """Submit the request, see it through, and give what is there now and how each stage ended."""
    with opened_images(settings, create=True, **flags) as images:
        return _worked(finish(settings, images, images.submit(request), PipelineResponse))


def work_at_once(settings: Settings, requests: Sequence[ProcessRequest], **flags: Any) -> list[Worked | HoldfastError]:
    """Submit all, see them through together, and give what came of each: an answer, or what ended it."""
    with opened_images(settings, create=True, **flags) as images:
        jobs = [images.submit(request) for request in requests]
        finish_all(images, jobs)
        return [_outcome(images, job) for job in jobs]


def hand_over(settings: Settings, requests: Sequence[ProcessRequest], **flags: Any) -> tuple[list[str], bool]:
    """Submit all and leave them to a worker: the jobs, and whether there is one."""
    with opened_images(settings, create=True, **flags) as images:
        return [images.submit(request) for request in requests], has_daemon(images)


def _outcome(images: Images, job_id: str) -> Worked | HoldfastError:
    try:
        return _worked(answer_of(images, job_id, PipelineResponse))
    except HoldfastError as error:
        return error


def _worked(response: PipelineResponse) -> Worked:
    answers = {name: stage.response for name, stage in response.stages.items()}
    stages = {
        name: Stage(job_id=one.job_id, state=one.state, outcome=one.outcome, seconds=one.seconds)
        for name, one in response.stages.items()
    }
    return Worked(msgspec.convert(answers, Finished), stages)
