"""`holdfast serve`, the API and the page until a signal stops it, and `holdfast token …`, who may use them by TCP."""

from __future__ import annotations

import grp
import importlib
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click
import msgspec

from holdfast import logs
from holdfast.cli.command import Command, CommandSettings, ExitCode, Group
from holdfast.cli.context import App, app_of, opened
from holdfast.cli.output import note, print_json, print_table, show, time_of
from holdfast.cli.worker import (
    RunOptions,
    StopSignals,
    at_work,
    checked,
    log_level,
    notify_service_manager,
    prepared,
    refuse_failed,
    run_options,
    wait_for_store,
    watchdog_interval,
    worker_of,
)
from holdfast.engine import Engine
from holdfast.errors import SettingsError
from holdfast.web.principal import Scope
from holdfast.worker.worker import Worker

if TYPE_CHECKING:
    from holdfast.web.application import Application
    from holdfast.web.sockets import ListenAddress
    from holdfast.web.tokens import TokenStore

log = logging.getLogger("holdfast.web")

DEFAULT_LISTEN = "127.0.0.1:8118"
SCHEME_HEADER = "x-forwarded-proto"
DEFAULT_STREAMS = 100
_SCOPES = [scope.value for scope in Scope]


class ServeOptions(RunOptions, frozen=True, kw_only=True):
    """The options of the command."""

    listen: tuple[str, ...]
    socket_group: str | None
    socket_scope: Scope | None
    allow_host: tuple[str, ...]
    trust_proxy_header: tuple[str, ...]
    proxy_scope: Scope
    streams_per_client: int
    work: bool


_SENT_BY_CLIENTS = re.compile(
    "(accept|content|sec|if)(-.*)?$|(host|authorization|cookie|user-agent|origin|referer|connection|prefer)$"
    "|(forwarded|via|x-forwarded-for|x-forwarded-host|x-real-ip|idempotency-key|last-event-id)$"
)
"""Every request has some of them: who believed them would let everybody in under the name of a host or a browser."""


@click.command(cls=Command)
@click.option(
    "--listen",
    multiple=True,
    envvar="HOLDFAST_LISTEN",
    show_envvar=True,
    metavar="WHERE",
    help=f"unix:PATH or HOST:PORT; {DEFAULT_LISTEN} if systemd gives no socket. Repeatable.",
)
@click.option(
    "--socket-group",
    envvar="HOLDFAST_SOCKET_GROUP",
    show_envvar=True,
    metavar="GROUP",
    help="The group of the unix socket: its members may connect.",
)
@click.option(
    "--socket-scope",
    type=click.Choice(_SCOPES),
    envvar="HOLDFAST_SOCKET_SCOPE",
    show_envvar=True,
    help="What members of that group may do without a token; without it they need one.",
)
@click.option(
    "--allow-host",
    multiple=True,
    metavar="NAME",
    help="A further name in the Host header by which loopback may be asked, such as a proxy sends. Repeatable.",
)
@click.option(
    "--trust-proxy-header",
    multiple=True,
    metavar="HEADER",
    help="Believe a proxy on this machine: X-Forwarded-Proto, or the header that names the user. Repeatable.",
)
@click.option(
    "--proxy-scope",
    type=click.Choice(_SCOPES),
    default="read",
    show_default=True,
    help="What users may do whom the proxy names.",
)
@click.option(
    "--streams-per-client",
    type=click.IntRange(1, 100_000),
    default=DEFAULT_STREAMS,
    show_default=True,
    metavar="N",
    help="How many streams of events one token, session or user may have open.",
)
@click.option("--work", is_flag=True, help="Run jobs in this process, too; the options below are those of `worker`.")
@run_options
@click.pass_obj
def serve(settings: CommandSettings, /, **given: object) -> int:
    """Serve the API and the page until stopped.

    On a unix socket the kernel says who asks: root and the server's own user may do everything. By TCP everybody needs
    a token, see `token create`; on a terminal a link for one log-in is printed. SIGTERM or SIGINT stops it cleanly, a
    second signal ends it at once.
    """
    options = msgspec.convert(given, ServeOptions)
    checked(options)
    places = _places(options)
    group = _group(options)
    _user_header(options)
    logs.configure(settings.log_format, level=log_level(settings))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    app = _app(settings, options)

    def opening() -> Engine:
        return Engine.open(settings.place, flows=app.flows, actor=settings.actor, synchronous=options.sync.upper())

    with StopSignals() as signals, ExitStack() as stack:
        engine = wait_for_store(lambda: stack.enter_context(opening()), signals)
        if engine is None or (
            options.work and not wait_for_store(lambda: prepared(engine, app, settings, options), signals)
        ):
            return ExitCode.OK
        sockets = stack.enter_context(_sockets(places, group))
        _serve(settings, options, engine, app, sockets, group, signals)
    return ExitCode.OK


def _app(settings: CommandSettings, options: ServeOptions) -> App:
    """What is worked on, and what is shown: without an app there is still everything that is in the store."""
    if options.work or settings.app is not None or settings.default_app is not None:
        return app_of(settings)
    return App([])


def _places(options: ServeOptions) -> list[ListenAddress]:
    from holdfast.web.sockets import listen_address  # noqa: PLC0415 - needs the extra

    # A browser cannot open a unix socket, and who starts this by hand wants to see the page.
    given = options.listen or (() if "LISTEN_FDS" in os.environ else (DEFAULT_LISTEN,))
    return [listen_address(text) for text in given]


def _group(options: ServeOptions) -> int | None:
    if options.socket_group is None:
        if options.socket_scope is not None:
            raise SettingsError("--socket-scope is for the members of a group", hint="name it: --socket-group")
        return None
    if options.socket_group.isdecimal():
        return int(options.socket_group)
    try:
        return grp.getgrnam(options.socket_group).gr_gid
    except KeyError:
        raise SettingsError(f"--socket-group: there is no group {options.socket_group!r}") from None


def _lowered(options: ServeOptions) -> list[str]:
    return [name.lower() for name in options.trust_proxy_header]


def _user_header(options: ServeOptions) -> str | None:
    """The header in which a proxy names the user; one that clients send by themselves names nobody."""
    given = _lowered(options)
    for name in given:
        if not re.fullmatch(r"[a-z0-9-]+", name) or _SENT_BY_CLIENTS.match(name):
            hint = "such as X-Remote-User, which the proxy sets in every request"
            raise SettingsError(f"--trust-proxy-header {name!r} is no header that names a user", hint=hint)
    users = [name for name in given if name != SCHEME_HEADER]
    if len(users) > 1:
        raise SettingsError("--trust-proxy-header: only one header can name the user")
    return users[0] if users else None


@contextmanager
def _sockets(places: Sequence[ListenAddress], group: int | None) -> Iterator[list[tuple[socket.socket, str]]]:
    """What is listened on, each with how it is told."""
    from holdfast.web.sockets import address_of, bound, given_sockets  # noqa: PLC0415 - as above

    with ExitStack() as stack:
        found = [(stack.enter_context(one), address_of(one)) for one in given_sockets()]
        for place in places:
            one = stack.enter_context(bound(place, group=group))
            found.append((one, f"unix:{place.path}" if place.path is not None else address_of(one)))
        if not found:
            raise SettingsError("the service manager has given no socket", hint="ListenStream= in a .socket unit")
        yield found


def _serve(
    settings: CommandSettings,
    options: ServeOptions,
    engine: Engine,
    app: App,
    sockets: Sequence[tuple[socket.socket, str]],
    group: int | None,
    signals: StopSignals,
) -> None:
    from holdfast.web.server import WebServer  # noqa: PLC0415 - as above
    from holdfast.web.tokens import TABLES, TokenStore  # noqa: PLC0415 - as above

    tokens = TokenStore(engine.tables(TABLES))
    by_tcp = [one for one, _ in sockets if one.family != socket.AF_UNIX]
    links = _links(settings, tokens, by_tcp)
    application, asgi = _application(settings, options, engine, tokens, group)
    running = worker_of(engine, options) if options.work else None
    server = WebServer(
        asgi,
        on_started=lambda: _announce(settings, running, [told for _, told in sockets], links),
        on_stopping=lambda: _stopping(application, signals),
    )
    server.on_look = _Watchdog(running, server.stop)
    with at_work(running, engine, options, app.check) if running is not None else nullcontext():
        server.run_on([one for one, _ in sockets], stop_on=signals.descriptor)
        if running is not None:
            refuse_failed(running)
    log.info("stopped")


def _links(settings: CommandSettings, tokens: TokenStore, by_tcp: Sequence[socket.socket]) -> list[str]:
    """Links to log in with once, for whoever has started this on a terminal; SettingsError if nobody could log in."""
    loopback = [one for one in by_tcp if one.getsockname()[0] in ("127.0.0.1", "::1")]
    if sys.stderr.isatty() and not settings.json:
        secrets = [(one, tokens.link(settings.actor, Scope.ADMIN)) for one in loopback]
        if secrets:
            return [f"{_url(one)}/login?link={secret}" for one, secret in secrets]
    if by_tcp and not tokens.has_valid():
        raise SettingsError(
            "no token is valid, and by TCP nobody is let in without one",
            hint="make one: holdfast token create NAME --scope read; or listen on a unix socket: --listen unix:PATH",
        )
    return []


def _url(one: socket.socket) -> str:
    host, port = one.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _application(
    settings: CommandSettings, options: ServeOptions, engine: Engine, tokens: TokenStore, group: int | None
) -> tuple[Application, object]:
    """The application, and it with what our own server puts around it."""
    from holdfast.web.application import app as application_of  # noqa: PLC0415 - as above
    from holdfast.web.credentials import ByPeer, ByProxy, BySession, ByToken, CombinedAuthenticator  # noqa: PLC0415 - as above
    from holdfast.web.events import Feed  # noqa: PLC0415 - as above
    from holdfast.web.limits import Limited  # noqa: PLC0415 - as above
    from holdfast.web.login import Login  # noqa: PLC0415 - as above

    user_header = _user_header(options)
    credentials = CombinedAuthenticator(
        token=ByToken(tokens),
        session=BySession(tokens),
        proxy=ByProxy(user_header, options.proxy_scope) if user_header else None,
        peer=ByPeer(os.getuid(), group=group, group_scope=options.socket_scope),
    )
    extensions = [Login(tokens).extension]
    if settings.web is not None:
        module, _, function = settings.web.partition(":")
        extensions.append(getattr(importlib.import_module(module), function)(settings))
    application = application_of(engine, authenticate=credentials, extensions=extensions)
    application.services.get(Feed).streams_per_client = options.streams_per_client
    return application, Limited(application, hosts=options.allow_host, trust_scheme=SCHEME_HEADER in _lowered(options))


class _Watchdog:
    """Called by the server every second: what has to be seen in time while it serves."""

    def __init__(self, running: Worker | None, stop: Callable[[], None]) -> None:
        self._running = running
        self._stop = stop
        # A worker is watched by its own rounds.
        self._interval = None if running is not None else watchdog_interval()
        self._fed = 0.0

    def __call__(self) -> None:
        if self._running is not None and self._running.failure is not None:
            self._stop()
        if self._interval is not None and time.monotonic() - self._fed >= self._interval:
            self._fed = time.monotonic()
            notify_service_manager("WATCHDOG=1")


def _announce(settings: CommandSettings, running: Worker | None, told: list[str], links: Sequence[str]) -> None:
    worker_id = running.worker_id if running is not None else None
    log.info("ready: serving on %s%s", ", ".join(told), f", {worker_id} works" if worker_id else "")
    if settings.json:
        print_json({"event": "ready", "listen": told, "worker_id": worker_id})
        sys.stdout.flush()
    for link in links:
        note(settings, f"open, once and within ten minutes: {link}")
    if any(one.startswith("http://") and not re.match(r"http://(127\.|\[::1\])", one) for one in told):
        log.warning("tokens cross the network in the clear: put a proxy with TLS before it")
    notify_service_manager("READY=1")


def _stopping(application: Application, signals: StopSignals) -> None:
    from holdfast.web.events import Feed  # noqa: PLC0415 - as above

    notify_service_manager("STOPPING=1")
    log.info("stopping%s", f" on {signals.received}" if signals.received else "")
    application.services.get(Feed).stop_streams()


# --- tokens ----------------------------------------------------------------------------------------------

_LIFETIME = re.compile(r"([0-9]{1,5})([mhdw])")
_UNITS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class ListedToken(msgspec.Struct, frozen=True):
    """A token as it is listed."""

    name: str
    token_id: str
    scope: Scope
    state: str
    created_at: int
    created_by: str
    expires_at: int | None
    used_at: int | None
    revoked_at: int | None


@contextmanager
def _opened_tokens(settings: CommandSettings, *, create: bool = False) -> Iterator[TokenStore]:
    from holdfast.web.tokens import TABLES, TokenStore  # noqa: PLC0415 - needs the extra

    with opened(settings, create=create):
        pass
    with TABLES.open(settings.place) as tables:
        yield TokenStore(tables)


@click.group(cls=Group)
def token() -> None:
    """Make, list and revoke the tokens that let in by TCP."""


@token.command("create")
@click.argument("name")
@click.option("--scope", type=click.Choice(_SCOPES), required=True, help="What it lets do; each has those before it.")
@click.option(
    "--expires", default="90d", show_default=True, metavar="TIME", help="For how long: 12h, 30d, 8w; or never."
)
@click.pass_obj
def create_token(settings: CommandSettings, name: str, scope: str, expires: str) -> None:
    """Make a token, and print it: now and never again.

    What is done with it is in the journal as token:NAME.
    """
    with _opened_tokens(settings, create=True) as tokens:
        made, text = tokens.create(name, Scope(scope), lifetime_ms=_lifetime(expires), actor=settings.actor)
    listed = {
        "token": text,
        "name": made.name,
        "token_id": made.token_id,
        "scope": made.scope,
        "expires_at": made.expires_at,
    }
    show(settings, listed, lambda: print(text))
    until = f"until {time_of(made.expires_at)}" if made.expires_at else "until it is revoked"
    note(settings, f"{made.name} may {made.scope}, {until}; the token is not shown again")


@token.command("list")
@click.pass_obj
def list_tokens(settings: CommandSettings) -> None:
    """List every token, with its last use."""
    now = time.time_ns() // 1_000_000
    with _opened_tokens(settings) as tokens:
        found = [
            ListedToken(
                each.name,
                each.token_id,
                each.scope,
                "revoked" if each.revoked_at else "valid" if each.is_valid(now) else "expired",
                each.created_at,
                each.created_by,
                each.expires_at,
                each.used_at,
                each.revoked_at,
            )
            for each in tokens.tokens()
        ]
    rows = [
        (
            each.name,
            each.token_id,
            each.scope,
            each.state,
            time_of(each.expires_at),
            time_of(each.used_at),
            each.created_by,
        )
        for each in found
    ]
    columns = ("name", "id", "scope", "state", "expires", "last used", "created by")
    show(settings, found, lambda: print_table(columns, rows))


@token.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke_token(settings: CommandSettings, name: str) -> None:
    """Revoke a token by its name or id: from now on it lets nobody in, and its sessions have ended."""
    with _opened_tokens(settings) as tokens:
        revoked = tokens.revoke(name, actor=settings.actor)
    show(settings, {"name": revoked.name, "token_id": revoked.token_id, "revoked_at": revoked.revoked_at}, lambda: None)
    note(settings, f"{revoked.name} is revoked")


def _lifetime(text: str) -> int | None:
    if text == "never":
        return None
    found = _LIFETIME.fullmatch(text)
    milliseconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if not 0 < milliseconds <= 3650 * _UNITS["d"]:
        raise SettingsError(f"--expires {text!r} is no time", hint="such as 12h, 30d or 8w, up to ten years; or never")
    return milliseconds
