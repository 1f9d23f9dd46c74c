"""STS, the agent of a container and the metadata of an instance, as far as a client of S3 asks them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

ROLE = "arn:aws:iam::123456789012:role/images"


class Exchange(BaseHTTPRequestHandler):
    server: TokenServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.asked.append((self.path, dict(self.headers.items())))
        if self.server.raw:
            self.wfile.write(self.server.raw)
        elif self.server.elsewhere:
            self._say("", status=302)
        elif parts.path == "/" and "Action" in parts.query:
            self._sts(parse_qs(parts.query))
        elif parts.path == "/latest/meta-data/iam/security-credentials/":
            self._say("host-role")
        else:
            self._say(json.dumps(self._keys("AccessKeyId", "SecretAccessKey", "Token", "Expiration")))

    def do_PUT(self) -> None:
        self._say("instance-token")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.asked.append((body, dict(self.headers.items())))
        self._sts(parse_qs(body))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def _sts(self, fields: dict[str, list[str]]) -> None:
        if self.server.raw:
            self.wfile.write(self.server.raw)
            return
        if self.server.elsewhere:
            self._say("", status=302)
            return
        if self.server.refusal:
            self._say(f"<Error><Code>{self.server.refusal}</Code><Message>No.</Message></Error>", status=403)
            return
        keys = self._keys("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
        inner = "".join(f"<{name}>{value}</{name}>" for name, value in keys.items())
        self._say(f"<{fields['Action'][0]}Response><Credentials>{inner}</Credentials></{fields['Action'][0]}Response>")

    def _keys(self, *names: str) -> dict[str, str]:
        number = len(self.server.asked)
        expires = datetime.now(tz=UTC) + timedelta(seconds=self.server.lasts)
        return dict(zip(names, (f"AK{number}", "secret", "token", f"{expires:%Y-%m-%dT%H:%M:%SZ}"), strict=True))

    def _say(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        if self.server.elsewhere:
            self.send_header("Location", self.server.elsewhere)
        self.end_headers()
        self.wfile.write(text.encode())


class TokenServer(ThreadingHTTPServer):
    """Gives keys called AK1, AK2, …: the number is that of the question."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Exchange)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refusal = ""
        self.elsewhere = ""
        """Where it redirects to, instead of answering."""
        self.raw = b""
        """What it says instead of HTTP."""
        self.lasts = 3600.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def running(self) -> Iterator[TokenServer]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            self.server_close()
            thread.join()
