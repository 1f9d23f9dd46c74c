"""Logging in and out with a browser: a token, or a link for one use, for a cookie."""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from holdfast.web.credentials import COOKIE, cookie_of
from holdfast.web.problems import Refused, problem
from holdfast.web.routes import Call, Extension, PageRoute, Reply
from holdfast.web.tokens import SESSION_MS, TokenStore

FORM_LIMIT = 16 << 10


class LoginQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where to go afterwards, and the link that was printed on a terminal."""

    next: str = "/"
    link: str | None = None


class LoginForm(msgspec.Struct, frozen=True, kw_only=True):
    """What the form has."""

    token: str
    next: str = "/"


class LogoutForm(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing."""


class Login:
    """The routes of logging in and out."""

    def __init__(self, tokens: TokenStore) -> None:
        self._tokens = tokens

    @property
    def extension(self) -> Extension:
        """To be given to an application that has a page."""
        return Extension(
            name="login",
            pages=(
                PageRoute(method="GET", path="/login", name="login", handler=self._show, scope=None, query=LoginQuery),
                PageRoute(
                    method="POST",
                    path="/login",
                    name="logIn",
                    handler=self._log_in,
                    scope=None,
                    form=LoginForm,
                    body_limit=FORM_LIMIT,
                ),
                PageRoute(
                    method="POST", path="/logout", name="logOut", handler=self._log_out, scope=None, form=LogoutForm
                ),
            ),
        )

    def _show(self, call: Call) -> Reply:
        if call.query.link is not None and call.method == "GET":
            return self._begun(call, call.query.link, call.query.next, "this link has been used, or is too old")
        return _form(call, call.query.next)

    def _log_in(self, call: Call) -> Reply:
        return self._begun(call, call.body.token.strip(), call.body.next, "this is no valid token")

    def _begun(self, call: Call, shown: str, then: str, refusal: str) -> Reply:
        begun = self._tokens.start_session(shown)
        if begun is None:
            return _form(call, then, refusal)
        secret, _ = begun
        return _sent_to(call, _own_path(then), f"{COOKIE}={secret}; Max-Age={SESSION_MS // 1000}")

    def _log_out(self, call: Call) -> Reply:
        secret = cookie_of(call.scope)
        if secret is not None:
            self._tokens.end_session(secret)
        return _sent_to(call, "/login", f"{COOKIE}=; Max-Age=0")


def _form(call: Call, then: str, refusal: str | None = None) -> Reply:
    renderer = call.services.renderer
    if renderer is None:
        raise Refused(404, "no-page", "this server has no page", hint="send a token: Authorization: Bearer ...")
    wrong = problem(401, "login-refused", refusal, hint="make one: holdfast token create") if refusal else None
    values = {"next": _own_path(then), "problem": wrong}
    return renderer.render(call, "login.html", values, status=401 if wrong else 200)


def _sent_to(call: Call, path: str, cookie: str) -> Reply:
    secure = "; Secure" if call.scope.get("scheme") == "https" else ""
    attributes = f"; Path={quote(call.root_path) or '/'}; HttpOnly; SameSite=Strict{secure}"
    return Reply(status=303, headers={"Location": call.link(path), "Set-Cookie": cookie + attributes})


def _own_path(path: str) -> str:
    """A path of this application; its beginning for everything else: nobody is sent to another site."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return quote(path, safe="/?&=%:,.~-_+") if is_own else "/"
