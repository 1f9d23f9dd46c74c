"""How the errors of steps steer a job, how long a step may read, and how jobs share an image: by its lock."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from holdfast import Abort, JobState, Rewind, Run, Transaction, WaitFor
from holdfast.errors import NotFound
from holdfast_images.errors import ImageBusy, InvalidName, Permanent
from holdfast_images.flows.requests import check_request
from holdfast_images.flows.workshop import Workshop
from holdfast_images.model import device_name

R = TypeVar("R", bound=msgspec.Struct)
S = TypeVar("S", bound=Callable[..., Any])

MOST_REWINDS = 4
"""Of one job: whatever undoes its work each time will do so again."""
REWINDS_KEPT = 1000
_rewinds: dict[str, int] = {}
TIME_TO_TELL = 30.0
"""Seconds that a step has beyond those of the process that reads an archive in it, to tell how that ended."""


def going_back(run: Run[Any, Any], step: str, error: Permanent) -> Exception:
    """A rewind to an earlier step, which makes again what is lost; or the error, if that was tried so often in vain.

    Counted in this process: of one that dies, the crashes are counted.
    """
    count = _rewinds.pop(run.job.job_id, 0) + 1
    _rewinds[run.job.job_id] = count
    while len(_rewinds) > REWINDS_KEPT:
        del _rewinds[next(iter(_rewinds))]
    if count > MOST_REWINDS:
        del _rewinds[run.job.job_id]
        return error
    return Rewind(step, str(error))


def aborting(step: S) -> S:
    """The step; what cannot be meant, or cannot get better by trying again, aborts its job before or in it."""

    @functools.wraps(step)
    def run_step(run: Run[Any, Any], *tx: Transaction) -> Any:
        try:
            check_request(run.request)
            return step(run, *tx)
        except (Permanent, InvalidName) as error:
            raise Abort(error) from error

    return run_step  # type: ignore[return-value]


def refuse_bad_request(request: R) -> R:
    """The request, if it can be meant; Abort if not."""
    try:
        check_request(request)
    except InvalidName as error:
        raise Abort(error) from error
    return request


def release_unused(shop: Workshop, image_id: str, snapshot_name: str = "") -> None:
    """After a failure: give back the id that was reserved for a device or snapshot of which nothing was made."""
    for reservation in shop.catalog.list_reservations():
        if (reservation.image_id, reservation.snapshot_name) != (image_id, snapshot_name):
            continue
        if shop.devices.look(snapshot_name or device_name(reservation.device_id)) is None:
            shop.catalog.release_reservation(image_id, reservation.device_id)


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
