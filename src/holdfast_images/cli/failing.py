"""From the error that a job keeps as data back to the exception it was."""

from __future__ import annotations

from holdfast import JobState
from holdfast.errors import JobFailed
from holdfast_images.app import Images
from holdfast_images.errors import error_from

ENDED_BADLY = (JobState.FAILED, JobState.QUARANTINED)
SOON = 30.0
"""Seconds for the end of a job to be read that has ended."""


def error_of(images: Images, job_id: str) -> Exception:
    """The error that ended a job, or the stage of it that failed, as it was raised."""
    client = images.engine
    children = client.store.children(job_id)
    # Only what has ended tells how: a stage that others have asked for, too, may go on for them.
    failed = next((child.job_id for child in children if child.state in ENDED_BADLY), job_id)
    result = client.wait(failed, timeout=SOON)
    error = error_from(result.error, failed) if result.error is not None else None
    return error or JobFailed(failed, result.state, result.reason, result.error)
