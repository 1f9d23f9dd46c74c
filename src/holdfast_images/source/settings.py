"""How sources are read: where, as whom, and how patiently."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


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


def settings_of(environment: Mapping[str, str]) -> SourceSettings:
    """Settings by the variables that AWS's own tools read; keys are left to be read when a fetch begins."""
    return SourceSettings(
        endpoint=environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or None,
        region=environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or None,
    )
