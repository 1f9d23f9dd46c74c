"""From a request to the handler of its route, and from its answer, or its error, to a response.

What a handler gets is allowed, complete and of its types. Handlers run in a bounded pool of threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as ASGIScope
from starlette.websockets import WebSocketClose

from holdfast.errors import HoldfastError
from holdfast.web.parameters import accepts, asks_for, checked_path, decoded, is_media_type, json_as
from holdfast.web.principal import Authenticator, Principal
from holdfast.web.problems import MEDIA_TYPE, Problem, Refused, told
from holdfast.web.routes import JSON, Call, PageRoute, Reply, Route, Services
from holdfast.web.threads import Threads

FORM = "application/x-www-form-urlencoded"


class Endpoint:
    """Every method of one path, as an ASGI application."""

    def __init__(
        self,
        routes: Sequence[Route],
        services: Services,
        authenticate: Authenticator,
        statuses: Mapping[type[HoldfastError], int],
    ) -> None:
        self._routes = {route.method: route for route in routes}
        self._services = services
        self._authenticate = authenticate
        self._statuses = statuses
        self._is_page = any(isinstance(route, PageRoute) for route in routes)
        methods = sorted({*self._routes, *(["HEAD"] if "GET" in self._routes else [])})
        self._allow = ", ".join(methods)

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except ClientDisconnect:
            return
        except Exception as error:
            response = _told(request, error, self._services, self._statuses, is_page=self._is_page)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        method = request.method
        route = self._routes.get("GET" if method == "HEAD" else method)
        if route is None:
            hint = f"allowed: {self._allow}"
            raise Refused(405, "method-not-allowed", "not by this method", hint=hint, headers={"Allow": self._allow})
        body = await _body_of(request, route)
        run = self._services.get(Threads).run

        def begun() -> Response | Awaitable[Reply]:
            found = route.handler(self._call(request, route, body))
            return _response(found, route, method) if isinstance(found, Reply) else found

        answer = await run(begun)
        return answer if isinstance(answer, Response) else _response(await _unless_gone(request, answer), route, method)

    def _call(self, request: Request, route: Route, body: bytes) -> Call:
        """The request, if it is allowed and well-formed."""
        principal = None if route.scope is None else self._admitted(request.scope, route)
        if not accepts(request.headers.get("accept"), route.media_type):
            hint = f"accept {route.media_type}"
            raise Refused(406, "not-acceptable", "the answer is of another media type", hint=hint)
        return _call_of(
            request,
            self._services,
            principal=principal,
            path=checked_path(request.path_params),
            query=decoded(request.scope["query_string"], route.query, "query"),
            body=_content(request.headers, route, body),
            raw_body=body,
        )

    def _admitted(self, scope: ASGIScope, route: Route) -> Principal:
        principal = self._authenticate(scope)
        if principal is None:
            raise Refused(
                401,
                "unauthenticated",
                "nobody is known by this request",
                hint="send a token: Authorization: Bearer ...",
                headers={"WWW-Authenticate": 'Bearer realm="holdfast"'},
            )
        if route.scope is not None and not principal.scope.covers(route.scope):
            raise Refused(
                403,
                "forbidden",
                f"{principal.scope} does not cover this, which takes {route.scope}",
                hint=f"ask for a token of the scope {route.scope}",
                facts={"scope": principal.scope.value, "needed": route.scope.value},
            )
        return principal


class Nowhere:
    """Every path that no route is for: a browser is told on the page, whoever else by a problem."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """There is nothing."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        request = Request(scope, receive)
        hint = "what there is: /openapi.json"
        nothing = Refused(404, "no-such-path", "there is nothing at this path", hint=hint)
        is_page = not path_below_root(scope).startswith(API) and asks_for(request.headers.get("accept"), "text/html")
        await _told(request, nothing, self._services, {}, is_page=is_page)(scope, receive, send)


def _told(
    request: Request,
    error: Exception,
    services: Services,
    statuses: Mapping[type[HoldfastError], int],
    *,
    is_page: bool,
) -> Response:
    problem, headers = told(error, statuses)
    renderer = services.renderer
    if is_page and renderer is not None:
        call = _call_of(request, services, principal=None, path={}, query=None, body=None, raw_body=b"")
        reply = renderer.problem(call, problem)
        reply = msgspec.structs.replace(reply, headers={**headers, **reply.headers})
        return _response(reply, PAGE, request.method)
    return problem_response(problem, headers)


PAGE = PageRoute(method="GET", path="", name="", handler=lambda _call: Reply())
API = "/v1/"


def problem_response(problem: Problem, headers: Mapping[str, str]) -> Response:
    """A problem as it is sent."""
    content = msgspec.json.encode(problem)
    return Response(content, problem.status, {**headers, "Cache-Control": "no-store"}, MEDIA_TYPE)


def _call_of(request: Request, services: Services, **parts: Any) -> Call:
    scope = request.scope
    return Call(
        services=services,
        headers=request.headers,
        method=request.method,
        root_path=scope.get("root_path", ""),
        url_path=path_below_root(scope),
        query_string=scope["query_string"].decode("latin-1"),
        scope=scope,
        **parts,
    )


def path_below_root(scope: ASGIScope) -> str:
    """The path as it is in the table of routes, wherever the application is mounted."""
    path: str = scope["path"]
    # By ASGI the path begins with the root; behind a proxy that cuts the root off, it does not.
    below = path.removeprefix(scope.get("root_path", ""))
    return below if below[:1] in ("", "/") else path


async def _body_of(request: Request, route: Route) -> bytes:
    """The body, read no further than it may go."""
    too_large = Refused(
        413,
        "body-too-large",
        f"the body is over the limit of {route.body_limit:,} bytes",
        headers={"Connection": "close"},
    )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > route.body_limit:
        raise too_large
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > route.body_limit:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def _unless_gone(request: Request, answer: Awaitable[Reply]) -> Reply:
    """The answer; given up when the client is gone, so that nothing is held for nobody."""
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        raise ClientDisconnect
    finally:
        for task in (answering, leaving):
            task.cancel()
        await asyncio.gather(answering, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _content(headers: Headers, route: Route, body: bytes) -> Any:
    kind = headers.get("content-type")
    if isinstance(route, PageRoute):
        if route.form is None:
            return None
        if body and not is_media_type(kind, FORM):
            raise _unsupported(FORM)
        return decoded(body, route.form, "form")
    if route.body is None:
        if body:
            raise Refused(400, "unexpected-body", "this takes no body")
        return None
    if not is_media_type(kind, JSON):
        raise _unsupported(JSON)
    try:
        return json_as(body, lambda text: msgspec.json.decode(text, type=route.body), msgspec.ValidationError)
    except msgspec.ValidationError as error:
        raise Refused(422, "invalid-body", f"the body is not what is taken here: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed-body", f"the body is not JSON: {error}") from None


def _unsupported(media_type: str) -> Refused:
    return Refused(415, "unsupported-media-type", f"the body must be {media_type}", headers={"Accept": media_type})


async def _no_parts() -> AsyncIterator[bytes]:
    parts: tuple[bytes, ...] = ()
    for part in parts:
        yield part


def _response(reply: Reply, route: Route, method: str) -> Response:
    status = route.status if reply.status is None else reply.status
    media_type = reply.media_type or route.media_type
    body = reply.body
    if isinstance(body, AsyncIterator):
        if method == "HEAD":  # a stream that is not begun, or it would go on for ever
            return StreamingResponse(_no_parts(), status, reply.headers, media_type)
        return StreamingResponse(body, status, reply.headers, media_type)
    if body is None:
        return Response(None, status, reply.headers)
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    response = Response(content, status, reply.headers, media_type)
    response.headers.setdefault("Cache-Control", "no-store")
    if method == "HEAD":
        response.body = b""  # with the length that it would have
    return response
