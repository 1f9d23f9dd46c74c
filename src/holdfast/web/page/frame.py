"""What every view stands in: who asks, where the page is mounted, what time it is; how its template is filled in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

import jinja2
import msgspec

from holdfast import __version__
from holdfast.engine import Engine
from holdfast.errors import BadInput
from holdfast.web.page import words
from holdfast.web.principal import Scope
from holdfast.web.routes import Call, Reply

HERE = Path(__file__).parent
STATIC = HERE / "static"

Kind = Literal["succeeded", "failed", "warn", "info"]


class Notice(msgspec.Struct, frozen=True):
    """What has become of an action, in a line above the view."""

    kind: Kind
    title: str
    text: str = ""


class NavLink(msgspec.Struct, frozen=True):
    """A view in the navigation, and the key that goes there after `g`."""

    label: str
    path: str
    key: str


VIEWS = (NavLink("House", "/", "h"), NavLink("Machines", "/flows", "m"), NavLink("Jobs", "/jobs", "j"))


class ViewQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What the address of every view may say."""

    fragment: str = ""
    """Only these parts of the view, by name, with commas between them."""
    done: str = ""
    """What has just been asked for here, to be told above the view."""


class Frame:
    """One request for a view."""

    def __init__(
        self,
        call: Call,
        *,
        nav: Sequence[NavLink] = (),
        loaders: tuple[jinja2.BaseLoader, ...] = (),
        extensions: Sequence[str] = (),
    ) -> None:
        self.call = call
        self.engine = call.engine
        self.views = call.views
        self.now = call.engine.store.now()
        self.nav = (*VIEWS, *nav)
        self._loaders = loaders
        self._extensions = extensions

    def may(self, scope: str) -> bool:
        """May whoever asks do this?"""
        return self.call.principal is not None and self.call.principal.scope.covers(Scope(scope))

    def url(self, path: str, **parameters: object) -> str:
        """An address of this page, below where it is mounted; parameters that are empty are left out."""
        return f"{self.call.link(quote(path))}{query_of(list(parameters.items()))}"

    def static(self, name: str) -> str:
        """The address of an asset; it changes with its content, and so it may be kept for ever."""
        return f"{self.call.link('/static/')}{name}?v={digest(name)}"

    def sentence(self, text: str) -> str:
        """A sentence of the engine's own, with its times as times of day."""
        return words.sentence(text, self.now)

    def clock(self, at: int) -> str:
        """A time of day, with the date if it is not of today."""
        return words.clock(at, self.now)

    def render(self, template: str, view: object = None, *, fragment: str = "", **more: object) -> bytes:
        """The whole view, or those fragments of it."""
        environment = _environment(self._loaders)
        values: dict[str, Any] = {
            "root": self.call.root_path,
            "here": next((entry.path for entry in self.nav if _is_below(self.call.url_path, entry.path)), ""),
            "nav": self.nav,
            "now": self.now,
            "me": self.call.principal,
            "engine_name": name_of(self.engine),
            "store": place_of(self.engine),
            "version": __version__,
            "url": self.url,
            "static": self.static,
            "clock": self.clock,
            "sentence": self.sentence,
            "query_of": query_of,
            "may": self.may,
            "sheets": [],
            "shows_nav": self.call.principal is not None,
            "notice": None,
            "back": self.url("/"),
            "v": view,
            **more,
        }
        # Asked for before the view is read: what changes meanwhile comes as an event.
        values["change"] = "" if fragment or self.call.principal is None else self.views.last_change()
        values["c"] = environment.get_template("components.html").make_module(values)
        chosen = environment.get_template(template)
        text = (
            _fragments(chosen, list(dict.fromkeys(fragment.split(","))), values) if fragment else chosen.render(values)
        )
        return text.encode("utf-8", "backslashreplace")

    def reply(self, template: str, view: object = None, *, status: int = 200, **more: object) -> Reply:
        """The same as an answer; which fragments is in the address."""
        fragment = str(getattr(self.call.query, "fragment", ""))
        return Reply(body=self.render(template, view, fragment=fragment, **more), status=status)

    def to(self, path: str, **parameters: object) -> Reply:
        """Go on at another view, as after a form."""
        return Reply(status=303, headers={"Location": self.url(path, **parameters)})


Page: TypeAlias = (
    "tuple[str, str, Callable[[Frame], Reply], Scope, Any] | tuple[str, str, Callable[[Frame], Reply], Scope, Any, Any]"
)
"""Method, path, view, what it takes to be allowed, the type of the query, the type of the form."""


def place_of(engine: Engine) -> str:
    """Where the store is, without what is secret of it."""
    return re.sub(r"//[^/@]*@", "//", engine.place.partition("?")[0])


def name_of(engine: Engine) -> str:
    """The last part of that."""
    return place_of(engine).rstrip("/").rpartition("/")[2] or "engine"


def query_of(parameters: Sequence[tuple[str, object]]) -> str:
    """Parameters as the end of an address."""
    given = [(name, str(value)) for name, value in parameters if value not in (None, "", ())]
    return f"?{urlencode(given)}" if given else ""


def _fragments(template: jinja2.Template, names: Sequence[str], values: Mapping[str, Any]) -> str:
    unknown = [name for name in names if name not in template.blocks]
    if unknown:
        raise BadInput(f"this view has no fragment {unknown[0]!r}", hint=f"it has {', '.join(sorted(template.blocks))}")
    context = template.new_context(dict(values))
    return "\n".join("".join(template.blocks[name](context)) for name in names)


def _is_below(path: str, entry: str) -> bool:
    return path == entry if entry == "/" else path == entry or path.startswith(f"{entry}/")


@cache
def digest(name: str) -> str:
    """Of an asset, for its address."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


FILTERS: Mapping[str, Callable[..., Any]] = {
    "t": words.inert,
    "lines": words.inert_lines,
    "plain": words.plain,
    "n": words.count,
    "bounded": words.bounded,
    "jobs": words.jobs,
    "some": words.some,
    "span": words.span,
    "duration": words.duration,
    "precise": words.precise,
    "full": words.full,
    "short": words.short,
    "percent": words.percent,
}


@cache
def _environment(more: tuple[jinja2.BaseLoader, ...]) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.FileSystemLoader(HERE / "templates"), *more]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(FILTERS)
    return environment
