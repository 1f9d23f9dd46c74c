"""One event loop in a thread of its own, which goes on whatever a task raises, and can be asked if it is blocked."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import Context, ContextVar
from functools import partial
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import StepTimeout, WorkerStopping
from holdfast.worker.endings import Next
from holdfast.worker.run import LiveRun

if TYPE_CHECKING:
    import asyncio


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


# --- Async steps: on one event loop as a rule, and on another in the place of one that died or that a step blocks ---
#
# A step that blocks its loop (a call that does not await) is alone with its fault: steps that have not begun go to
# another loop after BLOCKED_AFTER seconds, and those that were in the midst of an await there are given back, at no
# cost, when the loop has been blocked for as long as a lease. Until then they may go on if the loop does.


BEAT = 1.0
"""How often a loop that has something to do is asked for a sign of life, in seconds."""
BLOCKED_AFTER = 3.0
CLOSING_TIME = 3.0


class Casualties(NamedTuple):
    """Runs that an event loop took down with it."""

    failed: list[tuple[LiveRun, BaseException]]
    """Their loop died under them."""
    stranded: list[tuple[LiveRun, Exception]]
    """Their loop has been blocked for too long, and they cannot be reached there any more."""


class AsyncSteps:
    """Performs runs whose current step is async. `look` has to be called about every second while it is busy.

    `performed` hears what comes next, `failed` of a try that ended without a word, `broken` of a fault of the engine.
    """

    def __init__(
        self,
        perform: Callable[[LiveRun], Coroutine[Any, Any, Next]],
        performed: Callable[[LiveRun, Next], None],
        failed: Callable[[LiveRun, BaseException], None],
        broken: Callable[[LiveRun, BaseException], None],
        *,
        patience: float,
        crowded: Callable[[], None],
    ) -> None:
        self._perform = perform
        self._performed = performed
        self._failed = failed
        self._broken = broken
        self._patience = patience
        self._crowded = crowded
        self._current: EventLoop | None = None
        self._loops: list[EventLoop] = []
        self._placed: dict[LiveRun, Placement] = {}
        self._waiting: deque[Placement] = deque()
        self._looked_at = 0.0
        self._lock = threading.RLock()

    @property
    def is_busy(self) -> bool:
        """Is there a step that has not ended, or a loop that has to be seen off?"""
        return bool(self._placed) or any(loop is not self._current for loop in list(self._loops))

    @property
    def is_starved(self) -> bool:
        """Do steps wait because no thread for a loop can be had?"""
        return bool(self._waiting)

    def owns(self, thread: threading.Thread) -> bool:
        """Is it the thread of one of the loops?"""
        return any(loop.thread is thread for loop in list(self._loops))

    def put(self, run: LiveRun) -> None:
        """Perform the current step of this run."""
        placement = Placement(run)
        with self._lock:
            first = not self._placed
            self._placed[run] = placement
            self._waiting.append(placement)
            self._hand_out()
        if first:
            self._crowded()  # from now on somebody has to look

    def cancel(self, run: LiveRun) -> None:
        """Cancel the step of this run, if it is on a loop."""
        with self._lock:
            placement = self._placed.get(run)
            if placement is None or placement.loop is None:
                return
            placement.cancel_asked = True
            placement.loop.call(self._cancel, placement)

    def abandon(self, run: LiveRun) -> None:
        """Let go of a step that does not stop; if it keeps its loop from hearing of it, let go of that too."""
        with self._lock:
            placement = self._placed.get(run)
            if placement is None:
                return
            deaf = placement.cancel_asked and not placement.cancel_seen
            self._drop(placement)
            if placement.loop is not None:
                placement.loop.call(self._cancel, placement)
                if deaf and placement.loop is self._current:
                    self._replace(placement.loop)

    def take_all(self) -> list[LiveRun]:
        """Take back what no loop was there for."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
            for placement in waiting:
                self._drop(placement)
        return [placement.run for placement in waiting]

    def look(self, now: float) -> Casualties:
        """Replace loops that are dead or blocked."""
        casualties = Casualties([], [])
        with self._lock:
            # A process that was stopped for a while finds everybody late.
            was_away, self._looked_at = now - self._looked_at > BLOCKED_AFTER / 2, now
            for loop in list(self._loops):
                if was_away:
                    loop.forgive(now)
                self._look_at(loop, now, casualties)
            self._hand_out()
        return casualties

    def close(self) -> None:
        """End the loops and their threads; one that is blocked ends when it can."""
        with self._lock:
            loops, self._loops, self._current = self._loops, [], None
        for loop in loops:
            loop.end()
        for loop in loops:
            loop.wait_until_over(CLOSING_TIME)

    # --- with the lock ---

    def _hand_out(self) -> None:
        """Give what waits to a loop. Without one, for want of a thread, it goes on waiting."""
        while self._waiting:
            loop = self._current or self._start()
            if loop is None:
                return
            placement = self._waiting[0]
            placement.loop = loop
            if placement.over or loop.call(self._begin, placement, loop):
                self._waiting.popleft()
            else:
                self._current = None  # it is dead, and will be found to be

    def _start(self) -> EventLoop | None:
        try:
            self._current = loop = EventLoop(self._crowded)
        except (RuntimeError, OSError, MemoryError) as error:
            log.warning("no event loop can be started for async steps: %s", error)
            return None
        self._loops.append(loop)
        return loop

    def _look_at(self, loop: EventLoop, now: float, casualties: Casualties) -> None:
        mine = [placement for placement in self._placed.values() if placement.loop is loop]
        if not loop.is_alive:
            self._replace(loop)
            self._loops.remove(loop)
            for placement in mine:
                if placement.began:
                    self._drop(placement)
                    casualties.failed.append((placement.run, RuntimeError(f"the event loop died: {loop.error!r}")))
            return
        blocked = loop.blocked_for(now)
        if loop is self._current and blocked > BLOCKED_AFTER:
            log.warning("an event loop has been blocked for %.1f s by a step that does not await", blocked)
            self._replace(loop)
        if loop is not self._current:
            if blocked > max(self._patience, BLOCKED_AFTER):
                self._strand(loop, [placement for placement in mine if placement.began], blocked, casualties)
            if not any(placement.loop is loop for placement in self._placed.values()):
                self._loops.remove(loop)
                loop.end()
                return
        if mine:
            loop.ask(now, interval=BEAT)

    def _strand(self, loop: EventLoop, mine: list[Placement], blocked: float, casualties: Casualties) -> None:
        """Take away what cannot go on there; the step that blocks the loop works, and keeps its lease."""
        is_known, culprit = loop.culprit()
        for placement in mine:
            if placement is culprit:
                continue
            self._drop(placement)
            why = f"its event loop was blocked for {blocked:.0f} s by another step"
            # Where it is not known whose fault it is, each of them has to answer for it, or it could go on for ever.
            casualties.stranded.append((placement.run, WorkerStopping(why) if is_known else StepTimeout(why)))

    def _replace(self, loop: EventLoop) -> None:
        """Give it nothing more, and what has not begun there to another one."""
        if loop is self._current:
            self._current = None
        for placement in self._placed.values():
            if placement.loop is loop and not placement.began:
                placement.loop = None
                self._waiting.append(placement)
        self._hand_out()

    def _drop(self, placement: Placement) -> None:
        placement.over = True
        if self._placed.get(placement.run) is placement:
            del self._placed[placement.run]

    # --- on the thread of a loop ---

    def _begin(self, placement: Placement, loop: EventLoop) -> None:
        with self._lock:
            if placement.over or placement.began or placement.loop is not loop:
                return
            placement.began = True
        try:
            task = loop.start(placement, self._perform_one)
            task.add_done_callback(partial(self._see_off, placement))
        except BaseException as error:
            if not self._ended(placement):
                self._failed(placement.run, error)

    def _see_off(self, placement: Placement, _task: asyncio.Task[None]) -> None:
        """A task that somebody has cancelled before it began has told nobody of its end."""
        if not self._ended(placement):
            self._failed(placement.run, RuntimeError("its task was cancelled by another one"))

    def _cancel(self, placement: Placement) -> None:
        placement.cancel_seen = True
        if placement.task is not None:
            placement.task.cancel()

    async def _perform_one(self, placement: Placement) -> None:
        try:
            following = await self._perform(placement.run)
        except GeneratorExit as error:
            if self._ended(placement):
                raise  # dropped with a loop that has ended
            self._failed(placement.run, error)
            return
        except BaseException as error:
            if not self._ended(placement):
                self._broken(placement.run, error)
            return
        if not self._ended(placement):
            self._performed(placement.run, following)

    def _ended(self, placement: Placement) -> bool:
        """It ends here and now; True if it was let go of before."""
        with self._lock:
            was_over = placement.over
            self._drop(placement)
        return was_over
