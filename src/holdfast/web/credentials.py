"""Who asks, found out by what they show: a bearer token, a session's cookie, a proxy's word, or their socket."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

import msgspec

from holdfast.web.principal import ASGIScope, Authenticator, Principal, Scope
from holdfast.web.tokens import TokenStore

COOKIE = "holdfast_session"
PEER = "holdfast.peer"
"""The extension of an ASGI scope in which our own server says who is at the other end of a unix socket."""
ACTOR_LIMIT = 150

_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via"})


class Peer(NamedTuple):
    """A process at the other end of a unix socket, as the kernel knows it."""

    pid: int
    uid: int
    gid: int
    groups: tuple[int, ...] = ()

    @property
    def actor(self) -> str:
        """What the journal calls it."""
        return f"unix:uid={self.uid},gid={self.gid},pid={self.pid}"


def header_of(scope: ASGIScope, name: bytes) -> str | None:
    """A header that is there once; one that is there twice is nobody's word."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else None


def cookie_of(scope: ASGIScope) -> str | None:
    """The secret of the session, if the browser sends one.

    Browsers send one host's cookies to all of its ports: what other programs have set is passed over, whatever it is.
    """
    pairs = (pair.partition("=") for pair in (header_of(scope, b"cookie") or "").split(";"))
    return next((value.strip() for name, _, value in pairs if name.strip() == COOKIE), None)


def peer_of(scope: ASGIScope) -> Peer | None:
    """Who is at the other end of the unix socket that this came by; None if it came by another way."""
    found = (scope.get("extensions") or {}).get(PEER)
    return found if isinstance(found, Peer) else None


def is_local(scope: ASGIScope) -> bool:
    """Did it come from this machine: by a unix socket, or by loopback?"""
    if peer_of(scope) is not None:
        return True
    client = scope.get("client")
    try:
        return client is not None and ip_address(client[0]).is_loopback
    except ValueError:
        return False


class ByToken:
    """A bearer token, as programs send it."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """Who has been given the token."""
        kind, _, text = (header_of(scope, b"authorization") or "").partition(" ")
        token = self._tokens.token_of(text.strip()) if kind.lower() == "bearer" else None
        return None if token is None else Principal(actor=token.actor, scope=token.scope, kind="token")


class BySession:
    """The cookie that a browser was given for a token or a link."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """Who has logged in."""
        secret = cookie_of(scope)
        session = self._tokens.session_of(secret) if secret else None
        return None if session is None else Principal(actor=session.actor, scope=session.scope, kind="session")


class ByProxy:
    """A header in which a proxy on this machine names the user that it has let through itself."""

    def __init__(self, header: str, scope: Scope) -> None:
        self._header = header.lower().encode()
        self._scope = scope

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """Whom the proxy names. The word of another machine counts for nothing."""
        name = header_of(scope, self._header)
        if not name or len(name) > ACTOR_LIMIT or not name.isprintable() or not is_local(scope):
            return None
        return Principal(actor=f"proxy:{name}", scope=self._scope, kind="proxy")


class ByPeer:
    """The process at the other end of a unix socket: its user and groups, as the kernel tells them.

    root and the server's own user may do everything, members of the group what its scope says, others nothing.
    """

    def __init__(self, uid: int, *, group: int | None = None, group_scope: Scope | None = None) -> None:
        self._uid = uid
        self._group = group
        self._group_scope = group_scope

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """That process; nobody, if the request was forwarded by it for somebody else."""
        peer = peer_of(scope)
        if peer is None or any(name in _FORWARDED for name, _ in scope["headers"]):
            return None
        if peer.uid in (0, self._uid):
            return Principal(actor=peer.actor, scope=Scope.ADMIN, kind="unix")
        is_member = self._group is not None and self._group in (peer.gid, *peer.groups)
        if not is_member or self._group_scope is None:
            return None
        return Principal(actor=peer.actor, scope=self._group_scope, kind="unix")


class CombinedAuthenticator(msgspec.Struct, frozen=True, kw_only=True):
    """The ways to be known, the most explicit first.

    A token that is shown decides: with a wrong one nobody falls back to another way.
    """

    token: Authenticator
    session: Authenticator
    proxy: Authenticator | None = None
    peer: Authenticator | None = None

    def __call__(self, scope: ASGIScope, /) -> Principal | None:
        """Who asks."""
        if any(name == b"authorization" for name, _ in scope["headers"]):
            return self.token(scope)
        found = self.session(scope) if cookie_of(scope) else None
        others: Sequence[Authenticator | None] = (self.proxy, self.peer)
        return found or next((who for each in others if each is not None and (who := each(scope))), None)


def key_of(scope: ASGIScope) -> object:
    """What a request shows: two of the same key are of the same person."""
    shown = [(name, value) for name, value in scope["headers"] if name in (b"authorization", b"cookie")]
    return tuple(shown), peer_of(scope), None if shown else scope.get("client")
