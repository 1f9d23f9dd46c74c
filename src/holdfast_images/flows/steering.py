"""How the errors of steps steer a job, how long a step may read, and how jobs share an image: by its lock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast import Abort, JobState, Rewind, Run, Transaction, WaitFor
from holdfast.errors import NotFound
from holdfast_images.errors import ImageBusy, Permanent
from holdfast_images.flows.workshop import Workshop

S = TypeVar("S", bound=Callable[..., Any])

LONGEST_REASON = 2000
TIMEOUT_MARGIN = 0.9
"""The process that reads an archive gets this part of the step's time, so that its end is told and not only noticed."""


def time_to_read(shop: Workshop, run: Run[Any, Any]) -> float:
    """Seconds for the process that reads an archive in this step."""
    return (run.deadline if run.deadline is not None else shop.timeouts.extract) * TIMEOUT_MARGIN


def aborting(step: S) -> S:
    """The step; what cannot get better by trying again aborts its job."""

    @functools.wraps(step)
    def run_step(*arguments: Any) -> Any:
        try:
            return step(*arguments)
        except Permanent as error:
            raise Abort(reason_of(error)) from error

    return run_step  # type: ignore[return-value]


def reason_of(error: Permanent) -> str:
    """As jobs keep it: the class first, by which the command line chooses its exit code."""
    hint = f" (hint: {error.hint})" if error.hint else ""
    return f"{type(error).__name__}: {error}"[: LONGEST_REASON - len(hint)] + hint


# --- locks of images ------------------------------------------------------------------------------------------


def owner_of(run: Run[Any, Any]) -> str:
    """Who holds a lock: the job, whatever execution works for it."""
    return f"job:{run.job.job_id}"


def lock_image(shop: Workshop, run: Run[Any, Any], image_id: str) -> None:
    """Hold the image's lock, waiting for whoever has it; a lock whose owner is not live is taken over.

    An unfinished job is live: its next execution goes on with what is locked. Taking over is journaled by a rewind.
    Crash: the lock is the job's, and found to be its own by the next execution.
    """
    owner = owner_of(run)
    try:
        shop.catalog.acquire_image_lock(image_id, owner)
    except ImageBusy:
        lock = shop.catalog.get_image_lock(image_id)
        if lock is None:
            raise
        kind, _, job_id = lock.locked_by.partition(":")
        if kind == "job" and is_live(run, job_id):
            raise WaitFor(job_id) from None
        if not shop.catalog.take_over_image_lock(image_id, lock.locked_by, owner):
            raise
        raise Rewind(run.step, f"took over the lock of {lock.locked_by}, which is not live any more") from None


def unlock_image(shop: Workshop, run: Run[Any, Any], image_id: str) -> None:
    """Give the lock up, if it is this job's."""
    shop.catalog.release_image_lock(image_id, owner_of(run))


def holds_image(shop: Workshop, run: Run[Any, Any], image_id: str) -> bool:
    """Is the lock this job's?"""
    lock = shop.catalog.get_image_lock(image_id)
    return lock is not None and lock.locked_by == owner_of(run)


def wait_for_image(shop: Workshop, run: Run[Any, Any], image_id: str) -> None:
    """Go on when nobody has the image's lock. Somebody may take it right after: `locked_in` tells."""
    if shop.catalog.is_image_locked(image_id):
        lock_image(shop, run, image_id)
        unlock_image(shop, run, image_id)


@contextmanager
def locked_in(tx: Transaction, shop: Workshop, run: Run[Any, Any], image_id: str, *, else_to: str) -> Iterator[None]:
    """Hold the lock inside one transaction only; rewind to the step that waits if somebody has it.

    Whoever takes the lock afterwards sees what the transaction has written, and whoever had it before was seen here.
    """
    try:
        shop.catalog.acquire_image_lock(image_id, owner_of(run), tx=tx)
    except ImageBusy as busy:
        raise Rewind(else_to, str(busy)) from busy
    yield
    shop.catalog.release_image_lock(image_id, owner_of(run), tx=tx)


def is_live(run: Run[Any, Any], job_id: str) -> bool:
    """Will that job go on by itself?"""
    try:
        state = run.child_result(job_id).state
    except NotFound:
        return False
    return state in (JobState.PENDING, JobState.RUNNING)
