"""One table of routes: router, OpenAPI document and reference page are made from it.

A route says what it takes and what it gives as types; a handler is a thin front of a method of the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from holdfast.bulk import Bulk
from holdfast.client import Client
from holdfast.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.views import Views
from holdfast.web.principal import Authenticator, Principal, Scope, nobody
from holdfast.web.problems import Problem

JSON = "application/json"
HTML = "text/html; charset=utf-8"
BODY_LIMIT = 2 << 20
"""Bytes of a request's body, if a route does not say otherwise."""

Service = TypeVar("Service")


class Reply(msgspec.Struct, kw_only=True):
    """An answer: `body` is bytes, an async iterator of bytes (streamed), None, or data that becomes JSON."""

    body: Any = None
    status: int | None = None
    """The route's own, if it is not given."""
    headers: dict[str, str] = {}
    media_type: str | None = None
    """application/json for data."""


Handler: TypeAlias = "Callable[[Call], Reply | Awaitable[Reply]]"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An operation of the API. A handler runs in a thread; what it answers with to be awaited, in the event loop."""

    method: str
    path: str
    name: str
    """The operation's id in the document: unique, in camelCase."""
    summary: str
    tag: str
    handler: Handler
    scope: Scope | None = Scope.READ
    """What it takes to be allowed; None is for everybody."""
    query: Any = None
    """A Struct: its fields are the query parameters. Unknown ones are refused."""
    body: Any = None
    """The type of the JSON body."""
    answer: Any = None
    """The type of the answer's body; None if there is none."""
    status: int = 200
    media_type: str = JSON
    """Of the answer."""
    also: Mapping[int, str] = {}
    """Other statuses of success with the same kind of answer, and what each means."""
    problems: tuple[int, ...] = ()
    """Statuses that it may answer, beside those that every route may."""
    takes: tuple[str, ...] = ()
    """Request headers that it heeds: see openapi.REQUEST_HEADERS."""
    gives: tuple[str, ...] = ()
    """Response headers: see openapi.RESPONSE_HEADERS."""
    description: str = ""
    body_limit: int = BODY_LIMIT


class PageRoute(Route, frozen=True, kw_only=True):
    """A view or an action of the page: not in the document, forms instead of JSON, problems shown as HTML."""

    summary: str = ""
    tag: str = "page"
    media_type: str = HTML
    form: Any = None
    """A Struct: its fields are those of the form that is posted; it comes as `call.body`."""


class NavEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A link in the page's navigation."""

    title: str
    path: str
    """Below the root of the application, beginning with a slash."""


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """What another package adds to the API and to the page."""

    name: str
    routes: Sequence[Route] = ()
    pages: Sequence[PageRoute] = ()
    nav: Sequence[NavEntry] = ()
    templates: tuple[str, str] | None = None
    """Package and directory in it: ("holdfast_images.web", "templates")."""
    static: tuple[str, str] | None = None
    """The same for static files, served as /static/{name of the extension}/{file}."""
    reserved: Sequence[str] = ()
    """Flows whose jobs nobody submits by the flow's name: the extension's own routes check what is asked."""
    statuses: Mapping[type[HoldfastError], int] = {}
    """The statuses of its own classes of errors; those that are not named go by their ancestor."""


class Renderer(Protocol):
    """Makes HTML; the page's own."""

    pages: Sequence[PageRoute]

    def render(self, call: Call, template: str, values: Mapping[str, Any], *, status: int = 200) -> Reply:
        """A template, with what every page has around it."""
        ...

    def problem(self, call: Call, problem: Problem) -> Reply:
        """A problem for people; of a request without a principal, the way to log in."""
        ...


class Services:
    """What the handlers of one application share; made when it is first asked for, closed with the application."""

    def __init__(self, engine: Engine, renderer: Renderer | None = None) -> None:
        self.engine = engine
        self.views = Views(engine)
        self.bulk = Bulk(engine)
        self.renderer = renderer
        self.routes: Sequence[Route] = ()
        """Every route of the API."""
        self.reserved: frozenset[str] = frozenset()
        """Flows of extensions: see Extension.reserved."""
        self.authenticate: Authenticator = nobody
        """Says who asks; a stream that goes on for long asks it again."""
        self._made: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def get(self, kind: Callable[[Services], Service]) -> Service:
        """The one that `kind(services)` makes: a class, say. Its `close()`, if it has one, is called at the end."""
        with self._lock:
            if kind not in self._made:
                self._made[kind] = kind(self)
            made: Service = self._made[kind]
            return made

    def close(self) -> None:
        """Close what was made, the last first. The engine is its owner's."""
        with self._lock:
            made, self._made = list(self._made.values()), {}
        for each in reversed(made):
            close = getattr(each, "close", None)
            if close is not None:
                close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that is allowed and well-formed."""

    services: Services
    principal: Principal | None
    """None on routes for everybody, and where a problem is shown."""
    path: Mapping[str, str]
    query: Any
    """Of the route's type."""
    body: Any
    """Of the route's type."""
    raw_body: bytes
    headers: Mapping[str, str]
    """Asked for in any case."""
    method: str
    root_path: str
    """Where the application is mounted: put it before every link."""
    url_path: str
    """Below the root."""
    query_string: str
    scope: Any
    """The ASGI scope."""

    @property
    def engine(self) -> Engine:
        """The engine that is served."""
        return self.services.engine

    @property
    def views(self) -> Views:
        """What is to be seen of it."""
        return self.services.views

    @property
    def bulk(self) -> Bulk:
        """Bulk actions."""
        return self.services.bulk

    @property
    def actor(self) -> str:
        """Who acts, for the journal."""
        return self.principal.actor if self.principal else "nobody"

    def client(self) -> Client:
        """A client whose actions are those of who asks."""
        return self.engine.acting_as(self.actor)

    def service(self, kind: Callable[[Services], Service]) -> Service:
        """What the application's handlers share: see Services.get."""
        return self.services.get(kind)

    async def in_thread(self, function: Callable[[], Service]) -> Service:
        """The result of a plain function, for handlers that run in the event loop."""
        from holdfast.web.threads import Threads  # noqa: PLC0415 - which knows the services

        return await self.services.get(Threads).run(function)

    def link(self, path: str) -> str:
        """A path of this application as it is seen from outside."""
        return f"{self.root_path}{path}"


__all__ = [
    "Call",
    "Extension",
    "NavEntry",
    "PageRoute",
    "Renderer",
    "Reply",
    "Route",
    "Services",
]
