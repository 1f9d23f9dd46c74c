"""The HTTP application in tests: known tokens, a flow, and a client that asks in process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from holdfast import Engine, Flow
from holdfast.web import Principal, Scope
from holdfast.web.application import Application, app
from holdfast.web.principal import ASGIScope
from tests.support.flows import Answer, Ask, note

FLOW = "demo"


def a_flow(name: str = FLOW) -> Flow[Ask, Answer]:
    """Two steps and a commit."""
    flow = Flow(name, request=Ask, response=Answer)
    flow.start("one", note("one"))
    flow.to("two", note("two"))
    flow.commit("three", lambda _run, _tx: Answer(trail=["one", "two", "three"]))
    return flow


def by_token(scope: ASGIScope, /) -> Principal | None:
    """The token is the name of a scope, and whoever sends it may do that."""
    headers: Mapping[bytes, bytes] = dict(scope["headers"])
    kind, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if kind != "Bearer" or token not in list(Scope):
        return None
    return Principal(actor=f"{token}-er", scope=Scope(token), kind="token")


class Asking(TestClient):
    """A client with the token of a scope."""

    def __init__(self, application: Application, scope: str | None = "admin") -> None:
        headers = {} if scope is None else {"Authorization": f"Bearer {scope}"}
        super().__init__(application, raise_server_exceptions=False, headers=headers)
        self.application = application

    def who_may(self, scope: str | None) -> Asking:
        """Another client of the same application."""
        return Asking(self.application, scope)


@contextmanager
def served(engine: Engine, **settings: Any) -> Iterator[Asking]:
    """A client of an application over this engine."""
    application = app(engine, authenticate=by_token, page=False, **settings)
    try:
        yield Asking(application)
    finally:
        application.close()
