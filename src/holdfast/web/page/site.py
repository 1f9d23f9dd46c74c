"""The page as a whole: its views and actions as routes, its assets, and how a problem is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jinja2
import msgspec

from holdfast.engine import Engine
from holdfast.web.page import actions, house, job, jobs, machine
from holdfast.web.page.frame import STATIC, Frame, NavLink, ViewQuery, digest
from holdfast.web.principal import Scope
from holdfast.web.problems import Problem, Refused
from holdfast.web.routes import HTML, JSON, Call, Extension, PageRoute, Reply

View = Callable[[Frame], Reply]

MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
FOR_EVER = "public, max-age=31536000, immutable"
_FILE = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_NAVIGATION_KEYS = "himj"


class AssetQuery(msgspec.Struct, frozen=True):
    """The address of an asset changes with its content."""

    v: str = ""


class Site:
    """The page of one engine, with what extensions add to it."""

    def __init__(self, engine: Engine, extensions: Sequence[Extension] = ()) -> None:
        self._engine = engine
        self._nav = tuple(
            NavLink(entry.title, entry.path, entry.title[0].lower()) for each in extensions for entry in each.nav
        )
        self._loaders = tuple(jinja2.PackageLoader(*each.templates) for each in extensions if each.templates)
        self._static = {each.name: _folder(*each.static) for each in extensions if each.static}
        self.pages: Sequence[PageRoute] = [
            *(self._route(*each) for part in (house, machine, jobs, job, actions) for each in part.PAGES),
            PageRoute(
                method="GET",
                path="/static/{name}",
                name="page-asset",
                handler=self._asset,
                scope=None,
                query=AssetQuery,
            ),
            PageRoute(
                method="GET",
                path="/static/{extension}/{name}",
                name="page-extension-asset",
                handler=self._asset,
                scope=None,
                query=AssetQuery,
            ),
        ]

    def _route(self, method: str, path: str, view: View, scope: Scope, query: Any, form: Any = None) -> PageRoute:
        name = f"page-{method.lower()}{path.replace('/', '-').replace('{', '').replace('}', '').rstrip('-')}"
        return PageRoute(
            method=method,
            path=path,
            name=name,
            handler=lambda call: view(self._frame(call)),
            scope=scope,
            query=query or ViewQuery,
            form=form,
            media_type=JSON if path.endswith(".json") else HTML,
        )

    def _frame(self, call: Call) -> Frame:
        return Frame(call, nav=self._nav, loaders=self._loaders)

    def render(self, call: Call, template: str, values: Mapping[str, Any], *, status: int = 200) -> Reply:
        """A template, with what every page has around it; `fragment` in the call's query asks for parts of it."""
        return self._frame(call).reply(template, status=status, **values)

    def problem(self, call: Call, problem: Problem) -> Reply:
        """A problem for people; of a request without a principal, the way to log in."""
        frame = self._frame(call)
        template = "login.html" if problem.status == 401 else "problem.html"
        query = f"?{call.query_string}" if call.query_string else ""
        next_path = f"{call.url_path}{query}" if call.method in ("GET", "HEAD") else "/"
        body = frame.render(template, problem=problem, next=next_path, shows_nav=problem.status != 401)
        return Reply(body=body, status=problem.status)

    def _asset(self, call: Call) -> Reply:
        name, extension = call.path["name"], call.path.get("extension")
        folder = STATIC if extension is None else self._static.get(extension)
        if folder is None or name not in _assets(folder):
            raise Refused(404, "no-such-path", "there is no such file")
        is_current = extension is not None or call.query.v == digest(name)
        return Reply(
            body=(folder / name).read_bytes(),
            media_type=MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream"),
            headers={"Cache-Control": FOR_EVER if is_current and call.query.v else "no-cache"},
        )


@cache
def _assets(folder: Path) -> frozenset[str]:
    """The names that there are: no other one ever gets as far as the file system."""
    return frozenset(each.name for each in folder.iterdir() if each.is_file() and _FILE.fullmatch(each.name))


def _folder(package: str, folder: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / folder
