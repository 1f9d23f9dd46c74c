"""The event loop for async steps: a thread of its own, started with the first of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from holdfast.engine.run import LiveRun

if TYPE_CHECKING:
    import asyncio


class AsyncSteps:
    """Performs runs whose current step is async."""

    def __init__(
        self, perform: Callable[[LiveRun], Coroutine[Any, Any, None]], failed: Callable[[BaseException], None]
    ) -> None:
        self._perform = perform
        self._failed = failed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def put(self, run: LiveRun) -> None:
        """Perform the current step of this run."""
        loop = self._loop or self._start()
        loop.call_soon_threadsafe(self._create_task, loop, run)

    def cancel(self, run: LiveRun) -> None:
        """Cancel the step of this run, if it is on the loop."""
        task, loop = run.task, self._loop
        if task is not None and loop is not None:
            loop.call_soon_threadsafe(task.cancel)

    def close(self) -> None:
        """End the loop and its thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5.0)
        if not thread.is_alive():
            loop.close()

    def _create_task(self, loop: asyncio.AbstractEventLoop, run: LiveRun) -> None:
        run.task = loop.create_task(self._perform_or_fail(run))

    async def _perform_or_fail(self, run: LiveRun) -> None:
        try:
            await self._perform(run)
        except GeneratorExit:
            raise  # dropped with the loop of a worker that has stopped
        except BaseException as error:
            self._failed(error)

    def _start(self) -> asyncio.AbstractEventLoop:
        import asyncio  # noqa: PLC0415 - half of the time it takes to start, and most flows have no async steps

        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="holdfast-async", daemon=True)
        self._thread.start()
        return loop
