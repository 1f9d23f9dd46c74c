"""Async steps: on one event loop as a rule, and on another in the place of one that died or that a step blocks.

A step that blocks its loop (a call that does not await) is alone with its fault: steps that have not begun go to
another loop after BLOCKED_AFTER seconds, and those that were in the midst of an await there are given back, at no
cost, when the loop has been blocked for as long as a lease. Until then they may go on if the loop does.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.engine.event_loop import EventLoop, Placement
from holdfast.engine.following import Next
from holdfast.engine.run import LiveRun
from holdfast.errors import StepTimeout, WorkerStopping

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("holdfast.worker")

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
