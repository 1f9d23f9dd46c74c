"""The ASGI application: every route of the API, of the page and of extensions, over one engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.routing import BaseRoute, Router
from starlette.routing import Route as Path
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.engine import Engine
from holdfast.errors import BadInput
from holdfast.web import access, events, flows, house, jobs, maintenance, openapi
from holdfast.web.dispatch import Endpoint, Nowhere
from holdfast.web.limits import Guarded
from holdfast.web.principal import Authenticator, nobody
from holdfast.web.routes import Extension, Renderer, Route, Services


class Application:
    """An ASGI application; close it when it is no longer served, if whoever serves it sends no lifespan events."""

    def __init__(
        self,
        engine: Engine,
        *,
        authenticate: Authenticator | None = None,
        extensions: Sequence[Extension] = (),
        page: bool = True,
    ) -> None:
        renderer = _renderer(engine, extensions) if page else None
        self.services = Services(engine, renderer)
        self.services.routes = api_routes(extensions)
        self.services.reserved = frozenset(name for each in extensions for name in each.reserved)
        self.services.authenticate = authenticate or nobody
        statuses = {kind: status for each in extensions for kind, status in each.statuses.items()}
        pages = [*(renderer.pages if renderer else ()), *(page for each in extensions for page in each.pages)]
        by_path: dict[str, list[Route]] = {}
        for route in [*self.services.routes, *(pages if renderer else ())]:
            by_path.setdefault(route.path, []).append(route)
        # Starlette takes the first path that fits: those with a fixed word go before those with a place.
        paths: list[BaseRoute] = [
            Path(path, Endpoint(routes, self.services, self.services.authenticate, statuses), include_in_schema=False)
            for path, routes in sorted(by_path.items(), key=lambda item: item[0].replace("{", "\x7f"))
        ]
        self._app: ASGIApp = Guarded(
            Router(paths, redirect_slashes=False, default=Nowhere(self.services), lifespan=self._lifespan)
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, or the lifespan."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _app: Any) -> AsyncIterator[None]:
        yield
        self.close()

    def close(self) -> None:
        """End what was started for the application; the engine is its owner's."""
        self.services.close()


def app(
    engine: Engine,
    *,
    authenticate: Authenticator | None = None,
    extensions: Sequence[Extension] = (),
    page: bool = True,
) -> Application:
    """The engine as an ASGI application, to be served or to be mounted into another one.

    `authenticate` says who asks; without it nobody may do anything but look whether it is alive.
    """
    return Application(engine, authenticate=authenticate, extensions=extensions, page=page)


def api_routes(extensions: Sequence[Extension] = ()) -> list[Route]:
    """The table of the whole API; BadInput if two operations have one name, or one path and method."""
    routes = [*_own_routes(), *(route for each in extensions for route in each.routes)]
    seen: set[object] = set()
    for route in routes:
        for mark in (route.name, (route.method, route.path)):
            if mark in seen:
                raise BadInput(f"two routes are {mark!r}", hint="rename one of them")
            seen.add(mark)
    return routes


def _own_routes() -> Iterator[Route]:
    yield from house.ROUTES
    yield from flows.ROUTES
    yield from jobs.ROUTES
    yield from maintenance.ROUTES
    yield from events.ROUTES
    yield from access.ROUTES
    yield from openapi.ROUTES


def _renderer(engine: Engine, extensions: Sequence[Extension]) -> Renderer:
    from holdfast.web.page import Site  # noqa: PLC0415 - an API alone does without templates

    return Site(engine, extensions)
