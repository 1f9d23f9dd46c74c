"""The process that reads an archive: it shuts itself in before the first byte, works, and tells its parent in lines.

Started by `running`, never by hand. Standard output is a pipe to the parent, one JSON object a line.
"""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import time

import msgspec

from holdfast_images.archive.confinement import close_others, confine, die_with, limit_file_size
from holdfast_images.archive.entry import Reason
from holdfast_images.archive.extract import extract
from holdfast_images.archive.image_format import inspect
from holdfast_images.archive.parallel import SecondWriter, start_second_writer
from holdfast_images.archive.protocol import DoneMessage, FailedMessage, Inspected, Job, Line, told
from holdfast_images.archive.protocol import Progress as Told
from holdfast_images.errors import DeviceLost, ImageBusy, ImageError, TryAgain

PROGRESS_EVERY = 0.1
LOCK_PATIENCE = 3.0
"""A predecessor whose owner was killed dies within moments; whoever holds the lock longer is alive."""


class Teller:
    """Writes lines to the parent. Progress is dropped rather than waited for; the end is not."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._next = 0.0
        os.set_blocking(descriptor, False)

    def progress(self, done: int, total: int, entries: int) -> None:
        """Tell it now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_EVERY
        try:
            # Shorter than PIPE_BUF: either all of it is written or nothing.
            os.write(self._descriptor, _encode(Told(done, total, entries)))
        except BlockingIOError:
            pass

    def end(self, line: Inspected | DoneMessage | FailedMessage) -> None:
        """Tell how it ended."""
        rest = memoryview(_encode(line))
        while rest:
            select.select([], [self._descriptor], [])
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                continue


def _encode(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def main(argument: str) -> None:
    """Do the job, and tell how it ended."""
    # What is imported by now stays; it need not be looked through again and again.
    gc.freeze()
    gc.enable()
    job = msgspec.json.decode(argument, type=Job)
    die_with(job.parent)
    if job.alarm is not None:
        signal.setitimer(signal.ITIMER_REAL, job.alarm)
    teller = Teller(1)
    try:
        end = _work(job, teller)
    except ImageError as error:
        end = told(error)
    except MemoryError:
        end = FailedMessage(error="ImageRefused", code=Reason.MEMORY_LIMIT, message="reading it takes too much memory")
    except OSError as error:
        end = FailedMessage(
            error=TryAgain.__name__, message=f"the archive could not be read: {error.strerror or error}"
        )
    teller.end(end)


def _work(job: Job, teller: Teller) -> Inspected | DoneMessage | FailedMessage:
    close_others({job.archive, job.target, job.spool})
    privileged = os.geteuid() == 0
    second: SecondWriter | None = None

    def prepare(target: int) -> None:
        nonlocal second
        _own(target)
        if job.processes > 1:
            second = start_second_writer(target, limits=job.limits, keep_owner=privileged)

    target, measures = confine(
        job.target,
        writing=job.writing,
        depth=job.limits.depth,
        keep_capabilities_of_files=job.keep_setuid,
        before_filter=prepare if job.writing else None,
    )
    # Again: some of the changes above clear it.
    die_with(job.parent)
    limit_file_size(max(job.limits.file_bytes, job.limits.image_bytes))
    if job.writing:
        extracted = extract(
            job.archive,
            target,
            spool=job.spool,
            policy=job.policy,
            limits=job.limits,
            keep_setuid=job.keep_setuid,
            keep_owner=privileged,
            second=second,
            checksum=job.checksum,
            progress=teller.progress,
        )
        return DoneMessage(msgspec.structs.replace(extracted, confinement=tuple(measures)))
    report = inspect(
        job.archive,
        spool=job.spool,
        policy=job.policy,
        limits=job.limits,
        keep_setuid=job.keep_setuid,
        progress=teller.progress,
    )
    return Inspected(msgspec.structs.replace(report, confinement=tuple(measures)))


def _own(target: int) -> None:
    """Nobody else writes there as long as this process lives, and nobody has written there before."""
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ImageBusy(
                    "another process extracts to the same directory", hint="wait for it, or end it, and try again"
                ) from None
            time.sleep(0.02)
    # mkfs makes this one.
    rest = set(os.listdir(target)) - {"lost+found"}
    if rest:
        raise DeviceLost(
            f"the target is not empty: it has {min(rest)!r}",
            hint="what an interrupted extraction has left is never completed: make the device anew",
        )
