"""What makes a process a service: signals, rounds in the background, word to the service manager, idleness."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Self, TypeVar

from holdfast.cli.exits import ExitCode
from holdfast.core.records import JobRecord
from holdfast.core.states import UNFINISHED_STATES, JobState
from holdfast.engine.duty import FIRST_PAUSE, LONGEST_PAUSE
from holdfast.engine.worker import Worker
from holdfast.errors import StoreError
from holdfast.store.passing import is_passing
from holdfast.store.protocol import Store

Result = TypeVar("Result")

log = logging.getLogger("holdfast.worker")

IDLE_LOOK = 0.05
IDLE_PATIENCE = 1.0
FIRST_LOOK = 100
"""How many unfinished jobs are looked at first: of a long queue the first few are enough to know."""


class StopSignals:
    """SIGTERM and SIGINT: the first asks for a clean stop, the second ends the process at once.

    The handler only writes to a pipe: a lock taken there may be held by the very code it has interrupted.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self.descriptor, self._signalled = os.pipe()
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self.descriptor)
        os.close(self._signalled)

    def wait(self, timeout: float) -> None:
        """Until a signal comes or the time is up."""
        select.select([self.descriptor], [], [], timeout)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            os.write(2, b"holdfast: second signal, ending now\n")
            os._exit(ExitCode.INTERRUPTED)
        self.received = signal.Signals(number).name
        os.write(self._signalled, b".")


def wait_for_store(attempt: Callable[[], Result], signals: StopSignals) -> Result | None:
    """What `attempt` gives, as soon as the store can be used; None if a signal came before."""
    pause = FIRST_PAUSE
    while signals.received is None:
        try:
            return attempt()
        except Exception as error:
            if not is_passing(error):
                raise
            log.warning("the database cannot be used yet, next try in %.1f s: %s", pause, error)
        signals.wait(pause)
        pause = min(LONGEST_PAUSE, pause * 2)
    log.info("stopped on %s, before anything was begun", signals.received)
    return None


def notify_service_manager(state: str) -> None:
    """Tell systemd, if it asked to be told (Type=notify). Whether it hears is not our concern."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    try:
        import socket  # noqa: PLC0415 - for service managers only

        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect("\0" + address[1:] if address.startswith("@") else address)
            manager.send(state.encode())
    except OSError as error:
        log.warning("the service manager cannot be told %s: %s", state, error)


def watchdog_interval() -> float | None:
    """How often systemd wants to hear that all is well (WatchdogSec=): three times in the time it allows."""
    asked, whom = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not asked.isdecimal() or int(asked) == 0 or whom not in ("", str(os.getpid())):
        return None
    return int(asked) / 1e6 / 3


def wait_until_idle(store: Store, flows: Sequence[str], running: Worker, signals: StopSignals) -> None:
    """Until nothing of these flows runs or will start by itself, the worker cannot go on, or a signal comes."""
    listener = store.listen()
    listener.watch({signals.descriptor})
    try:
        while signals.received is None and running.failure is None and (running.active or _may_have_work(store, flows)):
            listener.wait(IDLE_LOOK if running.active else IDLE_PATIENCE)
    finally:
        listener.close()


def _may_have_work(store: Store, flows: Sequence[str]) -> bool:
    try:
        return has_work(store, flows)
    except StoreError as error:
        if not error.passing:
            raise
        # The worker waits for the database to come back, and so do we: nobody knows that nothing is left to do.
        log.warning("cannot look for work: %s", error)
        return True


def has_work(store: Store, flows: Sequence[str]) -> bool:
    """Is there a job of these flows that runs, or that will start without an operator's help?

    One that waits for another job counts if that other one does.
    """
    closed = {q.name for q in store.queues() if q.paused_at is not None or q.max_running == 0}
    return any(
        store.jobs(states=[JobState.RUNNING], flow=flow, limit=1) or _goes_on(store, flow, flows, closed)
        for flow in flows
    )


def _goes_on(store: Store, flow: str, flows: Sequence[str], closed: set[str]) -> bool:
    limit = FIRST_LOOK
    while True:
        # Both states in one look: a job that starts or is given back meanwhile would be in neither of two.
        unfinished = store.jobs(states=UNFINISHED_STATES, flow=flow, limit=limit)
        if any(_will_start(store, job, flows, closed) for job in unfinished):
            return True
        if len(unfinished) < limit:
            return False
        limit *= 10


def _will_start(store: Store, job: JobRecord, flows: Sequence[str], closed: set[str]) -> bool:
    while job.waits_for is not None and job.state is JobState.PENDING:
        job = store.job(job.waits_for)
    # It runs, or what it waited for has run or ended since the list was read, which has to be read again then.
    return job.state is not JobState.PENDING or (job.flow in flows and job.queue not in closed)
