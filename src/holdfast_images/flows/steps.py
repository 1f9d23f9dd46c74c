"""What may be asked of a flow: checked in its own steps, because a front end is not the only way to submit a job."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from holdfast import Abort, JobState, Rewind, Run, Transaction, WaitFor, exponential, fixed
from holdfast.errors import NotFound
from holdfast_images.archive.entry import ArchiveFinding
from holdfast_images.catalog.tables import Verification
from holdfast_images.errors import (
    CatalogUnavailable,
    DeviceBusy,
    ImageBusy,
    InvalidName,
    NotPermitted,
    Permanent,
    SourceChanged,
    SourceUnavailable,
)
from holdfast_images.flows.context import WARNINGS_KEPT, FlowContext
from holdfast_images.flows.schemas import Judging
from holdfast_images.model import (
    device_name,
    valid_bucket,
    valid_image_id,
    valid_key,
    valid_sha256,
    valid_snapshot_name,
)
from holdfast_images.source.location import FileObject, HttpObject, Location, S3Object, location_of

LABEL_BYTES = 4096
_CONTROL = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]")
_DIGITS = re.compile(r"[0-9]{1,8}")


def check_request(request: msgspec.Struct) -> None:
    """Raise InvalidName for a request that names what cannot be; whatever fields it has are checked."""
    values = msgspec.structs.asdict(request)
    if "image_id" in values:
        valid_image_id(values["image_id"])
    if "s3_key" in values:
        _check_label(values["s3_key"])
    if values.get("bucket"):
        valid_bucket(values["bucket"])
    if values.get("snapshot_name"):
        valid_snapshot_name(values["snapshot_name"])
    if "checksum" in values:
        valid_sha256(values["checksum"])
    if "device_id" in values:
        _check_device(values["device_id"], values["device_name"])
    if values.get("device_size", 0) < 0 or values.get("device_size", 0) % 512:
        raise InvalidName(f"a device of {values['device_size']} bytes cannot be", hint="give a multiple of 512 bytes")
    judging, location = values.get("judging"), values.get("location")
    if isinstance(judging, Judging) and judging.sha256 is not None:
        valid_sha256(judging.sha256)
    if isinstance(location, S3Object | HttpObject | FileObject):
        _check_location(location)


def _check_label(text: str) -> None:
    """What the catalog calls an object: its key, or its URL."""
    if "://" not in text:
        valid_key(text)
        return
    if len(text.encode("utf-8", "surrogatepass")) > LABEL_BYTES or _CONTROL.search(text) or not text.isprintable():
        raise InvalidName(f"the key {text[:200]!r} is no URL", hint="name the object by its key or its URL")


def _check_location(location: Location) -> None:
    match location:
        case S3Object():
            valid_bucket(location.bucket)
            valid_key(location.key)
        case HttpObject():
            if _CONTROL.search(location.url) or not location.url.lower().startswith(("http://", "https://")):
                raise InvalidName(f"{str(location)[:200]!r} is no URL", hint="https://host/path")
        case FileObject():
            location_of(str(location))


def _check_device(device_id: str, name: str) -> None:
    if not _DIGITS.fullmatch(device_id) or name != device_name(int(device_id)):
        raise InvalidName(
            f"{name[:200]!r} is not the device with the id {device_id[:20]!r}",
            hint="ask for the ids that unpacking has answered",
        )


# --- How long one try of a download may take, and what its end means: bytes that came are kept, and count ---

MARGIN = 0.1
MOST_MARGIN = 5.0
"""A try ends itself this part of its time, and at most so many seconds, before the engine would end it."""
ENOUGH_BYTES = 1 << 20
"""A try that brought as much was no failure: the next goes on, however many there are."""


class OutOfTime(Exception):
    """The try has used its time up."""


class TimeLimit:
    """Watches one try of the step; `check` and `progress` are called by the fetch."""

    def __init__(self, run: Run[Any, Any], timeout: float) -> None:
        self._run = run
        self._timeout = timeout
        left = run.deadline if run.deadline is not None else timeout
        self._ends_at = time.monotonic() + left - min(left * MARGIN, MOST_MARGIN)
        self._first: float | None = None
        self._done: float = 0
        self._total: float | None = None

    def check(self) -> None:
        """Raise what should stop the step, or OutOfTime."""
        self._run.check()
        if time.monotonic() > self._ends_at:
            raise OutOfTime

    def progress(self, done: int, total: int | None) -> None:
        """Note and report how far it is."""
        if self._first is None:
            self._first = done
        self._done, self._total = done, total
        self._run.progress(done, total, note="bytes downloaded")

    def verdict(self, where: str, *, is_kept: bool) -> Exception:
        """What a try that has used its time up means: go on with what is there, or a failure."""
        brought = self._done - (self._first or 0)
        told = f"{self._done} of {self._total or '?'} bytes of {where} are here"
        limit = f"download_timeout ({self._timeout:g} s)"
        if is_kept and brought >= ENOUGH_BYTES:
            return Rewind(self._run.step, f"{told} after {limit}: going on")
        if is_kept:
            return SourceUnavailable(f"{told}: {brought} bytes came within {limit}")
        return SourceUnavailable(
            f"{told} after {limit}, and cannot be gone on with: the server gives no strong ETag, or no ranges",
            hint="raise download_timeout (HOLDFAST_DOWNLOAD_TIMEOUT), or use a server with ranges",
        )


# --- How often the steps are tried again: after any error, and after those of a class that has a limit of its own ---
#
# A number counts the tries after the first. A test pins the whole table.

NETWORK = {SourceUnavailable: 5, SourceChanged: 5}
FILES = {OSError: 2}
DEVICES = {DeviceBusy: 2}
DATABASE = {CatalogUnavailable: 5}

CHECK_EXISTS = exponential(3, limits=FILES)
DOWNLOAD = exponential(5, jitter=True, limits={**NETWORK, **FILES})
VALIDATE = fixed(2)
STORE_METADATA = exponential(5, jitter=True, limits={**DATABASE, **FILES})

CHECK_UNPACKED = exponential(3, limits={**DEVICES, **FILES})
CREATE_DEVICE = fixed(3)
EXTRACT_LAYERS = fixed(2)
VERIFY_LAYOUT = fixed(2)
UPDATE_DB = exponential(5, limits=DATABASE)

CHECK_SNAPSHOT = exponential(3, limits={**DEVICES, **FILES})
CREATE_SNAPSHOT = fixed(3)
REGISTER = exponential(5, jitter=True, limits=DATABASE)

CHECK_REMOVABLE = exponential(3)
REMOVE = fixed(3)
FORGET = exponential(5, jitter=True, limits=DATABASE)


# --- How the errors of steps steer a job, how long a step may read, and how jobs share an image: by its lock ---

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
        except PermissionError as error:
            raise Abort(NotPermitted.told(error)) from error

    return run_step  # type: ignore[return-value]


def refuse_bad_request(request: R) -> R:
    """The request, if it can be meant; Abort if not."""
    try:
        check_request(request)
    except InvalidName as error:
        raise Abort(error) from error
    return request


def release_unused(ctx: FlowContext, image_id: str, snapshot_name: str = "") -> None:
    """After a failure: give back the id that was reserved for a device or snapshot of which nothing was made."""
    for reservation in ctx.catalog.list_reservations():
        if (reservation.image_id, reservation.snapshot_name) != (image_id, snapshot_name):
            continue
        if ctx.devices.look(snapshot_name or device_name(reservation.device_id)) is None:
            ctx.catalog.release_reservation(image_id, reservation.device_id)


# --- locks of images ------------------------------------------------------------------------------------------


def owner_of(run: Run[Any, Any]) -> str:
    """Who holds a lock: the job, whatever execution works for it."""
    return f"job:{run.job.job_id}"


def lock_image(ctx: FlowContext, run: Run[Any, Any], image_id: str) -> None:
    """Hold the image's lock, waiting for whoever has it; a lock whose owner is not live is taken over.

    An unfinished job is live: its next execution goes on with what is locked. Taking over is journaled by a rewind.
    Crash: the lock is the job's, and found to be its own by the next execution.
    """
    owner = owner_of(run)
    try:
        ctx.catalog.acquire_image_lock(image_id, owner)
    except ImageBusy:
        lock = ctx.catalog.get_image_lock(image_id)
        if lock is None:
            raise
        kind, _, job_id = lock.locked_by.partition(":")
        if kind == "job" and is_live(run, job_id):
            raise WaitFor(job_id) from None
        if not ctx.catalog.take_over_image_lock(image_id, lock.locked_by, owner):
            raise
        raise Rewind(run.step, f"took over the lock of {lock.locked_by}, which is not live any more") from None


def unlock_image(ctx: FlowContext, run: Run[Any, Any], image_id: str) -> None:
    """Give the lock up, if it is this job's."""
    ctx.catalog.release_image_lock(image_id, owner_of(run))


def holds_image(ctx: FlowContext, run: Run[Any, Any], image_id: str) -> bool:
    """Is the lock this job's?"""
    lock = ctx.catalog.get_image_lock(image_id)
    return lock is not None and lock.locked_by == owner_of(run)


def wait_for_image(ctx: FlowContext, run: Run[Any, Any], image_id: str) -> None:
    """Go on when nobody has the image's lock. Somebody may take it right after: `locked_in` tells."""
    if ctx.catalog.is_image_locked(image_id):
        lock_image(ctx, run, image_id)
        unlock_image(ctx, run, image_id)


@contextmanager
def locked_in(tx: Transaction, ctx: FlowContext, run: Run[Any, Any], image_id: str, *, else_to: str) -> Iterator[None]:
    """Hold the lock inside one transaction only; rewind to the step that waits if somebody has it.

    Whoever takes the lock afterwards sees what the transaction has written, and whoever had it before was seen here.
    """
    try:
        ctx.catalog.acquire_image_lock(image_id, owner_of(run), tx=tx)
    except ImageBusy as busy:
        raise Rewind(else_to, str(busy)) from busy
    yield
    ctx.catalog.release_image_lock(image_id, owner_of(run), tx=tx)


def is_live(run: Run[Any, Any], job_id: str) -> bool:
    """Will that job go on by itself?"""
    try:
        state = run.child_result(job_id).state
    except NotFound:
        return False
    return state in (JobState.PENDING, JobState.RUNNING)


# --- What was warned of when an image was judged and unpacked: how much of it is kept, with the job and in the
# catalog.


def most_telling(findings: Iterable[ArchiveFinding]) -> tuple[ArchiveFinding, ...]:
    """As many as are kept, each once: the first of every code, so that none hides another, then the others."""
    told = list(dict.fromkeys(findings))
    firsts = list({finding.code: finding for finding in reversed(told)}.values())[::-1]
    return tuple(dict.fromkeys([*firsts, *told]))[:WARNINGS_KEPT]


def warnings_of_unpacking(known: Verification | None, checksum: str) -> tuple[ArchiveFinding, ...]:
    """Of what is recorded for this content, that which is not found by judging its archive again."""
    from holdfast_images.archive.entry import OF_UNPACKING  # noqa: PLC0415 - a finished image is not judged

    if known is None or known.checksum != checksum:
        return ()
    try:
        recorded = msgspec.json.decode(known.warnings, type=tuple[ArchiveFinding, ...])
    except msgspec.MsgspecError:
        return ()  # verify-system tells of such a row
    return tuple(finding for finding in recorded if finding.code in OF_UNPACKING)
