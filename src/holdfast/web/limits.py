"""What no request may do, whoever sends it: write from another site, come under a strange name, dawdle.

Plain ASGI, so that it goes around any application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.credentials import cookie_of, header_of, is_local, peer_of
from holdfast.web.dispatch import problem_response
from holdfast.web.problems import problem

BODY_SECONDS = 30.0
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS: Sequence[tuple[bytes, bytes]] = (
    (b"content-security-policy", CONTENT_POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # With no-referrer a browser would send `Origin: null` with the page's own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


_CLOSING = {**{name.decode(): value.decode() for name, value in SECURITY_HEADERS}, "connection": "close"}


class Guarded:
    """An application whose every response has the security headers, and which other sites' pages cannot write to."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message.get("headers", ())}
                headers = [*message.get("headers", ()), *(each for each in SECURITY_HEADERS if each[0] not in there)]
                message = {**message, "headers": headers}
            await send(message)

        why = None if scope["method"] in SAFE_METHODS else cross_site(scope)
        if why is None:
            await self._app(scope, receive, send_guarded)
            return
        refusal = problem(403, "cross-site", why, hint="programs send a token: Authorization: Bearer ...")
        await problem_response(refusal, {"Connection": "close"})(scope, receive, send_guarded)


def cross_site(scope: Scope) -> str | None:
    """Why a write is not one of our own page's or of a program; None if it may go on.

    A browser says where a request comes from; a program need not, unless it comes with a browser's cookie.
    """
    fetched_from = header_of(scope, b"sec-fetch-site")
    if fetched_from is not None:
        return (
            None if fetched_from in ("same-origin", "none") else f"this write comes from a page that is {fetched_from}"
        )
    origin = header_of(scope, b"origin")
    if origin is not None:
        return None if _same_host(origin, header_of(scope, b"host")) else "this write comes from a page of another site"
    if any(name in (b"sec-fetch-site", b"origin") for name, _ in scope["headers"]):
        return "this write says twice where it comes from"
    if cookie_of(scope) is not None and header_of(scope, b"authorization") is None:
        return "this write comes with a cookie, and does not say from which page"
    return None


def _same_host(origin: str, host: str | None) -> bool:
    try:
        one = urlsplit(origin)
        other = urlsplit(f"{one.scheme}://{host}")
        standard = _PORTS.get(one.scheme)
        same = (one.hostname, one.port or standard) == (other.hostname, other.port or standard)
    except ValueError:
        return False
    return same and one.hostname is not None and standard is not None


class Limited:
    """An application behind our own server: of the right name, with bodies that come in time."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str] = (),
        body_seconds: float = BODY_SECONDS,
        trust_scheme: bool = False,
    ) -> None:
        self._app = app
        self._hosts = LOOPBACK_NAMES | {host.lower() for host in hosts}
        self._body_seconds = body_seconds
        self._trust_scheme = trust_scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not self._is_ours(scope):
            # A page of another site, whose name was made to mean this machine after it had been loaded.
            hint = "for a name that a proxy sends: --allow-host"
            refusal = problem(421, "unknown-host", "this server is not known by the name in the Host header", hint=hint)
            await problem_response(refusal, _CLOSING)(scope, receive, send)
            return
        if self._trust_scheme and is_local(scope) and header_of(scope, b"x-forwarded-proto") == "https":
            scope = {**scope, "scheme": "https"}
        await self._in_time(scope, receive, send)

    def _is_ours(self, scope: Scope) -> bool:
        """By loopback only under a name of this machine; elsewhere nobody is known without what they show."""
        server = scope.get("server")
        if peer_of(scope) is not None or not server or not is_local(scope):
            return True
        name = host_name(header_of(scope, b"host"))
        return name is not None and name in self._hosts

    async def _in_time(self, scope: Scope, receive: Receive, send: Send) -> None:
        deadline = asyncio.get_running_loop().time() + self._body_seconds
        complete = late = begun = False

        async def receive_in_time() -> Message:
            nonlocal complete, late
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                complete = late = True
                return {"type": "http.disconnect"}
            complete = not message.get("more_body", False)
            return message

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        await self._app(scope, receive_in_time, send_noted)
        if late and not begun:
            refusal = problem(408, "body-too-slow", f"the body did not come within {self._body_seconds:g} s")
            await problem_response(refusal, _CLOSING)(scope, receive, send)


def host_name(host: str | None) -> str | None:
    """The name in a Host header, without the port."""
    try:
        return urlsplit(f"http://{host}").hostname if host else None
    except ValueError:
        return None
