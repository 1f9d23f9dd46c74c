"""Routes of who may: bearer tokens are made, listed and revoked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.web.principal import Scope
from holdfast.web.routes import Call, Reply, Route
from holdfast.web.tokens import Token, token_store

LONGEST = 10 * 365 * 86400


class NewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token for somebody."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    """The journal calls whoever uses it token:name."""
    scope: Scope
    seconds: Annotated[int, Meta(ge=1, le=LONGEST)] | None
    """How long it may be used; null is until it is revoked."""


class MadeToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token, with the text that stands for it: shown now and never again."""

    token: Token
    secret: str


class TokenList(msgspec.Struct, frozen=True, kw_only=True):
    """Every token there ever was, the oldest first."""

    tokens: list[Token]


def _list(call: Call) -> Reply:
    return Reply(body=TokenList(tokens=call.service(token_store).tokens()))


def _create(call: Call) -> Reply:
    wish: NewToken = call.body
    lifetime_ms = None if wish.seconds is None else wish.seconds * 1000
    store = call.service(token_store)
    token, secret = store.create(wish.name, wish.scope, lifetime_ms=lifetime_ms, actor=call.actor)
    return Reply(body=MadeToken(token=token, secret=secret))


def _revoke(call: Call) -> Reply:
    return Reply(body=call.service(token_store).revoke(call.path["token"], actor=call.actor))


ROUTES: Sequence[Route] = (
    Route(
        method="GET",
        path="/v1/tokens",
        name="listTokens",
        summary="Every token, without its secret; when it was used last, and who made it.",
        tag="access",
        handler=_list,
        scope=Scope.ADMIN,
        answer=TokenList,
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        name="createToken",
        summary="Make a token; its text is in this answer, and never again.",
        tag="access",
        handler=_create,
        scope=Scope.ADMIN,
        body=NewToken,
        answer=MadeToken,
        status=201,
        problems=(409,),
        body_limit=64 << 10,
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{token}",
        name="revokeToken",
        summary="Revoke a token by its name or id, with its sessions; asked again, nothing changes.",
        tag="access",
        handler=_revoke,
        scope=Scope.ADMIN,
        answer=Token,
    ),
)
