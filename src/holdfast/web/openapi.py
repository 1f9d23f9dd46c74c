"""The OpenAPI 3.1 document, made from the table of routes and the flows that are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import __version__
from holdfast.web.routes import Call, Reply, Route


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """All of it."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = {"operationId": route.name, "summary": route.summary, "tags": [route.tag], "responses": {}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {"openapi": "3.1.0", "info": {"title": "Holdfast", "version": __version__}, "paths": paths}


def _openapi(call: Call) -> Reply:
    return Reply(body=document(call.services.routes))


ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/openapi.json",
        name="openapi",
        summary="This document.",
        tag="health",
        handler=_openapi,
        answer=dict[str, Any],
    ),
)
