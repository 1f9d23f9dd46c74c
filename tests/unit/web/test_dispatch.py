"""A path is told below the place where the application is mounted, as the router sees it that chose the route."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router
from starlette.testclient import TestClient

from holdfast.web.dispatch import path_below_root


@pytest.mark.parametrize(
    "root, path, below",
    [
        ("", "/v1/jobs", "/v1/jobs"),
        ("/ops", "/ops/v1/jobs", "/v1/jobs"),
        ("/ops", "/ops/", "/"),
        ("/ops", "/ops", ""),
        ("/ops", "/ops/ops/v1", "/ops/v1"),
        ("/ops", "/opsx/v1", "/opsx/v1"),
        ("/ops", "/v1/jobs", "/v1/jobs"),
        ("/", "/v1/jobs", "/v1/jobs"),
        ("/a/b", "/a/b/c", "/c"),
        ("/a/b", "/a/bc", "/a/bc"),
    ],
)
def test_only_whole_parts_of_the_root_are_taken_away(root: str, path: str, below: str) -> None:
    assert path_below_root({"type": "http", "path": path, "root_path": root}) == below


def test_a_server_may_say_nothing_of_a_root() -> None:
    assert path_below_root({"type": "http", "path": "/v1/jobs"}) == "/v1/jobs"


@pytest.mark.parametrize("server_root", ["", "/proxy"])
@pytest.mark.parametrize("place", ["/ops", "/ops/engine", "/v1"])
def test_it_is_the_path_that_the_route_was_chosen_by(place: str, server_root: str) -> None:
    def told(request: Request) -> PlainTextResponse:
        return PlainTextResponse(path_below_root(request.scope))

    inner = Router([Route("/v1/{rest:path}", told)])
    http = TestClient(Router([Mount(place, inner)]), root_path=server_root)
    answers = [http.get(f"{server_root}{place}/v1/jobs"), http.get(f"{server_root}{place}/v1/v1/jobs")]

    assert [answer.text for answer in answers] == ["/v1/jobs", "/v1/v1/jobs"]
