"""A web server of our own that serves ranges honestly until it is told to lie, and a proxy that cuts connections."""

from __future__ import annotations

import hashlib
import random
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from holdfast_images.source.location import HttpObject

PATH = "/images/debian.tar"
_PART = 16 << 10


class Exchange(BaseHTTPRequestHandler):
    """One connection. A lie gets this, and answers in place of `honest`."""

    protocol_version = "HTTP/1.1"
    server: LyingServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers.items())))
        lie = self.server.lie
        if lie is None:
            self.honest()
        else:
            lie(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    @property
    def content(self) -> bytes:
        return self.server.content

    @property
    def etag(self) -> str:
        return self.server.etag

    @property
    def asked_range(self) -> tuple[int, int]:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not found:
            return 0, len(self.content)
        return int(found[1]), min(int(found[2]) + 1, len(self.content))

    def honest(self, *, cut: int | None = None, stay: bool = False, **changed: str | None) -> None:
        """The right answer, with some headers changed or left out (None), cut off after some bytes."""
        start, stop = self.asked_range
        if self.headers.get("If-Match", self.etag) != self.etag:
            self.say(412)
        elif start >= len(self.content) and "Range" in self.headers:
            self.say(416)
        else:
            ranged = "Range" in self.headers
            headers: dict[str, str | None] = {"ETag": self.etag, "Content-Length": str(stop - start)}
            if ranged:
                headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(self.content)}"
            headers |= {name.replace("_", "-"): value for name, value in changed.items()}
            self.say(206 if ranged else 200, self.content[start:stop], headers, cut=cut, stay=stay)

    def say(
        self,
        status: int,
        body: bytes = b"",
        headers: dict[str, str | None] | None = None,
        *,
        cut: int | None = None,
        stay: bool = False,
    ) -> None:
        """Any answer at all; whoever cuts hangs up too, unless he stays."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        body = body if cut is None else body[:cut]
        try:
            # In small parts, so that what a client that goes away has not got is not counted.
            for start in range(0, len(body), _PART):
                self.wfile.write(body[start : start + _PART])
                self.server.count(len(body[start : start + _PART]))
            self.wfile.flush()
        except (ConnectionError, ssl.SSLError):
            cut = 0
        if cut is not None and not stay:
            self.hang_up()

    def hang_up(self) -> None:
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


class LyingServer(ThreadingHTTPServer):
    """Serves `content` at every path."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.content = b""
        self.lie: Callable[[Exchange], None] | None = None
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        """Bytes of bodies, all connections together."""
        self.greetings = 0
        """How many connections there were, whatever was said on them."""
        self._counting = threading.Lock()
        self.ending = threading.Event()
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            # The handshake belongs to the connection's own thread, not to the one that accepts.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
            self._scheme = "https"

    @property
    def content(self) -> bytes:
        return self._content

    @content.setter
    def content(self, content: bytes) -> None:
        self._content, self.etag = content, f'"{hashlib.md5(content).hexdigest()}"'

    def count(self, sent: int) -> None:
        with self._counting:
            self.sent += sent

    def process_request(self, request: Any, client_address: Any) -> None:
        self.greetings += 1
        super().process_request(request, client_address)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.server_address[1]}"

    @property
    def location(self) -> HttpObject:
        return HttpObject(url=self.url + PATH)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what these tests are about."""

    @contextmanager
    def running(self) -> Iterator[LyingServer]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.ending.set()
            self.shutdown()
            self.server_close()
            thread.join()


class CuttingProxy:
    """Passes connections on to another port, and cuts the first ones after some bytes of the answer."""

    def __init__(self, port: int, cuts: int, seed: int) -> None:
        self._port = port
        self._random = random.Random(seed)
        self._threads: list[threading.Thread] = []
        self.cuts_left = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]

    @contextmanager
    def running(self) -> Iterator[CuttingProxy]:
        self._start(self._accept)
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            for thread in self._threads:
                thread.join()
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            limit = None
            if self.cuts_left > 0:
                self.cuts_left -= 1
                limit = self._random.randrange(0, 400_000)
            self._start(self._pass_both_ways, client, server, limit)

    def _start(self, call: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=call, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _pass_both_ways(self, client: socket.socket, server: socket.socket, limit: int | None) -> None:
        with client, server:
            asking = threading.Thread(target=self._pass_on, args=(client, server, None), daemon=True)
            asking.start()
            self._pass_on(server, client, limit)
            asking.join()

    def _pass_on(self, giver: socket.socket, taker: socket.socket, limit: int | None) -> None:
        passed = 0
        try:
            while data := giver.recv(65536):
                if limit is not None and passed + len(data) > limit:
                    taker.sendall(data[: limit - passed])
                    break
                taker.sendall(data)
                passed += len(data)
        except OSError:
            pass
        for end in (giver, taker):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def certificate_in(
    directory: Path, *, names: str = "IP:127.0.0.1,DNS:localhost", days: int = 2, bits: int = 2048
) -> Path:
    """A certificate for these names that nobody trusts by himself, and its key, in one file; a past one if negative."""
    path = directory / "certificate.pem"
    request, public = directory / "request.pem", directory / "public.pem"
    run = partial(subprocess.run, check=True, capture_output=True)
    key = ["-newkey", f"rsa:{bits}", "-nodes", "-keyout", str(path), "-subj", "/CN=test"]
    run(["openssl", "req", *key, "-new", "-addext", f"subjectAltName={names}", "-out", str(request)])
    began = datetime.now(tz=UTC) - timedelta(days=max(0, 2 - days))
    database = directory / "issued"
    database.write_text("")
    (directory / "serial").write_text("01")
    (directory / "ca.cnf").write_text(
        f"[ca]\ndefault_ca=d\n[d]\ndatabase={database}\nserial={directory}/serial\nnew_certs_dir={directory}\n"
        "default_md=sha256\npolicy=p\ncopy_extensions=copy\nunique_subject=no\n[p]\ncommonName=supplied\n"
    )
    times = ["-startdate", f"{began:%Y%m%d%H%M%SZ}", "-enddate", f"{began + timedelta(days=abs(days)):%Y%m%d%H%M%SZ}"]
    signing = ["-selfsign", "-keyfile", str(path), "-in", str(request), "-out", str(public), "-batch", "-notext"]
    run(["openssl", "ca", "-config", str(directory / "ca.cnf"), *signing, *times])
    with path.open("ab") as file:
        file.write(public.read_bytes())
    return path
