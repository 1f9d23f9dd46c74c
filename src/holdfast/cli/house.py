"""What `top` watches, in a store or at a `holdfast serve`: the same records, and a wake-up when they change."""

from __future__ import annotations

import http.client
import select
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, urlencode, urlsplit

import msgspec

from holdfast.client import Client
from holdfast.core.values import label_of
from holdfast.errors import BadInput, HoldfastError, SettingsError, StoreError, StoreUnavailable
from holdfast.views import Change, JobFilter, JobPage, Overview, Views

Shown = TypeVar("Shown")

ANSWER_TIMEOUT = 15.0
MOST_CHANGES = 200
"""Of those that came since the last look, so many are read; if there are more, the end of them is gone on from."""
KEPT_CHANGES = 20
LARGEST_TOKEN = 1000


class House(msgspec.Struct, frozen=True, kw_only=True):
    """All that one frame is drawn from."""

    place: str
    at: int
    """When it was looked at, by the clock of this machine."""
    overview: Overview
    jobs: JobPage
    changes: list[Change]
    """The latest, oldest first."""


class Source(Protocol):
    """Where a house is looked at."""

    def look(self, wanted: JobFilter, limit: int) -> House:
        """What there is now."""
        ...

    def wait(self, descriptors: set[int], timeout: float) -> bool:
        """Until something has changed (True), one of these can be read, or the time is up."""
        ...

    def close(self) -> None:
        """No more looks."""
        ...


class _Recent:
    """The latest changes, gone on with from look to look."""

    def __init__(self) -> None:
        self._after: str | None = None
        self._kept: list[Change] = []

    def go_on(self, last: Callable[[], str], read: Callable[[str], Sequence[Change]]) -> list[Change]:
        """Read what has come since; from the end on at first, and where there is more than anybody could read."""
        if self._after is None:
            self._after = last()
        new = read(self._after)
        if new:
            self._after = last() if len(new) == MOST_CHANGES else new[-1].number
        self._kept = [*self._kept, *new][-KEPT_CHANGES:]
        return list(self._kept)


class StoreSource:
    """A store that is here."""

    def __init__(self, client: Client) -> None:
        self._views = Views(client)
        self._store = client.store
        self._listener = client.store.listen()
        self._recent = _Recent()
        self._place = client.store.url

    def look(self, wanted: JobFilter, limit: int) -> House:
        """Read what there is now."""
        views = self._views
        return House(
            place=self._place,
            at=time.time_ns() // 1_000_000,
            overview=views.overview(),
            jobs=views.jobs(wanted, limit=limit),
            changes=self._recent.go_on(views.last_change, lambda after: views.changes(after, MOST_CHANGES)),
        )

    def wait(self, descriptors: set[int], timeout: float) -> bool:
        """Until the store wakes those who listen."""
        self._listener.watch(descriptors)
        return self._listener.wait(timeout) and not _readable(descriptors)

    def close(self) -> None:
        """Listen no longer."""
        self._listener.close()


def _readable(descriptors: set[int]) -> bool:
    return bool(descriptors and select.select([*descriptors], [], [], 0)[0])


# --- over HTTP ----------------------------------------------------------------------------------------------


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class _Changes(msgspec.Struct, frozen=True):
    changes: list[Change]
    last: str


class _Problem(msgspec.Struct, frozen=True):
    title: str = ""
    detail: str = ""
    hint: str | None = None


class HttpSource:
    """A `holdfast serve`, at http://…, https://… or unix:PATH, with a token or as the user that the kernel knows."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = _checked(url)
        self._headers = {"Accept": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self._recent = _Recent()
        self._connection: http.client.HTTPConnection | None = None
        self._events: http.client.HTTPConnection | None = None

    def look(self, wanted: JobFilter, limit: int) -> House:
        """Ask for what there is now."""
        asked = {name: value for name, value in msgspec.to_builtins(wanted).items() if name != "states"}
        return House(
            place=_told(self._url),
            at=time.time_ns() // 1_000_000,
            overview=self._get("/v1/stats", Overview),
            jobs=self._get("/v1/jobs", JobPage, **asked, state=[*wanted.states], limit=limit),
            changes=self._recent.go_on(self._last, self._changes),
        )

    def _last(self) -> str:
        return self._get("/v1/changes", _Changes, limit=1).last

    def _changes(self, after: str) -> Sequence[Change]:
        return self._get("/v1/changes", _Changes, after=after, limit=MOST_CHANGES).changes

    def wait(self, descriptors: set[int], timeout: float) -> bool:
        """Until an event comes. Without a stream, and when it ends, it is only the time that passes."""
        until = time.monotonic() + timeout
        while True:
            stream = self._stream()
            waited_for = descriptors | ({stream.fileno()} if stream is not None else set())
            ready = select.select([*waited_for], [], [], max(0.0, until - time.monotonic()))[0]
            if not ready or descriptors & set(ready):
                return False
            data = b""
            with suppress(OSError):
                data = stream.recv(1 << 16) if stream is not None else b""
            if not data:
                self._drop_stream()
                return True
            if b"data:" in data:
                return True

    def close(self) -> None:
        """Close what is open."""
        self._drop_stream()
        if self._connection is not None:
            self._connection.close()

    def _stream(self) -> socket.socket | None:
        if self._events is None:
            self._events = self._connected()
            try:
                self._events.request("GET", "/v1/events", headers={**self._headers, "Accept": "text/event-stream"})
                answer = self._events.getresponse()
                if answer.status != http.HTTPStatus.OK:
                    self._events.close()
            except (OSError, http.client.HTTPException):
                self._events.close()
        return self._events.sock

    def _drop_stream(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _connected(self) -> http.client.HTTPConnection:
        if self._url.scheme == "unix":
            return _UnixConnection(self._url.path, ANSWER_TIMEOUT)
        assert self._url.hostname is not None
        if self._url.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self._url.hostname, self._url.port, timeout=ANSWER_TIMEOUT, context=context
            )
        return http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=ANSWER_TIMEOUT)

    def _get(self, path: str, kind: type[Shown], **query: Any) -> Shown:
        target = f"{self._url.path.rstrip('/') if self._url.scheme != 'unix' else ''}{path}"
        if query:
            target += "?" + urlencode({name: value for name, value in query.items() if value != []}, doseq=True)
        try:
            if self._connection is None:
                self._connection = self._connected()
            self._connection.request("GET", target, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            told = f"{_told(self._url)} does not answer: {str(error) or type(error).__name__}"
            raise StoreUnavailable(told, hint="is `holdfast serve` running there?") from error
        if answer.status != http.HTTPStatus.OK:
            raise _refusal(answer.status, body, _told(self._url))
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.MsgspecError as error:
            raise StoreError(
                f"{_told(self._url)} answers what this version does not understand: {error}",
                hint="is it a `holdfast serve` of the same version?",
            ) from error


def _refusal(status: int, body: bytes, place: str) -> HoldfastError:
    problem = _Problem()
    with suppress(msgspec.MsgspecError):
        problem = msgspec.json.decode(body, type=_Problem)
    told = f"{place} says {status}: {problem.detail or problem.title or http.client.responses.get(status, '')}"
    if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
        hint = problem.hint or "a token in a file: --token-file FILE; see `holdfast token create`"
        return SettingsError(told, hint=hint)
    if status < http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return BadInput(told, hint=problem.hint)
    return StoreUnavailable(told, hint=problem.hint)


def _checked(url: str) -> SplitResult:
    parts = urlsplit(url)
    if (parts.scheme == "unix" and parts.path) or (parts.scheme in ("http", "https") and parts.hostname):
        return parts
    raise SettingsError(f"--url {url!r} is not an address", hint="http://HOST:PORT, https://HOST or unix:PATH")


def _told(url: SplitResult) -> str:
    return f"unix:{url.path}" if url.scheme == "unix" else f"{url.scheme}://{url.netloc.rpartition('@')[2]}"


def token_in(file: Path) -> str:
    """The token in a file; SettingsError if it holds none."""
    try:
        text = file.read_bytes()[: LARGEST_TOKEN + 1].decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    if not text or len(text) > LARGEST_TOKEN or not text.isprintable() or " " in text:
        raise SettingsError(f"--token-file {file} holds no token", hint="the one line that `token create` has printed")
    return text


def worker_label(worker: str | None) -> str:
    """Who works on it, for people."""
    return label_of(worker) if worker else ""


def known_hosts(overview: Overview) -> Mapping[str, int]:
    """How many workers are alive on each host."""
    hosts: dict[str, int] = {}
    for one in overview.workers:
        if one.live:
            host = label_of(one.worker.worker_id).partition("@")[2]
            hosts[host] = hosts.get(host, 0) + 1
    return hosts
