"""One execution of one job in this process: what its steps see, and what the executor needs to know."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.core.ending import EndCode
from holdfast.core.flow import Flow, Step
from holdfast.core.outcomes import Outcome, TryFailed
from holdfast.core.records import Child, Ending, JobRecord, JobResult
from holdfast.core.retry import RetryPolicy
from holdfast.core.text import storable
from holdfast.crash_points import crash_point
from holdfast.engine.tracebacks import TRACEBACK_LIMIT, bounded
from holdfast.errors import LeaseLost, ParentEndedError, StepCancelled, StepTimeout, may_pass
from holdfast.store.identifiers import new_ulid
from holdfast.store.messages import Claim, NewJob, ReportProgress, StoreTransaction
from holdfast.store.preparing import prepare_job
from holdfast.store.protocol import Store
from holdfast.store.results import result_of

if TYPE_CHECKING:
    import asyncio

PROGRESS_INTERVAL = 0.5

Answer = TypeVar("Answer")


class LiveRun:
    """Implements core.run.Run. Belongs to one thread at a time; `stop` alone may come from another."""

    def __init__(
        self, claim: Claim, flow: Flow[Any, Any], store: Store, report: Callable[[LiveRun, ReportProgress], None]
    ) -> None:
        self.claim = claim
        self.flow = flow
        self.job: JobRecord = claim.job
        self.exec_id = claim.exec_id
        self.request: Any = None
        self.saved_response: str | None = claim.response
        self.response: Any = None
        self.loaded = False
        self.move_to(claim.position)
        self.tries = claim.tries
        self.interrupted = claim.interrupted
        self.ending: Ending | None = None
        self.stop_error: Exception | None = None
        self.abandoned = False
        self.closing = False
        self.inside = False
        self.visits = 0
        self.retry_at = 0
        self.retry_due = 0.0
        self.fault: BaseException | None = None
        self.task: asyncio.Task[Any] | None = None
        self.thread: int | None = None
        self.place: str | None = None
        self.traceback: str | None = None
        self._failure: str | None = None
        self.committed_as = ("done", 0.0)
        self.end_code: EndCode | None = None
        self.last_error = ""
        self.step_started_at = 0
        self.step_began = 0.0
        self.began = time.monotonic()
        self._deadline: float | None = None
        self._store = store
        self._report = report
        self._reported = 0.0
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def step(self) -> str:
        return "cleanup" if self.ending is not None else self.current.name

    @property
    def timeout(self) -> float | None:
        """How long the step, or the cleanup, may take."""
        return self.current.timeout if self.ending is None else self.flow.cleanup_timeout

    @property
    def is_async(self) -> bool:
        """Does the step, or the cleanup, belong on the event loop?"""
        return self.current.is_async if self.ending is None else self.flow.cleanup_is_async

    @property
    def deadline(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        if self._log is None:
            self._log = _RunLog(logging.getLogger("holdfast.run"), self)
        return self._log

    def check(self) -> None:
        if self.stop_error is not None:
            raise self.stop_error
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise StepTimeout(f"step {self.step} ran longer than its timeout")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        self.check()
        now = time.monotonic()
        if now - self._reported < PROGRESS_INTERVAL:
            return
        self._reported = now
        about = {"step": self.step, "done": done, "total": total, "note": storable(note)}
        text = msgspec.json.encode(about).decode()
        self._report(self, ReportProgress(self.job.job_id, self.exec_id, self.position, text))

    @contextmanager
    def effect(self, name: str) -> Iterator[None]:
        crash_point(f"effect.{name}", "before")
        yield
        crash_point(f"effect.{name}", "after")

    def submit_child(self, name: str, flow: Flow[Any, Any], request: Any, *, key: str | None = None) -> str:
        job = prepare_job(
            flow,
            request,
            job_id=new_ulid(self._store.now()),
            key=key,
            priority=self.job.priority,
            parent=self.job.job_id,
            child_name=name,
            child_round=self.job.failures,
        )
        try:
            return self._store.submit([job], actor=f"job:{self.job.job_id}")[0].job_id
        except ParentEndedError as error:
            # What the worker would have told this step at its next check.
            raise LeaseLost(self.exec_id) if error.reason is None else StepCancelled(error.reason) from error

    def children(self) -> Sequence[Child]:
        return self._store.children(self.job.job_id)

    def child_result(self, job_id: str) -> JobResult:
        return result_of(self._store, job_id)

    # --- for the executor ---

    def enter(self, now: int, timeout: float | None) -> None:
        """A try of the current step begins."""
        self.inside = True
        self.thread = threading.get_ident()
        self.visits += 1
        self.retry_at = 0
        self.fault = None
        self.tries += 1
        self.step_started_at = now
        self.step_began = time.monotonic()
        self._deadline = None if timeout is None else self.step_began + timeout

    def load(self) -> None:
        """Read the request and the response so far. The user's code runs here, and may raise anything or take long."""
        self.request = self.flow.request_codec.decode(self.claim.request)
        self.load_response()
        self.loaded = True

    def sleep(self, now: int, seconds: float) -> int:
        """The next try is due so long from now, by the monotonic clock; returns when that is by the store's."""
        self.retry_due = time.monotonic() + seconds
        return now + round(seconds * 1000)

    def due_at(self, now: int) -> int:
        """When the next try is due by the store's clock, which may have been set since; 0 if none is waited for."""
        return 0 if not self.retry_at else now + max(0, round((self.retry_due - time.monotonic()) * 1000))

    def as_saved(self) -> LiveRun:
        """This run, with the response that its step has to begin with. May raise what the flow's `initial` raises."""
        if self.tries > 1:
            # The failed try may have changed the response in place.
            self.load_response()
        return self

    def patiently(self, read: Callable[[str], Answer]) -> Answer:
        """Ask the store about this job, however long it is away, unless the lease is lost meanwhile."""
        pause = 0.02
        while True:
            try:
                return read(self.job.job_id)
            except Exception as error:
                if not may_pass(error) or isinstance(self.stop_error, LeaseLost):
                    raise
                time.sleep(pause)
                pause = min(1.0, pause * 2)

    def move_to(self, position: int) -> None:
        """The next step to run is another one."""
        self.position = position
        # Of a job that was finished under a longer definition there is none; it is refused before one is asked for.
        self.current: Step = self.flow.steps[min(position, len(self.flow.steps) - 1)]
        self.tries = 0
        self.failures_by_kind: dict[type[BaseException] | None, int] = {}
        self.interrupted = False

    def load_response(self) -> None:
        """The response as it was saved, or the flow's first."""
        if self.saved_response is None:
            self.response = self.flow.first_response(self.request)
        else:
            self.response = self.flow.response_codec.decode(self.saved_response)

    def count_failure(self, policy: RetryPolicy, error: BaseException) -> int:
        """A try has failed: how many have that count against the limit of such an error.

        What the tries of an earlier execution failed with is not on record: they count against every limit.
        """
        kind = policy.kind_of(error)
        self.failures_by_kind[kind] = self.failures_by_kind.get(kind, 0) + 1
        return self.tries - sum(count for other, count in self.failures_by_kind.items() if other is not kind)

    def add_traceback_of_cleanup(self, traceback: str) -> None:
        """The cleanup failed as well: both are kept, and of the cleanup the last try."""
        if self._failure is None:
            self._failure = self.traceback or ""
        half = TRACEBACK_LIMIT // 2 - 32
        before = f"{bounded(self._failure, half)}\nThen the cleanup failed:\n\n" if self._failure else ""
        self.traceback = before + bounded(traceback, half)

    def let_go_of_frames(self, outcome: Outcome) -> None:
        """All is said about this failure: our own exceptions keep no frames of it.

        A frame holds the frames that called it. Some of these hold the outcome, such as those of the writer, and the
        run, which holds what it was stopped with: without this, cursors and connections of a step would live until
        the garbage collector comes by.
        """
        outcome.__traceback__ = None
        if isinstance(outcome, TryFailed):
            del outcome.error
        if self.stop_error is not None:
            self.stop_error.__traceback__ = None

    def stop(self, error: Exception) -> None:
        """Ask the step to stop; the first reason given stays."""
        if self.stop_error is None:
            self.stop_error = error


class CommitTransaction:
    """What a commit step gets as `tx`: the store's transaction, and jobs submitted with it."""

    def __init__(self, transaction: StoreTransaction, now: int) -> None:
        self._transaction = transaction
        self._now = now
        self.dialect = transaction.dialect
        self.execute = transaction.execute
        self.execute_own = transaction.execute_own
        self.executemany = transaction.executemany

    def submit(self, flow: Flow[Any, Any], request: Any, *, key: str | None = None) -> str:
        """Submit another job that exists only if this transaction commits."""
        job: NewJob = prepare_job(flow, request, job_id=new_ulid(self._now), key=key)
        return self._transaction.submit_job(job).job_id


class _RunLog(logging.LoggerAdapter[logging.Logger]):
    """Adds job, execution, flow and step to every record."""

    def __init__(self, logger: logging.Logger, run: LiveRun) -> None:
        super().__init__(logger, None)
        self._run = run

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        run = self._run
        bound = {
            "job_id": run.job.job_id,
            "exec_id": run.exec_id,
            "flow": run.flow.name,
            "step": run.step,
            "tries": run.tries,
            "attempt": run.job.attempts,
        }
        kwargs["extra"] = {**bound, **kwargs.get("extra", {})}
        return msg, kwargs
