"""Whom a TLS connection trusts, and what its failures mean."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from holdfast_images.errors import AccessDenied, ImageError, InvalidName, Permanent, SourceUnavailable, SourceUntrusted
from holdfast_images.source.location import HttpObject, S3Object, SourceSettings, is_this_host, may_be_asked
from holdfast_images.source.responses import (
    ERROR_DOCUMENT_BYTES,
    REDIRECTS,
    RangeRequest,
    RangeResponse,
    answer_of,
    error_of,
    is_error_document,
)

AWS_BUNDLE = "AWS_CA_BUNDLE"
"""Only for S3, where AWS's own tools read it, and then nothing else is trusted."""
BUNDLE = "SSL_CERT_FILE"

# X509_V_ERR_… of OpenSSL. No file of authorities helps against these.
_WRONG_HOST = {62, 64}
_WRONG_TIME = {9, 10}
# The connection broke: the other side may be there again at the next try.
_PASSING = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def tls_context(environment: Mapping[str, str], *, aws: bool) -> ssl.SSLContext:
    """Trust what this host trusts, or what a variable names; InvalidName if that cannot be read."""
    if aws and (bundle := environment.get(AWS_BUNDLE)):
        with _readable(AWS_BUNDLE, bundle):
            path = os.path.expanduser(bundle)
            if os.path.isdir(path):
                return ssl.create_default_context(capath=path)
            return ssl.create_default_context(cafile=path)
    context = ssl.create_default_context()
    if bundle := environment.get(BUNDLE):
        # OpenSSL has read it, too, or passed over a file that is not there without a word.
        with _readable(BUNDLE, bundle):
            context.load_verify_locations(cafile=bundle)
    return context


@contextmanager
def _readable(variable: str, bundle: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = "has no certificate in it" if isinstance(error, ssl.SSLError) else f"cannot be read: {error.strerror}"
        hint = f"correct {variable}, or unset it to trust what this host does"
        raise InvalidName(f"{variable} names {bundle}, which {reason}", hint=hint) from None


def tls_failure(
    error: ssl.SSLError, where: str, environment: Mapping[str, str], *, aws: bool, connecting: bool
) -> ImageError:
    """What an error of TLS means; `connecting`: nothing had been said yet. Only what may heal may be tried again."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = f"{where}: the server's certificate does not hold: {error.verify_message}"
        return SourceUntrusted(message, hint=_certificate_hint(error.verify_code, environment, aws=aws))
    reason = (error.reason or "").replace("_", " ").lower()
    if not connecting or isinstance(error, _PASSING) or not reason:
        return SourceUnavailable(f"{where}: TLS: {reason or error}")
    if reason in ("wrong version number", "record layer failure", "http request", "packet length too long"):
        return SourceUntrusted(
            f"{where}: the server does not speak TLS on this port ({reason})",
            hint="look at the port; a server without TLS is asked by http://, which must be allowed for other hosts",
        )
    return SourceUntrusted(
        f"{where}: the server and this host agree on no kind of TLS ({reason})",
        hint="TLS 1.2 or newer is wanted: see to the server, or to the name that it is asked by",
    )


def _certificate_hint(code: int, environment: Mapping[str, str], *, aws: bool) -> str:
    if code in _WRONG_HOST:
        return "ask the server by a name that its certificate has"
    if code in _WRONG_TIME:
        return "look at this host's clock; if that is right, the server needs a new certificate"
    variable = AWS_BUNDLE if aws and environment.get(AWS_BUNDLE) else BUNDLE
    if environment.get(variable):
        return (
            f"{variable} is set, and has not the authority that vouches for it: add that authority's certificate there"
        )
    return f"trust its authority on this host, or name its file in {BUNDLE}" + (f" or {AWS_BUNDLE}" if aws else "")


# --- The URL at which an object can be asked for now, signed if need be ---------------------------------

_DEFAULT_REGION = "us-east-1"
SIGNED_SECONDS = 3600
"""How long a signed URL holds. Each connection, and each new try, signs anew."""


def address_of(location: S3Object | HttpObject, settings: SourceSettings) -> Callable[[], str]:
    """A function that gives the URL to ask, signed afresh at each call."""
    if isinstance(location, HttpObject):
        url = f"{location.url}?{location.signature.text}" if location.signature is not None else location.url
        return lambda: url
    if location.anonymous:
        plain = f"{_bucket_url(location, location.region)}/{quote(location.key, safe='/-_.~')}"
        return lambda: plain
    return _signer(location, settings)


def _bucket_url(location: S3Object, region: str | None) -> str:
    # A dot in the bucket's name would not be covered by the certificate of *.s3.amazonaws.com.
    in_path = location.path_style
    if in_path is None:
        in_path = location.endpoint is not None or "." in location.bucket
    domain = "amazonaws.com.cn" if (region or "").startswith("cn-") else "amazonaws.com"
    endpoint = location.endpoint or f"https://s3{f'.{region}' if region else ''}.{domain}"
    if in_path:
        return f"{endpoint}/{location.bucket}"
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{location.bucket}.{parts.netloc}"


def _signer(location: S3Object, settings: SourceSettings) -> Callable[[], str]:
    # Here and not above: a run that fetches nothing, or from a public place, need not load it.
    from holdfast_images.source.credentials import Keychain, signed  # noqa: PLC0415

    known = location.region or _region_of_profile()
    url = f"{_bucket_url(location, known)}/{quote(location.key, safe='/-_.~')}"
    region = known or _DEFAULT_REGION
    keychain = Keychain(settings, os.environ, region)

    def sign() -> str:
        now = time.time()
        return signed(url, keychain.keys(now, str(location)), region=region, now=now, seconds=SIGNED_SECONDS)

    return sign


def _region_of_profile() -> str | None:
    from holdfast_images.source.credentials import chosen_profile  # noqa: PLC0415 - as above

    profile = chosen_profile(os.environ)
    return profile.get("region") if profile is not None else None


# --- One HTTP connection that asks for ranges of one object, one after the other, straight into the caller's
# buffers.

_REDIRECTS = 5
_ERROR_BYTES = 4096
_NO_SUCH_HOST = {socket.EAI_NONAME, socket.EAI_NODATA}
_ADDRESS_SECONDS = 900
"""A signed address, or one that a redirect gave, is used for so long, and then asked for again."""


class Access:
    """What the connections of one fetch know together."""

    def __init__(self, address: Callable[[], str], tls: ssl.SSLContext, *, aws: bool) -> None:
        self.address = address
        """The URL to ask, signed afresh at each call."""
        self.tls = tls
        self.aws = aws
        self.granted = False
        """The server has given something to one of them: if it denies the next, an address or a token has expired."""


class HttpReader:
    """Belongs to one thread; only `watch` and `interrupt` may be called by another."""

    def __init__(self, access: Access, where: str, settings: SourceSettings) -> None:
        self.at: int | None = None
        """Which byte of the object `read_into` would bring next; None: a question has to be asked first."""
        self._access = access
        self._where = where
        self._settings = settings
        self._url: str | None = None
        self._url_since = 0.0
        self._via = ""
        self._is_connecting = False
        self._connection: http.client.HTTPConnection | None = None
        self._whole_url = False
        self._response: http.client.HTTPResponse | None = None
        self._left: int | None = None
        self._looked_at = b""
        """The beginning of the body, if it had to be looked at."""
        # What another thread needs to see whether anything comes, and to stop waiting for it.
        self._lock = threading.Lock()
        self._transport: socket.socket | None = None
        self._interrupted: str | None = None
        self._received = 0
        self._window: tuple[float, int] | None = None

    def ask(self, question: RangeRequest) -> RangeResponse:
        """Send the question and judge the answer; its body is then read with `read_into`."""
        if self.at is not None or time.monotonic() - self._url_since > _ADDRESS_SECONDS:
            self.close()
        self._window = (time.monotonic(), self._received)
        try:
            answer = self._ask(question)
        except AccessDenied as error:
            self.close()
            if self._access.granted:
                raise SourceUnavailable(str(error), hint=error.hint) from error
            raise
        except ImageError:
            self.close()
            raise
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise self._failed(error) from error
        self.at, self._left = question.start, answer.length
        self._access.granted = True
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
        self._looked_at = b""

    # --- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, question: RangeRequest) -> RangeResponse:
        for _ in range(_REDIRECTS + 1):
            response = self._response = self._send(question)
            status, headers = response.status, response.headers
            if status in {200, 206}:
                answer = answer_of(question, status, headers, self._where)
                # http.client takes headers that were cut off for whole ones; then no body follows.
                if not answer.ends_clearly and not response.fp.peek(1):
                    raise ConnectionError("the connection ended before the content")
                self._refuse_error_document(question, answer, response)
                return answer
            target = headers.get("Location")
            if status not in REDIRECTS or target is None:
                body = response.read(_ERROR_BYTES)
                raise error_of(question, status, headers, body, self._where, now=time.time())
            self._follow(target)
        raise SourceUntrusted(f"{self._where}: the server redirects more than {_REDIRECTS} times")

    def _refuse_error_document(
        self, question: RangeRequest, answer: RangeResponse, response: http.client.HTTPResponse
    ) -> None:
        """Some stores say 200 and then send an error, which would be taken for a very short image."""
        if question.start > 0 or (answer.length is not None and answer.length > ERROR_DOCUMENT_BYTES):
            return
        self._looked_at = response.read1(_ERROR_BYTES)
        while self._looked_at[:1] == b"<" and len(self._looked_at) < _ERROR_BYTES:
            more = response.read1(_ERROR_BYTES - len(self._looked_at))
            self._looked_at += more
            if not more:
                break
        if is_error_document(self._looked_at):
            raise error_of(question, response.status, response.headers, self._looked_at, self._where, now=time.time())

    def _follow(self, target: str) -> None:
        assert self._url is not None
        try:
            url = urljoin(self._url, target)
            parts = urlsplit(url)
            # A port that is none is noticed only when it is asked for.
            trusted = (
                bool(parts.hostname) and parts.port != 0 and may_be_asked(url, allow_http=self._settings.allow_http)
            )
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

    def _send(self, question: RangeRequest) -> http.client.HTTPResponse:
        if self._url is None:
            self._url, self._url_since = self._access.address(), time.monotonic()
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
            self._is_connecting = True
            connection.connect()
            self._is_connecting = False
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
        # What is said to this host is for this host's ears: a proxy is another one.
        is_direct = is_this_host(host) or urllib.request.proxy_bypass(host)
        proxy = None if is_direct else urllib.request.getproxies().get(parts.scheme)
        self._whole_url = proxy is not None and parts.scheme == "http"
        via = urlsplit(proxy if "://" in proxy else f"http://{proxy}") if proxy else parts
        self._via = via.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(self._via, via.port, timeout=patience)
        secure = http.client.HTTPSConnection(self._via, via.port, timeout=patience, context=self._access.tls)
        if proxy:
            secure.set_tunnel(host, port)
        return secure

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_some(self, response: http.client.HTTPResponse, view: memoryview) -> int:
        if self._looked_at:
            data, self._looked_at = self._looked_at[: len(view)], self._looked_at[len(view) :]
            view[: len(data)] = data
            return len(data)
        if response.chunked:
            data = response.read1(len(view))
            view[: len(data)] = data
            return len(data)
        # HTTPResponse.readinto waits until the view is full, and the watch would see nothing of what has come.
        return response.fp.readinto1(view) if response.fp is not None else 0

    def _finish(self) -> None:
        """The body is at its end: the connection is kept if nothing is left in it."""
        response = self._response
        assert response is not None
        if response.chunked or response.will_close:
            url = self._url
            self.close()
            self._url = url
        else:
            response.close()
            self.at = self._response = self._window = None

    def _failed(self, error: Exception) -> ImageError:
        reason, is_connecting = self._interrupted, self._is_connecting
        self._is_connecting = False
        self.close()
        if reason is not None:
            return SourceUnavailable(f"{self._where}: the server stalls: {reason}")
        if isinstance(error, ssl.SSLError):
            return tls_failure(error, self._where, os.environ, aws=self._access.aws, connecting=is_connecting)
        if isinstance(error, UnicodeError) or getattr(error, "errno", None) in _NO_SUCH_HOST:
            return Permanent(
                f"{self._where}: there is no host {self._via[:300]}",
                hint="look at its spelling, and at this host's name service",
            )
        return SourceUnavailable(f"{self._where}: {str(error) or type(error).__name__}")
