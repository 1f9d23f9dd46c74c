"""The image routes asked in process, as one may who has a scope."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import httpx

from holdfast.web import Principal, Scope, app
from holdfast_images import ImageManager, Settings
from holdfast_images.web import image_extension


def scope_in_header(scope: MutableMapping[str, Any]) -> Principal | None:
    """Whoever says in a header what they may do."""
    found = dict(scope["headers"]).get(b"x-scope")
    return Principal(actor="alice", scope=Scope(found.decode()), kind="host app") if found else None


class ImageApi:
    """Requests, one after the other; the answers are read."""

    def __init__(self, place: str, settings: Settings) -> None:
        self.images = ImageManager.open(place, settings, actor="test")
        self._app = app(self.images.engine, authenticate=scope_in_header, extensions=[image_extension(place, settings)])
        self._runner = asyncio.Runner()

    def ask(self, method: str, path: str, *, scope: str = "admin", **options: Any) -> httpx.Response:
        """One request."""
        return self._runner.run(self._ask(method, path, scope, options))

    def ask_at_once(self, *paths: str, scope: str = "admin") -> list[httpx.Response]:
        """So many requests at the same time, each in a thread of the application."""

        async def all_of_them() -> list[httpx.Response]:
            return await asyncio.gather(*(self._ask("GET", path, scope, {}) for path in paths))

        return self._runner.run(all_of_them())

    async def _ask(self, method: str, path: str, scope: str, options: dict[str, Any]) -> httpx.Response:
        transport = httpx.ASGITransport(self._app, raise_app_exceptions=True)
        headers = {"X-Scope": scope, **options.pop("headers", {})}
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=120) as client:
            return await client.request(method, path, headers=headers, **options)

    def get(self, path: str, **options: Any) -> Any:
        """The data of an answer that succeeds."""
        answer = self.ask("GET", path, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def done(self, method: str, path: str, **options: Any) -> Any:
        """What came of a request that is waited for; a worker must be there."""
        answer = self.ask(method, path, **{"headers": {"Prefer": "wait=60"}, **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["done"]

    def problem(self, method: str, path: str, **options: Any) -> tuple[int, str]:
        """Status and code of a request that does not succeed."""
        answer = self.ask(method, path, **options)
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        return answer.status_code, answer.json()["code"]

    @contextmanager
    def worker(self) -> Iterator[None]:
        """A worker of images beside it."""
        self.images.prepare()
        with self.images.engine.worker(concurrency=8):
            yield

    def close(self) -> None:
        """Close all of it."""
        self._app.close()
        self._runner.close()
        self.images.close()
