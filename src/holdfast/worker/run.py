"""Tracebacks as bounded text: of an exception, whatever it is, and of a step that is still running.

Only text leaves this module. A stored exception would keep the frames of a step alive, and with them its cursors and
connections. Values of variables are never shown.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.core.flow import Flow, Step
from holdfast.core.records import Child, Ending, JobRecord, JobResult, storable
from holdfast.core.retry import RetryPolicy
from holdfast.core.step import EndCode, Outcome, TryFailed
from holdfast.crash_points import crash_point
from holdfast.errors import LeaseLost, ParentEndedError, StepCancelled, StepTimeout, may_pass
from holdfast.store.commands import Claim, NewJob, ReportProgress, StoreTransaction
from holdfast.store.journal import result_of
from holdfast.store.protocol import Store
from holdfast.store.rows import new_ulid
from holdfast.store.submit import prepare_job

if TYPE_CHECKING:
    import asyncio


TRACEBACK_LIMIT = 8192
"""Bytes of a stored traceback. The end is worth more than the beginning: it names the error and where it was raised."""
HEAD_SHARE = 4
MOST_FRAMES = 100
MOST_EXCEPTIONS = 30
MEMBERS_SHOWN = 5

_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


def traceback_of(error: BaseException) -> str:
    """The exception with its causes, beginning in the step's own code. Never raises, whatever the exception does."""
    try:
        text = _formatted(error) if _is_small(error) else _formatted_plainly(error)
    except BaseException:  # raised by the exception's own code, which may raise anything
        text = _formatted_plainly(error)
    return bounded(text)


def place_of(run: LiveRun) -> str | None:
    """Where the step of this run is just now, asked from another thread; None if that cannot be told."""
    try:
        frames = list(_frames_of(run))
        if not frames:
            return None
        lines = traceback.StackSummary.extract(iter(frames[-MOST_FRAMES:]), lookup_lines=True).format()
    except Exception:  # the step runs on meanwhile, and may end in the midst of this
        return None
    return bounded("The step was here when it was given up (most recent call last):\n" + "".join(lines))


def bounded(text: str, limit: int = TRACEBACK_LIMIT) -> str:
    """The text as UTF-8 of at most `limit` bytes: its beginning and its end, and how much is left out between them."""
    encoded = storable(text).encode()
    if len(encoded) <= limit:
        return encoded.decode()
    note = f"\n... {len(encoded) - limit} bytes left out ...\n"
    room = limit - len(note) - 16  # the number may have more digits, once the note itself takes some room
    head = encoded[: room // HEAD_SHARE].decode("utf-8", "ignore")
    tail = encoded[len(encoded) - (room - room // HEAD_SHARE) :].decode("utf-8", "ignore")
    return f"{head}{note}{tail}"


def _formatted(error: BaseException) -> str:
    """As Python itself shows it."""
    trace = without_engine(error.__traceback__)
    limit = -MOST_FRAMES if _depth(trace) > MOST_FRAMES else None
    shown = traceback.TracebackException(type(error), error, trace, limit=limit, compact=True)
    return "".join(shown.format())


def _formatted_plainly(error: BaseException) -> str:
    """The same with nothing asked of the exceptions but their text."""
    parts = []
    for link, one in reversed(_chain(error)):
        try:
            frames = "".join(traceback.format_tb(without_engine(one.__traceback__), -MOST_FRAMES))
        except Exception:
            frames = ""
        parts.append(f"Traceback (most recent call last):\n{frames}{text_of(one)}\n{_members(one)}{link}")
    return "".join(parts)


def _members(error: BaseException) -> str:
    """The first exceptions of a group."""
    if not isinstance(error, BaseExceptionGroup):
        return ""
    first = error.exceptions[:MEMBERS_SHOWN]
    more = len(error.exceptions) - len(first)
    return "".join(f"  | {text_of(one)}\n" for one in first) + (f"  | and {more} more\n" if more else "")


def _is_small(error: BaseException) -> bool:
    """Are there few enough exceptions, causes and members of groups together, to be formatted all of them?"""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        members = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        if len(seen) + len(members) > MOST_EXCEPTIONS:
            return False
        todo += [one.__cause__, one.__context__, *members]
    return True


def text_of(error: BaseException) -> str:
    """Its class and what it says, on as many lines as it likes."""
    try:
        text = str(error)
    except BaseException:  # whatever it is, it is no reason to fall over
        text = "<its text cannot be made>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _chain(error: BaseException) -> list[tuple[str, BaseException]]:
    """The exception and those that it came of, each once, with what leads from it to the one before; bounded."""
    chain: list[tuple[str, BaseException]] = []
    seen: set[int] = set()
    link, one = "", error
    while len(chain) < MOST_EXCEPTIONS and id(one) not in seen:
        seen.add(id(one))
        chain.append((link, one))
        if one.__cause__ is not None:
            link, one = _CAUSE, one.__cause__
        elif one.__context__ is not None and not one.__suppress_context__:
            link, one = _CONTEXT, one.__context__
        else:
            break
    return chain


def without_engine(trace: TracebackType | None) -> TracebackType | None:
    """From the first frame that is not the engine's; all of it if there is no other."""
    first = trace
    while first is not None and _is_engine(first.tb_frame):
        first = first.tb_next
    return first or trace


def _is_engine(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_ENGINE)


def _depth(trace: TracebackType | None) -> int:
    depth = 0
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    return depth


def _frames_of(run: LiveRun) -> Iterator[tuple[FrameType, int]]:
    """The frames of its step, outermost first: on a thread, or suspended where its coroutine awaits something."""
    thread = sys._current_frames().get(run.thread or 0)  # noqa: SLF001 - the documented way to see another thread
    stack: list[FrameType] = []
    while thread is not None:
        stack.append(thread)
        thread = thread.f_back
    stack.reverse()
    if run.task is not None:
        awaiting = list(_awaiting(run.task.get_coro()))
        if awaiting and awaiting[0] not in stack:  # on the stack if it blocks the event loop itself
            stack = awaiting
    while stack and not _is_engine(stack[0]):
        del stack[0]  # how the thread came to the engine
    while stack and _is_engine(stack[0]):
        del stack[0]
    return ((frame, frame.f_lineno) for frame in stack)


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    for _ in range(MOST_FRAMES):
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            return
        yield frame
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


# --- One execution of one job in this process: what its steps see, and what the executor needs to know ---

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
        self.request_loaded = False
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
        self.request_loaded = True
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
