"""Requests that wait for the end of jobs: one thread looks for all of them, woken by the store.

So many wait at once as MOST; whoever comes beyond is answered at once with how the job stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.core.states import UNFINISHED_STATES
from holdfast.errors import HoldfastError
from holdfast.store.protocol import Listener, Store
from holdfast.web.routes import Services

log = logging.getLogger("holdfast.web")

MOST = 100
LONGEST_SLEEP = 1.0
"""Seconds between two looks; a wake-up may be lost."""
REST = 5
"""Looks are so many times as far apart as the last one took, so that waiting costs a busy store little."""
SHORTEST_REST = 0.01


class _Waiter(NamedTuple):
    job_id: str
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Event


class JobWaits:
    """Who waits for what. The thread is there as long as somebody waits."""

    def __init__(self, services: Services) -> None:
        self._store: Store = services.engine.store
        self._lock = threading.Lock()
        self._waiters: set[_Waiter] = set()
        self._listener: Listener | None = None
        self._closed = False

    async def until_ended(self, job_id: str, seconds: float) -> bool:
        """Wait for the end of a job, for so long at most; False, and at once, if too many wait already."""
        waiter = _Waiter(job_id, asyncio.get_running_loop(), asyncio.Event())
        if not self._added(waiter):
            return False
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiter.ended.wait(), seconds)
        finally:
            with self._lock:
                self._waiters.discard(waiter)
                if not self._waiters and self._listener is not None:
                    self._listener.wake()
        return True

    def _added(self, waiter: _Waiter) -> bool:
        with self._lock:
            if len(self._waiters) >= MOST or self._closed:
                return False
            self._waiters.add(waiter)
            if self._listener is None:
                self._listener = self._store.listen()
                threading.Thread(
                    target=self._look, args=(self._listener,), name="holdfast-web-waiting", daemon=True
                ).start()
            else:
                self._listener.wake()  # the job may have ended before it was looked for
        return True

    def _look(self, listener: Listener) -> None:
        try:
            while waiters := self._there(listener):
                began = time.monotonic()
                try:
                    self._tell(waiters)
                except Exception:  # the next look may succeed, and without this thread nobody would be told anything
                    log.exception("could not look at the jobs that are waited for; they are looked at again")
                time.sleep(max(SHORTEST_REST, REST * (time.monotonic() - began)))
                listener.wait(LONGEST_SLEEP)
        finally:
            listener.close()

    def _there(self, listener: Listener) -> Sequence[_Waiter]:
        """Who waits; without anybody, the thread ends, and the next one to wait starts another."""
        with self._lock:
            if (self._closed or not self._waiters) and self._listener is listener:
                self._listener = None
            return [] if self._closed else list(self._waiters)

    def _tell(self, waiters: Sequence[_Waiter]) -> None:
        over: dict[str, bool] = {}
        for waiter in waiters:
            if waiter.job_id not in over:
                over[waiter.job_id] = self._is_over(waiter.job_id)
            if over[waiter.job_id]:
                with contextlib.suppress(RuntimeError):  # its event loop is gone, and it with it
                    waiter.loop.call_soon_threadsafe(waiter.ended.set)

    def _is_over(self, job_id: str) -> bool:
        """Whoever waits is told of a job that cannot be read, too, and finds that out by looking."""
        try:
            return self._store.job(job_id).state not in UNFINISHED_STATES
        except HoldfastError as error:
            log.warning("could not look at job %s, which is waited for: %s", job_id, error)
            return not error.passing

    def close(self) -> None:
        """Let everybody go."""
        with self._lock:
            self._closed = True
            waiters, listener = list(self._waiters), self._listener
        for waiter in waiters:
            with contextlib.suppress(RuntimeError):
                waiter.loop.call_soon_threadsafe(waiter.ended.set)
        if listener is not None:
            listener.wake()
