"""Connections that are used again: so many at once, so many kept, none for ever."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from holdfast.errors import StoreBusy, StoreUnavailable

MAX_OPEN = 10
MAX_IDLE = 5
LIFETIME = 3600.0
TIMEOUT = 30.0


class Closable(Protocol):
    """All that the pool needs to know of a connection."""

    def close(self) -> None:
        """Give it up."""
        ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """At most `MAX_OPEN` connections at once; `MAX_IDLE` of them wait for the next user, for an hour at most."""

    def __init__(
        self, connect: Callable[[], C], *, clock: Callable[[], float] = time.monotonic, timeout: float = TIMEOUT
    ) -> None:
        self._connect = connect
        self._clock = clock
        self._timeout = timeout
        self._slots = threading.BoundedSemaphore(MAX_OPEN)
        self._lock = threading.Lock()
        self._idle: list[tuple[C, float]] = []
        self._closed = False
        self._process = os.getpid()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A connection for one user. After an error of any kind neither it nor what is idle is used again.

        What broke it, a server's restart say, has mostly broken the others too, and each would cost its user a try.
        """
        if os.getpid() != self._process:
            from holdfast.store.liveness import refuse_fork  # noqa: PLC0415 - which happens to nobody

            refuse_fork(self._process)
        if not self._slots.acquire(timeout=self._timeout):
            raise StoreBusy(
                f"all {MAX_OPEN} connections have been in use for {self._timeout:g} s", hint="it will be tried again"
            )
        try:
            connection, born = self._take()
            try:
                yield connection
            except BaseException:
                connection.close()
                self.drop_idle()
                raise
            self._give_back(connection, born)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    @property
    def idle(self) -> int:
        """How many wait to be used."""
        return len(self._idle)

    def drop_idle(self) -> None:
        """Close those that wait: the next user gets a new one."""
        if os.getpid() != self._process:
            return  # they are the parent's
        with self._lock:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def _take(self) -> tuple[C, float]:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("these tables have been closed", hint="open them again")
            while self._idle:
                connection, born = self._idle.pop()
                if self._clock() - born < LIFETIME:
                    return connection, born
                connection.close()
        return self._connect(), self._clock()

    def _give_back(self, connection: C, born: float) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE and self._clock() - born < LIFETIME:
                self._idle.append((connection, born))
                return
        connection.close()
