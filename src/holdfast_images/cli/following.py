"""A job to its end, with its progress told meanwhile, and its failure raised as the error it was."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast import JobState
from holdfast.cli.service import StopSignals
from holdfast.cli.settings import Settings
from holdfast_images.app import Images
from holdfast_images.cli.progress import reporter
from holdfast_images.running import run_to_end

Response = TypeVar("Response")

SWITCH_INTERVAL = 0.0005
SOON = 30.0
"""Seconds for the end of a job to be read that has ended."""


def finish(
    settings: Settings, images: Images, job_id: str, kind: type[Response], *, name: str | None = None
) -> Response:
    """The response of the job when it has ended; raises what ended it otherwise. A signal ends the waiting.

    `name`: what to call a job that has no stages.
    """
    # As in `holdfast worker`: between threads that take turns, the default of 5 ms would be the latency of each.
    sys.setswitchinterval(SWITCH_INTERVAL)
    with StopSignals() as signals, reporter(settings, images.engine, job_id, name) as look:
        run_to_end(
            images,
            job_id,
            look=look,
            is_stopped=lambda: signals.received is not None,
            stop_descriptor=signals.descriptor,
        )
    return answer_of(images, job_id, kind)


def finish_all(images: Images, job_ids: Sequence[str]) -> None:
    """Return when all jobs have ended, whatever way; what each is doing is not told meanwhile."""
    sys.setswitchinterval(SWITCH_INTERVAL)
    with StopSignals() as signals:
        run_to_end(
            images,
            *job_ids,
            is_stopped=lambda: signals.received is not None,
            stop_descriptor=signals.descriptor,
        )


def answer_of(images: Images, job_id: str, kind: type[Response]) -> Response:
    """The response of a job that has ended; raises what ended it otherwise."""
    result = images.engine.wait(job_id, timeout=SOON)
    if result.state is not JobState.SUCCEEDED:
        from holdfast_images.cli.failing import error_of  # noqa: PLC0415 - for the worst case only

        raise error_of(images, job_id)
    return msgspec.json.decode(result.response or "null", type=kind)
