"""Runs the reader of archives in a process of its own, shut in, and ends it when it is told to or takes too long."""

from __future__ import annotations

import logging
import os
import select
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import msgspec

from holdfast_images.archive.confinement import ROOT_MEASURES
from holdfast_images.archive.entry import Extracted, InspectionReport, Limits, Policy, Reason
from holdfast_images.archive.protocol import DoneMessage, FailedMessage, Inspected, Job, Line, Progress, heard
from holdfast_images.errors import ExtractionTimedOut, ImageRefused, TryAgain
from holdfast_images.spawn import start_python

log = logging.getLogger("holdfast_images.archive")

OnProgress = Callable[[int, int, int], None]
"""Called with the bytes done, the bytes in all (0: unknown) and the entries so far."""

LOOK_EVERY = 0.1
"""Seconds between two looks at whether the work is still wanted."""
ALARM_GRACE = 5.0
"""How much longer than its parent the child waits before it ends itself."""
DEATH_PATIENCE = 10.0
"""A killed process may hang in the kernel for as long as a disk does; nobody waits for that."""
WORTH_TWO = 4 << 20
"""Bytes of an archive that are worth a second process that writes."""
LINE_BYTES = 4 << 20
NOTES_BYTES = 4096


def inspect_image(
    archive: Path,
    *,
    policy: Policy,
    limits: Limits,
    keep_setuid: bool = False,
    timeout: float | None = None,
    check: Callable[[], None] | None = None,
    on_progress: OnProgress | None = None,
) -> InspectionReport:
    """Everything that is to be said about an archive, by a process that can touch nothing else."""
    with ExitStack() as held:
        child = SandboxProcess(timeout=timeout, check=check, on_progress=on_progress)
        job = _job(held, archive, held.enter_context(_removed_directory()), writing=False)
        end = child.run(msgspec.structs.replace(job, policy=policy, limits=limits, keep_setuid=keep_setuid))
    if not isinstance(end, Inspected):
        raise TryAgain("the process that inspects archives answered with something else")
    return end.report


def extract_image(
    archive: Path,
    target: int | Path,
    *,
    policy: Policy,
    limits: Limits,
    keep_setuid: bool = False,
    timeout: float,
    processes: int | None = None,
    checksum: str = "",
    check: Callable[[], None] | None = None,
    on_progress: OnProgress | None = None,
) -> Extracted:
    """Extract below the empty directory `target`; `check` is called several times a second and may raise to end it.

    One or two processes write; if it is not said how many, two if the archive is large and there are processors.
    What is written is hashed as it is read: ChecksumMismatch unless it has the SHA-256 that is given.

    Crash: the child dies with this process. What it has written stays, and is to be thrown away: nothing continues it.
    The same holds for every exception.
    """
    with ExitStack() as held:
        child = SandboxProcess(timeout=timeout, check=check, on_progress=on_progress)
        job = _job(held, archive, held.enter_context(_directory(target)), writing=True)
        processes = processes or worthwhile_processes(job.archive)
        job = msgspec.structs.replace(job, processes=processes, checksum=checksum)
        end = child.run(msgspec.structs.replace(job, policy=policy, limits=limits, keep_setuid=keep_setuid))
    if not isinstance(end, DoneMessage):
        raise TryAgain("the process that extracts archives answered with something else")
    _log_confinement(end.extracted)
    return end.extracted


class SandboxProcess:
    """One process, from its start to its certain end."""

    def __init__(
        self, *, timeout: float | None, check: Callable[[], None] | None, on_progress: OnProgress | None
    ) -> None:
        self._timeout = timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._check = check
        self._on_progress = on_progress
        self._pending = bytearray()
        self._notes = bytearray()
        self._end: Inspected | DoneMessage | FailedMessage | None = None

    def run(self, job: Job) -> Inspected | DoneMessage:
        """Start it, listen until it has ended, and return or raise what it said."""
        alarm = None if self._timeout is None else self._timeout + ALARM_GRACE
        process = start(msgspec.structs.replace(job, alarm=alarm))
        try:
            self._listen(process)
            status = process.wait(self._remaining())
        except subprocess.TimeoutExpired:
            self._time_out()
        finally:
            _end(process)
        return self._conclude(status)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        """Take its lines until it closes them, which it does when it dies."""
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while True:
            if self._check is not None:
                self._check()
            ready = poll.poll(max(0, min(LOOK_EVERY, self._remaining() or LOOK_EVERY)) * 1000)
            if ready:
                piece = os.read(descriptor, 1 << 16)
                if not piece:
                    return
                self._take(piece)
            if self._deadline is not None and time.monotonic() > self._deadline:
                self._time_out()

    def _take(self, piece: bytes) -> None:
        self._pending += piece
        *lines, rest = self._pending.split(b"\n")
        if len(rest) > LINE_BYTES:
            raise TryAgain("the process that reads archives talks without end")
        self._pending = rest
        for line in lines:
            self._hear(bytes(line))

    def _hear(self, line: bytes) -> None:
        """A line of the child. It has read what an attacker may have written, so it is believed only in its form."""
        try:
            told = msgspec.json.decode(line, type=Line)
        except msgspec.MsgspecError:
            # What a dying interpreter writes; the last of it is the most telling.
            self._notes = (self._notes + line + b"\n")[-NOTES_BYTES:]
            return
        if not isinstance(told, Progress):
            self._end = told
        elif self._on_progress is not None:
            self._on_progress(told.done, told.total, told.entries)

    def _conclude(self, status: int) -> Inspected | DoneMessage:
        end = self._end
        if isinstance(end, FailedMessage):
            raise heard(end)
        if end is None or status != 0:
            notes = self._notes.decode("utf-8", "backslashreplace").strip()
            how = f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
            raise TryAgain(f"the process that reads archives ended {how}" + (f": {notes}" if notes else ""))
        return end

    def _remaining(self) -> float | None:
        return None if self._deadline is None else max(0.001, self._deadline - time.monotonic())

    def _time_out(self) -> NoReturn:
        raise ExtractionTimedOut(
            f"the archive was not read within {self._timeout:g} s", hint="give it more time, or a faster disk"
        )


def start(job: Job) -> subprocess.Popen[bytes]:
    """The process itself, with nothing of ours but the descriptors of the job and a pipe for what it says."""
    return start_python(
        "holdfast_images.archive.extract",
        msgspec.json.encode(job).decode(),
        descriptors=(job.archive, job.target, job.spool),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that it is gone, with everything it may have started."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()  # it has not come to have a group of its own
        try:
            process.wait(DEATH_PATIENCE)
        except subprocess.TimeoutExpired:
            # The lock on the target keeps everybody else away until the kernel lets it die.
            log.error("process %d does not die: it hangs in the kernel", process.pid)
    if process.stdout is not None:
        # Open in a second process as well, which the kernel kills with the first: until then it may still write.
        if not _is_closed(process.stdout.fileno()):
            log.error("what process %d has started does not die: it hangs in the kernel", process.pid)
        process.stdout.close()


def _is_closed(pipe: int) -> bool:
    """Has nobody got the other end of it, at once or before long?"""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    deadline = time.monotonic() + DEATH_PATIENCE
    while poll.poll(max(0, deadline - time.monotonic()) * 1000):
        if not os.read(pipe, 1 << 16):
            return True
    return False


def _job(held: ExitStack, archive: Path, target: int, *, writing: bool) -> Job:
    # Not blocking: somebody may have put a FIFO there.
    descriptor = os.open(archive, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    held.callback(os.close, descriptor)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise ImageRefused(Reason.NOT_A_TAR, "the archive is not a regular file", entry=str(archive))
    spool = held.enter_context(_unnamed_file(archive.parent))
    return Job(parent=os.getpid(), archive=descriptor, target=target, spool=spool, writing=writing)


def worthwhile_processes(archive: int) -> int:
    """How many processes are to write what is in this file: to start a second one takes a moment."""
    return 2 if os.fstat(archive).st_size >= WORTH_TWO and len(os.sched_getaffinity(0)) > 1 else 1


@contextmanager
def _directory(target: int | Path) -> Iterator[int]:
    """A descriptor of its own: the child locks what it is given."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    descriptor = os.open(".", flags, dir_fd=target) if isinstance(target, int) else os.open(target, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _removed_directory() -> Iterator[int]:
    """A root with nothing in it, and in which nothing can be made: that is what a removed directory is."""
    name = tempfile.mkdtemp(prefix="holdfast-")
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.rmdir(name)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _unnamed_file(directory: Path) -> Iterator[int]:
    """A file that is gone when it is closed, beside the archive, where there is room for archives."""
    try:
        descriptor = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # read-only, not ours, or a file system that cannot do it
        with tempfile.TemporaryFile() as file:
            yield file.fileno()
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _log_confinement(extracted: Extracted) -> None:
    measures = ", ".join(extracted.confinement)
    if ROOT_MEASURES.isdisjoint(extracted.confinement):
        log.warning("the archive was extracted by a process that could reach other paths (in force: %s)", measures)
    else:
        log.info("the archive was extracted by a confined process: %s", measures)
