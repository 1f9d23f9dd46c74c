"""`holdfast serve` in a process of its own, and clients that behave worse than a library lets them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from holdfast import Engine
from holdfast.web import Scope, app
from holdfast.web.credentials import BySession, ByToken, CombinedAuthenticator
from holdfast.web.events import Feed
from holdfast.web.limits import Limited
from holdfast.web.login import Login
from holdfast.web.server import ServerLimits, WebServer
from holdfast.web.sockets import bound, listen_address
from holdfast.web.tokens import TABLES, TokenStore
from tests.support.fleet import ROOT
from tests.support.waiting import PATIENCE

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")},
    "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
}


def holdfast(place: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [sys.executable, "-m", "holdfast.cli", *_at(place), *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=PATIENCE * 3)


def make_token(place: str, name: str = "tester", scope: str = "admin", *more: str) -> str:
    """The text of a new one."""
    done = holdfast(place, "token", "create", name, "--scope", scope, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _at(place: str) -> list[str]:
    return ["--store", place] if "://" in place else ["--state", place]


class WebProcess:
    """The server, until the block ends or it is killed."""

    def __init__(self, place: str, *arguments: str, command: Sequence[str] | None = None, **environment: str) -> None:
        usual = [sys.executable, "-m", "holdfast.cli", *_at(place), "--json", "serve", *arguments]
        self.process = subprocess.Popen(
            command or usual,
            env={**ENVIRONMENT, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log: list[str] = []
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self.log.extend, args=(self.process.stderr,), daemon=True)
        self._reader.start()

    def ready(self) -> Self:
        """When it serves."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(PATIENCE)
            self.close()
            raise AssertionError("".join(self.log))
        self.listen: list[str] = json.loads(line)["listen"]
        self.worker_id: str | None = json.loads(line)["worker_id"]
        return self

    @property
    def url(self) -> str:
        """By TCP."""
        return next(one for one in self.listen if one.startswith("http"))

    @property
    def address(self) -> tuple[str, int]:
        """The same for a socket."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def path(self) -> str:
        """The unix socket."""
        return next(one for one in self.listen if one.startswith("unix:")).removeprefix("unix:")

    def by_socket(self) -> httpx.Client:
        """A client on the unix socket, as this process."""
        return httpx.Client(transport=httpx.HTTPTransport(uds=self.path), base_url="http://holdfast")

    def by_tcp(self, token: str | None = None) -> httpx.Client:
        """A client by TCP, with a token or without."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, after a signal."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Its exit code."""
        code = self.process.wait(PATIENCE * 2)
        self._reader.join(PATIENCE)
        return code

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


def all_from(connection: socket.socket) -> bytes:
    """What is sent until the other end closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


class EventClient:
    """Reads server-sent events, over a connection of its own."""

    def __init__(self, url: str, token: str, *, last: str | None = None, query: str = "") -> None:
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        self.last = last
        self._client = httpx.Client(timeout=httpx.Timeout(PATIENCE * 3))
        self._opened = self._client.stream("GET", f"{url}/v1/events{query}", headers=headers)
        try:
            self.response = self._opened.__enter__()
        except BaseException:
            self._client.close()
            raise

    def events(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Name and data of each, until the server ends the stream; `last` follows."""
        name, data = "", ""
        for line in self.response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                self.last = value
            elif field == "event":
                name = value
            elif field == "data":
                data = value
            elif not line and data:
                yield name, json.loads(data)
                name = data = ""

    def close(self) -> None:
        self._opened.__exit__(None, None, None)
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def shown(path: Path) -> str:
    """Mode and kind of a file, as ls has it."""
    return oct(path.stat().st_mode & 0o7777)


class ServedHere:
    """The same server in a thread of this process, where a test can set its limits."""

    def __init__(
        self,
        engine: Engine,
        *,
        limits: ServerLimits | None = None,
        hosts: Sequence[str] = (),
        trust_scheme: bool = False,
    ) -> None:
        limits = limits or ServerLimits()
        self.stop_seconds = limits.stop_seconds
        self.tokens = TokenStore(engine.tables(TABLES))
        credentials = CombinedAuthenticator(token=ByToken(self.tokens), session=BySession(self.tokens))
        self.application = app(engine, authenticate=credentials, extensions=[Login(self.tokens).extension])
        self.feed = self.application.services.get(Feed)
        limited = Limited(self.application, hosts=hosts, body_seconds=limits.body_seconds, trust_scheme=trust_scheme)
        self._started = threading.Event()
        self._server = WebServer(
            limited, limits=limits, on_started=self._started.set, on_stopping=self.feed.stop_streams
        )
        self._stop_on, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with bound(listen_address("127.0.0.1:0")) as listening:
            self.address: tuple[str, int] = listening.getsockname()
            self._server.run_on([listening], stop_on=self._stop_on)

    @property
    def url(self) -> str:
        """By TCP."""
        return f"http://127.0.0.1:{self.address[1]}"

    @property
    def connections(self) -> set[object]:
        """Those that are open."""
        return set(self._server.server_state.connections)

    def token(self, name: str = "tester", scope: Scope = Scope.ADMIN, lifetime_ms: int | None = None) -> str:
        """A new one."""
        return self.tokens.create(name, scope, lifetime_ms=lifetime_ms, actor="operator:test")[1]

    def client(self, token: str | None = None) -> httpx.Client:
        """A client, with a token or without."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE)

    def connected(self) -> socket.socket:
        """A bare connection."""
        found = socket.create_connection(self.address)
        found.settimeout(PATIENCE)
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.write(self._stop, b".")
        self._thread.join(PATIENCE)
        os.close(self._stop)
        os.close(self._stop_on)
        assert not self._thread.is_alive()
