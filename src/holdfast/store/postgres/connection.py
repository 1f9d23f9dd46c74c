"""A connection that does not wait for ever: one that has not answered for its time limit is given up."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Generator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

log = logging.getLogger("holdfast.postgres")

T = TypeVar("T")


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """Raises OperationalError, as for a connection that was cut, once nothing has arrived for `answer_limit` seconds.

    TCP notices a peer that is gone, but not one whose kernel acknowledges while nobody answers: a pooler that hangs, a
    frozen server. The limit has to be longer than the server takes to end a statement by itself.
    """

    answer_limit = 40.0
    answered_at = 0.0
    is_given_up = False
    keeps_locks = False
    """May it hold locks that outlast a transaction? Then nobody else may get it."""
    on_server: tuple[int, str] | None = None
    """The server's process and when the transaction began there, for as long as one may be open."""

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Wait for an answer, but not for longer than the limit without a sign of one."""
        answer = super().wait(self._bounded(gen), *arguments, **options)
        self.answered_at = time.monotonic()
        return answer

    def _bounded(self, waiting: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        heard_at = time.monotonic()
        ready: Any = None
        while True:
            try:
                wanted = waiting.send(ready)
            except StopIteration as stop:
                answer: T = stop.value
                return answer
            ready = yield wanted
            now = time.monotonic()
            if ready:
                heard_at = now
            elif now - heard_at > self.answer_limit:
                heard_at = now
                self._give_up()

    def _give_up(self) -> None:
        """Close the way in both directions: what waits for an answer finds the end of it, as if it had been cut."""
        self.is_given_up = True
        log.warning("no answer for %.0f s, connection given up", self.answer_limit)
        with suppress(OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as end:
            end.shutdown(socket.SHUT_RDWR)
