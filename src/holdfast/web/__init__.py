"""The engine over HTTP: an API with an OpenAPI document, and a page; `app(engine)` is an ASGI application.

Needs the extra `serve`. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.web.application import app
    from holdfast.web.principal import Authenticator, Everybody, Principal, Scope
    from holdfast.web.routes import Call, Extension, NavEntry, PageRoute, Reply, Route

__all__ = [
    "Authenticator",
    "Call",
    "Everybody",
    "Extension",
    "NavEntry",
    "PageRoute",
    "Principal",
    "Reply",
    "Route",
    "Scope",
    "app",
]

_HOME = {
    "Authenticator": "holdfast.web.principal",
    "Call": "holdfast.web.routes",
    "Everybody": "holdfast.web.principal",
    "Extension": "holdfast.web.routes",
    "NavEntry": "holdfast.web.routes",
    "PageRoute": "holdfast.web.routes",
    "Principal": "holdfast.web.principal",
    "Reply": "holdfast.web.routes",
    "Route": "holdfast.web.routes",
    "Scope": "holdfast.web.principal",
    "app": "holdfast.web.application",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'holdfast.web' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
