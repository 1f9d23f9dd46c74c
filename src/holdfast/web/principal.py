"""Who asks, and what they may do."""

from __future__ import annotations

from collections.abc import MutableMapping
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

import msgspec

ASGIScope: TypeAlias = MutableMapping[str, Any]


class Scope(StrEnum):
    """What somebody may do; each contains those before it."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: Scope) -> bool:
        """Is that a part of it?"""
        order = list(Scope)
        return order.index(self) >= order.index(needed)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who is known: their name goes into the journal."""

    actor: str
    scope: Scope
    kind: str
    """How they are known: token, unix, session, host app."""
    account: str = ""
    """Who that is whatever process they ask from, if `actor` says more; keys of requests are told apart by it."""


class Authenticator(Protocol):
    """Says who sends a request; None if that is nobody who is known."""

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """Called in a thread for every request but those for everybody; quick, and without side effects."""
        ...


class Everybody:
    """An authenticator for tests and for host applications that let nobody through themselves: all are the same one."""

    def __init__(self, actor: str, scope: Scope, kind: str = "host app") -> None:
        self._principal = Principal(actor=actor, scope=scope, kind=kind)

    def __call__(self, _scope: ASGIScope, /) -> Principal | None:
        """That one."""
        return self._principal


def nobody(_scope: ASGIScope, /) -> Principal | None:
    """The authenticator of an application that was given none."""
    return None
