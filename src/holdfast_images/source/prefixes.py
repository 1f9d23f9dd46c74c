"""Is a source below one of the URL prefixes that an operator has allowed? Pure, and never lenient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast_images.errors import InvalidName
from holdfast_images.source.location import FileObject, HttpObject, Location, S3Object

DEFAULT_PORTS = {"http": 80, "https": 443}
A_PREFIX = "s3://bucket/, https://host/path/ or file:///directory/, separated by spaces"


class SourcePlace(NamedTuple):
    """Where something is, and the parts of its path: None if one of them, in any spelling, leads elsewhere."""

    scheme: str
    host: str
    port: int | None
    path: list[str] | None


def checked_prefixes(text: str) -> tuple[str, ...]:
    """The prefixes of a setting; InvalidName for one that would allow nothing, or more than it seems to."""
    for prefix in text.split():
        place = _place_of_prefix(prefix)
        needs_host = place is not None and place.scheme != "file"
        if place is None or place.path is None or bool(place.host) is not needs_host:
            raise InvalidName(f"api_sources: {prefix!r} is no prefix of sources", hint=A_PREFIX)
    return tuple(text.split())


def is_below(location: Location, prefixes: Iterable[str]) -> bool:
    """Is it? Whole parts of the path are compared; a path with '..' in any spelling is below nothing."""
    asked = _place_of(location)
    if asked.path is None:
        return False
    for prefix in prefixes:
        allowed = _place_of_prefix(prefix)
        if allowed is None or allowed.path is None or allowed[:3] != asked[:3]:
            continue
        if asked.path[: len(allowed.path)] == allowed.path:
            return True
    return False


def _place_of(location: Location) -> SourcePlace:
    match location:
        case S3Object():
            return SourcePlace("s3", location.bucket, None, _parts(location.key))
        case FileObject():
            return SourcePlace("file", "", None, _parts(location.path))
        case HttpObject():
            return _of_url(location.url) or SourcePlace("", "", None, None)


def _place_of_prefix(prefix: str) -> SourcePlace | None:
    scheme, separator, rest = prefix.partition("://")
    host, _, path = rest.partition("/")
    match scheme if separator else "":
        case "s3":
            return SourcePlace("s3", host, None, _parts(path))
        case "file":
            return SourcePlace("file", host, None, _parts(unquote(path)))
        case "http" | "https":
            return _of_url(prefix)
        case _:
            return None


def _of_url(url: str) -> SourcePlace | None:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.fragment or parts.username is not None:
        return None
    return SourcePlace(parts.scheme, host.rstrip("."), port, _parts(_decoded(parts.path)))


def _parts(path: str) -> list[str] | None:
    parts = path.removeprefix("/").removesuffix("/").split("/")
    if parts == [""]:
        return []
    return None if any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts) else parts


def _decoded(text: str) -> str:
    """Until nothing is encoded any more: a server may decode more than once."""
    while (plain := unquote(text)) != text:
        text = plain
    return text
