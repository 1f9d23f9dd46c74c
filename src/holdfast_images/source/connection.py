"""One HTTP connection that asks for ranges of one object, one after the other, straight into the caller's buffers."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from urllib.parse import SplitResult, urljoin, urlsplit

from holdfast_images.errors import AccessDenied, ImageError, SourceUnavailable, SourceUntrusted
from holdfast_images.source.answers import REDIRECTS, Answer, Question, answer_of, error_of
from holdfast_images.source.locations import may_be_asked
from holdfast_images.source.settings import SourceSettings

_REDIRECTS = 5
_ERROR_BYTES = 4096
_ADDRESS_SECONDS = 900
"""A signed address, or one that a redirect gave, is used for so long, and then asked for again."""


class HttpReader:
    """Belongs to one thread; only `watch` and `interrupt` may be called by another."""

    def __init__(self, address: Callable[[], str], where: str, settings: SourceSettings, tls: ssl.SSLContext) -> None:
        self.at: int | None = None
        """Which byte of the object `read_into` would bring next; None: a question has to be asked first."""
        self._address = address
        self._where = where
        self._settings = settings
        self._tls = tls
        self._url: str | None = None
        self._url_since = 0.0
        self._served = False
        self._connection: http.client.HTTPConnection | None = None
        self._whole_url = False
        self._response: http.client.HTTPResponse | None = None
        self._left: int | None = None
        # What another thread needs to see whether anything comes, and to stop waiting for it.
        self._lock = threading.Lock()
        self._transport: socket.socket | None = None
        self._interrupted: str | None = None
        self._received = 0
        self._window: tuple[float, int] | None = None

    def ask(self, question: Question) -> Answer:
        """Send the question and judge the answer; its body is then read with `read_into`."""
        if self.at is not None or time.monotonic() - self._url_since > _ADDRESS_SECONDS:
            self.close()
        self._window = (time.monotonic(), self._received)
        try:
            answer = self._ask(question)
        except AccessDenied as error:
            served = self._served
            self.close()
            if served:
                # What was allowed a moment ago: the address has expired, and the next one may be good.
                raise SourceUnavailable(str(error), hint=error.hint) from error
            raise
        except ImageError:
            self.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        self.at, self._left, self._served = question.start, answer.length, True
        return answer

    def read_into(self, view: memoryview) -> int:
        """What has come, at most as much as fits; 0 at the end of the body. SourceUnavailable if it was cut."""
        if self._response is None or self.at is None:
            return 0
        if self._left is not None:
            view = view[: self._left]
        try:
            count = self._read_some(self._response, view) if view else 0
            if count == 0 and self._left:
                raise ConnectionError(f"the connection ended {self._left} bytes too early")
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(error) from error
        self._received += count
        self.at += count
        if self._left is not None:
            self._left -= count
        if count == 0 or self._left == 0:
            self._finish()
        return count

    def watch(self, now: float) -> None:
        """Interrupt the request under way if it brings next to nothing."""
        window = self._window
        if window is None or now - window[0] < self._settings.stall_seconds:
            return
        count = self._received - window[1]
        if count < self._settings.stall_bytes:
            self.interrupt(f"{count} bytes in {now - window[0]:.0f} s")
        self._window = (now, self._received)

    def interrupt(self, reason: str) -> None:
        """Make the thread that waits in `ask` or `read_into` fail at once."""
        with self._lock:
            self._interrupted = reason
            if self._transport is None:
                return
            try:
                # The plain socket's: that of TLS would first wait for the other side.
                socket.socket.shutdown(self._transport, socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def close(self) -> None:
        """Let go of the connection; the next question opens another one, at an address asked for afresh."""
        with self._lock:
            self._transport = self._interrupted = None
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self.at = self._response = self._connection = self._url = self._window = None
        self._served = False

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, question: Question) -> Answer:
        for _ in range(_REDIRECTS + 1):
            response = self._response = self._send(question)
            status, headers = response.status, response.headers
            if status in {200, 206}:
                answer = answer_of(question, status, headers, self._where)
                # http.client takes headers that were cut off for whole ones; then no body follows.
                if not answer.ends_clearly and not response.fp.peek(1):
                    raise ConnectionError("the connection ended before the content")
                return answer
            target = headers.get("Location")
            if status not in REDIRECTS or target is None:
                raise error_of(question, status, headers, response.read(_ERROR_BYTES), self._where)
            self._follow(target)
        raise SourceUntrusted(f"{self._where}: the server redirects more than {_REDIRECTS} times")

    def _follow(self, target: str) -> None:
        assert self._url is not None
        try:
            url = urljoin(self._url, target)
            parts = urlsplit(url)
            trusted = bool(parts.hostname) and may_be_asked(url, allow_http=self._settings.allow_http)
        except ValueError:
            raise SourceUntrusted(f"{self._where}: the server redirects to what is no URL") from None
        if not trusted or (self._url.startswith("https:") and parts.scheme != "https"):
            raise SourceUntrusted(
                f"{self._where}: the server redirects to {parts.scheme}://{parts.hostname or ''}",
                hint="from https only https is followed, and plain http only where it is allowed",
            )
        self.close()
        self._window = (time.monotonic(), self._received)
        self._url, self._url_since = parts._replace(fragment="").geturl(), time.monotonic()

    def _send(self, question: Question) -> http.client.HTTPResponse:
        if self._url is None:
            self._url, self._url_since = self._address(), time.monotonic()
        parts = urlsplit(self._url)
        connection = self._connected(parts)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "holdfast"}
        if question.stop is not None:
            headers["Range"] = f"bytes={question.start}-{question.stop - 1}"
        if question.etag is not None:
            headers["If-Match"] = question.etag
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", self._url if self._whole_url else path, headers=headers)
        return connection.getresponse()

    def _connected(self, parts: SplitResult) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._connection_to(parts)
        connection = self._connection
        if connection.sock is None:
            connection.connect()
            # From here on the watch judges how long nothing may come.
            transport: socket.socket | None = connection.sock
            assert transport is not None
            transport.settimeout(None)
            with self._lock:
                self._transport = transport
                if self._interrupted is not None:
                    raise TimeoutError
        return connection

    def _connection_to(self, parts: SplitResult) -> http.client.HTTPConnection:
        host, port = parts.hostname or "", parts.port
        patience = self._settings.connect_seconds
        proxy = None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(parts.scheme)
        self._whole_url = proxy is not None and parts.scheme == "http"
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else parts
        if parts.scheme == "http":
            return http.client.HTTPConnection(via.hostname or "", via.port, timeout=patience)
        secure = http.client.HTTPSConnection(via.hostname or "", via.port, timeout=patience, context=self._tls)
        if proxy:
            secure.set_tunnel(host, port)
        return secure

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_some(self, response: http.client.HTTPResponse, view: memoryview) -> int:
        if response.chunked:
            data = response.read1(len(view))
            view[: len(data)] = data
            return len(data)
        # HTTPResponse.readinto waits until the view is full, and the watch would see nothing of what has come.
        return response.fp.readinto1(view)

    def _finish(self) -> None:
        """The body is at its end: the connection is kept if nothing is left in it."""
        response = self._response
        assert response is not None
        if response.chunked or response.will_close:
            url, served = self._url, self._served
            self.close()
            self._url, self._served = url, served
        else:
            response.close()
            self.at = self._response = self._window = None

    def _failed(self, error: Exception) -> ImageError:
        reason = self._interrupted
        self.close()
        if isinstance(error, ssl.SSLCertVerificationError):
            return SourceUntrusted(
                f"{self._where}: the server's certificate does not hold: {error.verify_message}",
                hint="trust its authority on this host, or name its file in SSL_CERT_FILE",
            )
        if reason is not None:
            return SourceUnavailable(f"{self._where}: the server stalls: {reason}")
        return SourceUnavailable(f"{self._where}: {str(error) or type(error).__name__}")
