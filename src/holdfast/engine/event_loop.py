"""One event loop in a thread of its own, which goes on whatever a task raises, and can be asked if it is blocked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from holdfast.engine.run import LiveRun

log = logging.getLogger("holdfast.worker")

TIDY_UP = 1.0
"""Seconds for tasks that nobody waits for to end when their loop does."""


class Placement:
    """One try of an async step on a loop."""

    __slots__ = ("began", "cancel_asked", "cancel_seen", "loop", "over", "run", "task")

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.loop: EventLoop | None = None
        self.task: asyncio.Task[None] | None = None
        self.began = False
        self.over = False
        """Nobody waits for its end any more."""
        self.cancel_asked = False
        self.cancel_seen = False


_placement: ContextVar[Placement | None] = ContextVar("holdfast_placement", default=None)
"""Whose step it is. Tasks and callbacks that a step starts inherit it."""


class EventLoop:
    """`died` is called from its thread if it ends without having been told to."""

    def __init__(self, died: Callable[[], None]) -> None:
        import asyncio  # noqa: PLC0415 - half of the time it takes to start, and most flows have no async steps

        self._asyncio = asyncio
        self._died = died
        self._loop = asyncio.new_event_loop()
        self._ending = False
        self._asked_at: float | None = None
        self._answered_at = time.monotonic()
        self._over = threading.Event()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="holdfast-async", daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self._loop.close()
            raise

    # --- from any thread ---

    def call(self, function: Callable[..., object], *arguments: object) -> bool:
        """Have the loop call this; False if it cannot any more."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def end(self) -> None:
        """End it as soon as it turns again; what is still on it is cancelled."""
        self._ending = True
        self.call(self._loop.stop)

    def wait_until_over(self, timeout: float) -> None:
        """Until it has ended, but for what does not."""
        self._over.wait(timeout)

    @property
    def is_alive(self) -> bool:
        """Will it still call what it is asked to?"""
        return self.thread.is_alive() and not (self._over.is_set() or self._loop.is_closed())

    # --- from the scheduler's thread ---

    def ask(self, now: float, *, interval: float) -> None:
        """Ask it for a sign of life, if the last one is older than that."""
        if self._asked_at is None and now - self._answered_at >= interval:
            self._asked_at = now
            self.call(self._answer)

    def forgive(self, now: float) -> None:
        """Whoever asked was away, too: the time until now is not the loop's fault."""
        if self._asked_at is not None:
            self._asked_at = now

    def blocked_for(self, now: float) -> float:
        """For how many seconds it has owed an answer."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else now - asked_at

    def culprit(self) -> tuple[bool, Placement | None]:
        """Is it known what the loop is in the midst of, and whose step that is, if it is one's."""
        frame = sys._current_frames().get(self.thread.ident or 0)  # noqa: SLF001 - the only way to look into a thread
        handle = self._asyncio.Handle._run.__code__  # noqa: SLF001 - what runs on a loop is run by this, and only this
        context = _context_in(_callers_of(frame), handle)
        return (False, None) if context is None else (True, context.get(_placement))

    # --- on its own thread ---

    def start(self, placement: Placement, perform: Callable[[Placement], Any]) -> asyncio.Task[None]:
        """Begin this try."""
        context = Context()
        context.run(_placement.set, placement)
        # Not by the loop, whose way to make tasks a step may have changed.
        placement.task = self._asyncio.Task(perform(placement), loop=self._loop, context=context)
        return placement.task

    def _answer(self) -> None:
        self._answered_at = time.monotonic()
        self._asked_at = None

    def _work(self) -> None:
        try:
            while not self._ending:
                self._turn()
        except BaseException as error:
            self.error = error
            log.critical("an event loop of the worker died and is replaced: %r", error)
        finally:
            self._close()

    def _turn(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:
            # asyncio lets SystemExit and KeyboardInterrupt of a task or a callback out. The loop is none the worse
            # for it, unless it did not come from what it had called.
            handle = self._asyncio.Handle._run.__code__  # noqa: SLF001 - as above
            context = _context_in(_frames_of(error.__traceback__), handle)
            if context is None:
                raise
            self._blame(context.get(_placement), error)
        else:
            if not self._ending:
                log.warning("a step has stopped the event loop of the worker, which goes on")

    def _blame(self, placement: Placement | None, error: BaseException) -> None:
        """What ends a program when it comes from a task ends here the step that has started that task."""
        task = None if placement is None else placement.task
        if placement is None or placement.over or task is None or task.done():
            log.error("%r in a task that belongs to no step that is running", error, exc_info=error)
            return
        placement.run.fault = error
        task.cancel()

    def _close(self) -> None:
        try:
            self._loop.set_task_factory(None)
            if self.error is None and not self._loop.is_closed():
                self._loop.run_until_complete(self._tidy_up())
        except BaseException as error:
            log.warning("something was left on an event loop that has ended: %r", error)
        left = self._asyncio.all_tasks(self._loop)
        self._over.set()
        if not self._ending:
            self._died()
        if left and self.error is None:
            self._stay_with(left)
        try:
            self._loop.close()
        except BaseException as error:
            log.warning("an event loop cannot be closed: %r", error)
        while any(not task.done() for task in left):
            threading.Event().wait()  # only to remember them

    async def _tidy_up(self) -> None:
        left = self._asyncio.all_tasks() - {self._asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await self._asyncio.wait(left, timeout=TIDY_UP)
        await self._asyncio.wait_for(self._loop.shutdown_asyncgens(), TIDY_UP)

    def _stay_with(self, left: set[asyncio.Task[Any]]) -> None:
        """Steps that do not end keep this thread, as plain ones keep theirs.

        Forgotten, they would be ended by the collector of garbage on whatever thread it runs, the scheduler's even.
        """
        log.warning("%d task(s) on an event loop do not end; its thread is left to them", len(left))
        end = self._asyncio.wait(left)
        try:
            self._loop.run_until_complete(end)
        except BaseException as error:
            end.close()
            log.warning("an event loop cannot go on with what was left on it: %r", error)


def _frames_of(traceback: TracebackType | None) -> Iterator[FrameType]:
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next


def _callers_of(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _context_in(frames: Iterator[FrameType], handle_run: CodeType) -> Context | None:
    """The context of the callback that a loop is running or was running in these frames."""
    for frame in frames:
        if frame.f_code is handle_run:
            context = getattr(frame.f_locals.get("self"), "_context", None)
            return context if isinstance(context, Context) else None
    return None
