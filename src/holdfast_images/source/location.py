"""How sources are read: where, as whom, and how patiently."""

from __future__ import annotations

import re
from typing import TypeAlias
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from holdfast_images.errors import InvalidName
from holdfast_images.model import valid_bucket, valid_key


class Secret(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A text that no log, message or traceback shows."""

    text: str

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Keys for S3. Without them the usual AWS sources are asked: see `credentials`."""

    access_key_id: str
    secret_access_key: Secret
    session_token: Secret | None = None
    expires_at: float | None = None
    """Seconds since 1970; None for keys that are good until somebody changes them."""


class SourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How sources are read. The defaults suit an image of some GiB from a store in the same region."""

    endpoint: str | None = None
    """Of an S3-compatible store; None is AWS."""
    region: str | None = None
    path_style: bool | None = None
    """The bucket in the path (True) or in the host name (False); None: in the path for other stores than AWS."""
    anonymous: bool = False
    credentials: Credentials | None = None
    allow_http: bool = False
    """Plain http to other hosts than this one, where anybody on the way can change the image."""

    range_bytes: int = 4 << 20
    """Asked for at once, and the size of a buffer; a fetch has four buffers more than connections."""
    most_connections: int = 8
    """Where first bytes come late, connections are added up to this many."""
    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    """A connection that brings less than `stall_bytes` in this time is cut, and the rest asked for again."""
    stall_bytes: int = 16 << 10
    tries: int = 5
    """Failures in a row, each bringing next to nothing, before the fetch gives up."""
    backoff_seconds: float = 0.2
    """Before the second failure in a row is tried again; doubled each time. The first is tried again at once."""
    backoff_most_seconds: float = 10.0
    wait_most_seconds: float = 120.0
    """A server that asks to be left alone (Retry-After) is, but for no longer than this at a time."""


# --- Where an image comes from, as a value without secrets: an object in S3, a URL, or a file -----------

_SIGNATURES = (
    "x-amz-signature",
    "x-goog-signature",
    "signature",
    "sig",
    "token",
    "access_token",
    "key",
    "x-amz-security-token",
)
_LOOPBACK = re.compile(r"localhost\.?|127(\.\d{1,3}){3}|::1|::ffff:127(\.\d{1,3}){3}", re.IGNORECASE)


class S3Object(msgspec.Struct, frozen=True, kw_only=True, tag="s3"):
    """An object in a bucket. Credentials are no part of it: settings or environment have them."""

    bucket: str
    key: str
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    anonymous: bool = False

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


class HttpObject(msgspec.Struct, frozen=True, kw_only=True, tag="http"):
    """What a URL leads to. A query that signs the URL is a secret, kept apart, and in memory only."""

    url: str
    signature: Secret | None = None

    def __str__(self) -> str:
        return masked(self.url)


class FileObject(msgspec.Struct, frozen=True, kw_only=True, tag="file"):
    """A file of this host."""

    path: str

    def __str__(self) -> str:
        return f"file://{quote(self.path)}"


Location: TypeAlias = S3Object | HttpObject | FileObject


def location_of(
    source: str | None = None,
    *,
    bucket: str | None = None,
    key: str | None = None,
    settings: SourceSettings | None = None,
) -> Location:
    """The location that a URL, or a bucket and a key, names; InvalidName if it is none that may be read."""
    settings = settings or SourceSettings()
    if source is None:
        if not bucket or not key:
            raise InvalidName("no source given", hint="give a URL, or a bucket and a key")
        return _s3_object(bucket, key, settings)
    if bucket or key:
        raise InvalidName("both a URL and a bucket or key are given", hint="give one of them")
    scheme, separator, rest = source.partition("://")
    match scheme.lower() if separator else "":
        case "s3":
            bucket, _, key = rest.partition("/")
            return _s3_object(bucket, key, settings)
        case "http" | "https":
            return _http_object(source, settings)
        case "file":
            return _file_object(rest)
        case _:
            raise InvalidName(
                f"{masked(source)!r} is no source", hint="s3://bucket/key, https://host/path or file:///path"
            )


def without_secrets(location: Location) -> Location:
    """The location as a job's request may keep it."""
    return HttpObject(url=location.url) if isinstance(location, HttpObject) else location


def origin_of(location: Location) -> tuple[str, str]:
    """Bucket and key, or what stands for them: the same object has the same, whoever asks and however."""
    match location:
        case S3Object():
            return location.bucket, location.key
        case HttpObject():
            parts = urlsplit(location.url)
            return f"{parts.scheme}://{parts.netloc}", parts.path.lstrip("/") + (
                f"?{parts.query}" if parts.query else ""
            )
        case FileObject():
            return "file://", location.path


def full_name(location: Location) -> str:
    """What tells the object from all others, behind other endpoints too; without secrets."""
    if isinstance(location, S3Object) and location.endpoint is not None:
        return f"{location} at {location.endpoint}"
    return location.url if isinstance(location, HttpObject) else str(location)


def masked(url: str) -> str:
    """The URL as a message may show it: without user, password, query and fragment."""
    head = url.partition("#")[0]
    head, query, _ = head.partition("?")
    scheme, separator, rest = head.partition("://")
    authority, slash, path = rest.partition("/")
    shown = f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
    return f"{shown}?…" if query else shown


def may_be_asked(url: str, *, allow_http: bool) -> bool:
    """Is it https, or http to this host, or http that was allowed?"""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and (allow_http or is_this_host(parts.hostname or "")))


def is_this_host(name: str) -> bool:
    """Does the name lead nowhere else? Then no proxy is asked for it, either."""
    return _LOOPBACK.fullmatch(name) is not None


def _s3_object(bucket: str, key: str, settings: SourceSettings) -> S3Object:
    if settings.endpoint is not None:
        parts = _web_url(settings.endpoint, settings)
        if parts.query or parts.path.strip("/"):
            raise InvalidName(
                f"the endpoint {masked(settings.endpoint)!r} has a path or a query", hint="give only https://host:port"
            )
    return S3Object(
        bucket=valid_bucket(bucket),
        key=valid_key(key),
        endpoint=settings.endpoint.rstrip("/") if settings.endpoint else None,
        region=settings.region,
        path_style=settings.path_style,
        anonymous=settings.anonymous,
    )


def _http_object(url: str, settings: SourceSettings) -> HttpObject:
    parts = _web_url(url, settings)
    names = {unquote(field.partition("=")[0]).lower() for field in parts.query.split("&")}
    if names.isdisjoint(_SIGNATURES):
        return HttpObject(url=parts._replace(fragment="").geturl())
    return HttpObject(url=parts._replace(query="", fragment="").geturl(), signature=Secret(parts.query))


def _file_object(rest: str) -> FileObject:
    host, _, path = rest.partition("/")
    path = "/" + unquote(path, errors="strict") if path else ""
    if host not in {"", "localhost"} or not path or "\0" in path:
        raise InvalidName(f"'file://{masked(rest)}' names no file of this host", hint="file:///absolute/path")
    return FileObject(path=path)


def _web_url(url: str, settings: SourceSettings) -> SplitResult:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidName(f"{masked(url)!r} is no URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise InvalidName(f"{masked(url)!r} is no URL", hint=f"begin with https:// or http://: https://{masked(url)}")
    if not host or not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise InvalidName(f"{masked(url)!r} is no URL", hint="write other characters than ASCII as %XX")
    if parts.username is not None:
        raise InvalidName(f"{masked(url)!r} has a user or password in it", hint="jobs and logs must not hold secrets")
    if not may_be_asked(url, allow_http=settings.allow_http):
        raise InvalidName(
            f"{masked(url)!r} is not https",
            hint="plain http is for this host only, unless it is allowed in the settings",
        )
    return parts
