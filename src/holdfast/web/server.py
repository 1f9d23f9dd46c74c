"""uvicorn on sockets of our own: it knows who is at the other end, and lets nobody dawdle.

What uvicorn has no limit for is limited here: the time for a header, for a body, for a response that nobody reads, and
how many connections there are at once.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import h11
import msgspec
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.web.credentials import PEER, Peer
from holdfast.web.limits import SECURITY_HEADERS
from holdfast.web.problems import MEDIA_TYPE, problem
from holdfast.web.sockets import peer_on

log = logging.getLogger("holdfast.web")

SPARE_DESCRIPTORS = 128
"""For the store, its files and everything else that is no connection."""
MOST_DESCRIPTORS = 65_536
LOOK_INTERVAL = 1.0
LINGER_SECONDS = 2.0
WRITE_BUFFER = 64 << 10
SEND_BUFFER = 128 << 10
"""Bytes that the kernel keeps for a reader who does not read; left to itself it may take megabytes."""


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one connection may cost."""

    connections: int = 2_500
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    """From a connection, or the first byte of a further request, to the end of the header."""
    idle_seconds: float = 30.0
    """Between two requests."""
    body_seconds: float = 30.0
    read_seconds: float = 30.0
    """How long a client may take nothing of what is written to it."""
    stop_seconds: float = 5.0
    """How long requests that are under way may take when the server stops."""


class _Transport:
    """A transport that counts what was written, and does not cut off a client that is still sending.

    Closed with bytes unread, a socket takes its answer back: the client would see a broken connection, and not why.
    """

    def __init__(self, inner: Any, is_sending: Callable[[], bool]) -> None:
        self._inner = inner
        self._is_sending = is_sending
        self._lingers = False
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def taken(self) -> int:
        """Bytes that the kernel has taken."""
        return self._written - int(self._inner.get_write_buffer_size())

    def write(self, data: bytes) -> None:
        """Send them."""
        self._written += len(data)
        self._inner.write(data)

    def is_closing(self) -> bool:
        """Is nothing read any more?"""
        return self._lingers or bool(self._inner.is_closing())

    def close(self) -> None:
        """Close it, after a moment if the client is in the middle of something."""
        if self._lingers or self._inner.is_closing() or not self._is_sending():
            self._inner.close()
            return
        self._lingers = True
        try:
            self._inner.write_eof()
            self._inner.resume_reading()
        except (OSError, RuntimeError):
            self._inner.close()
        else:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._inner.close)


class HttpConnection(H11Protocol):
    """One connection: with the credentials of its peer, and with deadlines."""

    limits = ServerLimits()

    def connection_made(self, transport: Any) -> None:
        """Take note of the peer; turn it away if there are too many."""
        found: socket.socket = transport.get_extra_info("socket")
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if found.family != socket.AF_UNIX:
            # Header and body go out one after the other: the body would wait for the client's delayed acknowledgement.
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._counted = _Transport(transport, self._is_sent_to)
        super().connection_made(cast(asyncio.Transport, self._counted))
        self._header_since: float | None = self.loop.time()
        self._progress_at, self._taken = self.loop.time(), 0
        peer = peer_on(found)
        if peer is not None:
            self.app = partial(_with_peer, self.app, peer)
        if len(self.connections) > self.limits.connections:
            self.refuse(503, "too-many-connections", "too many connections at once")

    def _is_sent_to(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR)

    def data_received(self, data: bytes) -> None:
        """Note when a header begins, and when it is complete."""
        if self.transport.is_closing():
            return
        before = self.cycle
        if self._header_since is None and before is not None and before.response_complete:
            self._header_since = self.loop.time()
        super().data_received(data)
        is_between = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if self.cycle is not before or (self.cycle is not None and is_between):
            self._header_since = None

    def send_400_response(self, msg: str) -> None:
        """The answer to what is no HTTP, or a header over the limit."""
        if len(self.conn.trailing_data[0]) > self.limits.header_bytes:
            self.refuse(431, "header-too-large", f"the header is over {self.limits.header_bytes:,} bytes")
        else:
            self.refuse(400, "malformed-request", msg)

    def refuse(self, status: int, code: str, detail: str) -> None:
        """An answer that no application gives, and the end."""
        content = msgspec.json.encode(problem(status, code, detail))
        headers = [
            *SECURITY_HEADERS,
            (b"content-type", MEDIA_TYPE.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        answer: list[Any] = [h11.Response(status_code=status, headers=headers), h11.Data(data=content)]
        try:
            for event in (*answer, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # another answer is under way
        self.transport.close()

    def look(self, now: float) -> None:
        """Cut it off if it dawdles."""
        taken = self._counted.taken
        if taken != self._taken or self.transport.get_write_buffer_size() == 0:
            self._taken, self._progress_at = taken, now
        if now - self._progress_at > self.limits.read_seconds:
            log.info("a client that reads nothing is cut off")
            self.transport.abort()
        elif (
            self._header_since is not None
            and now - self._header_since > self.limits.header_seconds
            and not self.transport.is_closing()
        ):
            self.refuse(408, "header-too-slow", f"the header did not come within {self.limits.header_seconds:g} s")


async def _with_peer(app: Any, peer: Peer, scope: Any, receive: Any, send: Any) -> None:
    await app({**scope, "client": None, "extensions": {**scope.get("extensions", {}), PEER: peer}}, receive, send)


class WebServer(Server):
    """Serves an application on sockets that are bound, until `stop` is called."""

    def __init__(
        self,
        app: Any,
        *,
        limits: ServerLimits | None = None,
        on_started: Callable[[], None] = lambda: None,
        on_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        limits = limits or ServerLimits()
        self._limits = msgspec.structs.replace(limits, connections=min(limits.connections, _raised_descriptors()))
        self._on_started = on_started
        self._on_stopping = on_stopping
        self.on_look: Callable[[], None] = lambda: None
        """Called every second while it serves."""
        super().__init__(
            Config(
                app,
                http=type("LimitedConnection", (HttpConnection,), {"limits": self._limits}),
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_keep_alive=int(limits.idle_seconds),
                timeout_graceful_shutdown=max(1, int(limits.stop_seconds)),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and to look after connections."""
        await super().startup(sockets)
        self._looker = asyncio.get_running_loop().create_task(self._look())
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams at once, and let requests that are under way come to their end."""
        self._on_stopping()
        self._looker.cancel()
        await super().shutdown(sockets)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            self.on_look()
            now = loop.time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, HttpConnection)
                connection.look(now)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: whoever runs the process listens for them."""
        yield

    def stop(self) -> None:
        """End the service; for the thread that runs it."""
        self.should_exit = True

    def run_on(self, sockets: Sequence[socket.socket], *, stop_on: int) -> None:
        """Serve until the descriptor can be read."""

        async def serve() -> None:
            loop = asyncio.get_running_loop()
            loop.add_reader(stop_on, self.stop)
            try:
                await self.serve(sockets=list(sockets))
            finally:
                loop.remove_reader(stop_on)

        asyncio.run(serve())


def _raised_descriptors() -> int:
    """How many connections there may be by the number of descriptors, which is raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return max(16, (MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft) - SPARE_DESCRIPTORS)
