"""Which object an image was made of: bucket and key, at whatever endpoint the same store is reached."""

from __future__ import annotations

from enum import Enum
from urllib.parse import urlsplit

from holdfast_images.flows.messages import DownloadRequest
from holdfast_images.model import image_id_of
from holdfast_images.source.locations import Location, S3Object, full_name, origin_of

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_PORTS = {"http": 80, "https": 443}
_AT = " at "
"""Between an object of S3 and its endpoint in the full name."""


class Relation(Enum):
    """Of a recorded object to one that is asked for."""

    SAME = "same"
    ELSEWHERE = "elsewhere"
    """The same bucket and key at another endpoint: the same store under another name, or another store."""
    OTHER = "other"


def relation_of(origin: str, location: Location) -> Relation:
    """Pure. By the full name that was recorded; an empty one, of an older version, is taken for the same."""
    if origin in ("", full_name(location)):
        return Relation.SAME
    if not isinstance(location, S3Object):
        return Relation.OTHER
    name = str(location)
    if origin != name and not origin.startswith((f"{name}{_AT}http://", f"{name}{_AT}https://")):
        return Relation.OTHER
    recorded = origin[len(name) + len(_AT) :]
    if not recorded or not location.endpoint:
        return Relation.ELSEWHERE
    return Relation.SAME if _address(recorded) == _address(location.endpoint) else Relation.ELSEWHERE


def keys_of(request: DownloadRequest) -> list[str]:
    """What the catalog may call the object for this image: its key, or more of its name if others have that."""
    name = full_name(request.location)
    return list(dict.fromkeys([request.s3_key, str(request.location), f"{name}#{request.image_id}"]))


def is_derived(request: DownloadRequest) -> bool:
    """Has nobody chosen the image id?"""
    return request.image_id == image_id_of(*origin_of(request.location))


def _address(endpoint: str) -> tuple[str, str, int | None]:
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").rstrip(".")
    return parts.scheme, "localhost" if host in _LOOPBACK else host, parts.port or _PORTS.get(parts.scheme)
