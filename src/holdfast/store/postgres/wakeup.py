"""Wake-up by LISTEN and NOTIFY, with the worker's own slow look as the safety net."""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from holdfast.store.postgres.connection import BoundedConnection
from holdfast.store.postgres.limits import GREETING

log = logging.getLogger("holdfast.postgres")

RECONNECT_PAUSE = 1.0
HEARTBEAT = 30.0
"""A connection over which nothing was heard for so long is asked whether it is still there."""


class PostgresListener:
    """Waits on a connection of its own; a lost one is replaced, and until then the time-out wakes."""

    def __init__(self, conninfo: str, channel: str, connecting: Mapping[str, Any]) -> None:
        self._conninfo = conninfo
        self._connecting = connecting
        self._channel = channel
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: set[int] = set()
        self._tried_at = -RECONNECT_PAUSE
        self._connection: BoundedConnection | None = None
        self._connect()

    def wait(self, timeout: float | None) -> bool:
        """Until notified, woken, or a watched descriptor is ready, or the time is up; True unless it was the time."""
        if self._connection is None:
            self._connect()
        elif time.monotonic() - self._connection.answered_at > HEARTBEAT:
            self._ask()
            return True  # what arrived meanwhile, or would have over a connection that was none, is not known
        descriptors = [self._read, *self._watched]
        if self._connection is not None:
            if self._drain():
                return True
            descriptors.append(self._connection.fileno())
        elif timeout is None or timeout > RECONNECT_PAUSE:
            timeout = RECONNECT_PAUSE
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(None if timeout is None else max(0.0, timeout) * 1000)}
        if self._read in ready:
            os.read(self._read, 4096)
        if self._connection is not None and self._connection.fileno() in ready:
            self._drain()
        return bool(ready)

    def watch(self, descriptors: set[int]) -> None:
        """Also wake when one of these descriptors becomes readable."""
        self._watched = set(descriptors)

    def wake(self) -> None:
        """Make wait() return."""
        try:
            os.write(self._write, b".")
        except OSError:
            pass  # full: it will wake anyway

    def close(self) -> None:
        """Stop listening."""
        if self._connection is not None:
            self._connection.close()
        os.close(self._read)
        os.close(self._write)

    def _drain(self) -> bool:
        """Take what has arrived; True if there was something, or if the connection is lost and all may have changed."""
        assert self._connection is not None
        try:
            return any(True for _ in self._connection.notifies(timeout=0))
        except psycopg.Error as error:
            self._drop(error)
            return True

    def _ask(self) -> None:
        assert self._connection is not None
        try:
            self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            self._drop(error)

    def _drop(self, error: Exception) -> None:
        assert self._connection is not None
        log.warning("listening connection lost: %s", error)
        self._connection.close()
        self._connection = None

    def _connect(self) -> None:
        if time.monotonic() - self._tried_at < RECONNECT_PAUSE:
            return
        self._tried_at = time.monotonic()
        try:
            self._connection = BoundedConnection.connect(self._conninfo, **{**self._connecting, "connect_timeout": 5})
            self._connection.answer_limit = GREETING
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error as error:
            log.warning("cannot listen, looking now and then instead: %s", error)
            self._connection = None
