"""Where plain handlers run: a bounded pool of threads, with a bounded queue before it."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.web.problems import RETRY_AFTER, Refused
from holdfast.web.routes import Services

THREADS = 8
"""Below the number of connections that a store opens at once."""
MOST_WAITING = 2_500
"""Requests that wait for a thread, as many as there are connections: after a restart all listeners come at once, and a
browser that is told to come again never does. What comes beyond is refused."""

T = TypeVar("T")


class Threads:
    """A bounded pool with a bounded queue before it."""

    def __init__(self, _services: Services) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast-web")
        self._waiting = 0

    async def run(self, function: Callable[[], T]) -> T:
        """The result of the function, called in a thread."""
        if self._waiting >= THREADS + MOST_WAITING:
            raise Refused(503, "overloaded", "too many requests at once", headers={"Retry-After": str(RETRY_AFTER)})
        self._waiting += 1
        try:
            return await asyncio.wrap_future(self._pool.submit(contextvars.copy_context().run, function))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Let what runs come to its end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
