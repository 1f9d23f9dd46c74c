"""An object becomes a file: whole, hashed on the way, durable, and under its name only then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast_images.errors import ChecksumMismatch, ImageRefused, SourceUntrusted
from holdfast_images.model import valid_sha256
from holdfast_images.source.hashing import Fingerprint
from holdfast_images.source.locations import FileObject, HttpObject, Location, may_be_asked
from holdfast_images.source.partial import Partial
from holdfast_images.source.settings import SourceSettings

if TYPE_CHECKING:
    from holdfast_images.source.transfer import Reader


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What was fetched. While the file has this fingerprint, it has this checksum."""

    checksum: str
    size_bytes: int
    etag: str | None
    fingerprint: Fingerprint


def fetch(
    location: Location,
    target: Path,
    *,
    limit: int,
    sha256: str | None = None,
    connections: int = 2,
    token: str | None = None,
    check: Callable[[], None] | None = None,
    on_progress: Callable[[int, int | None], None] | None = None,
    on_head: Callable[[str | None], None] | None = None,
    settings: SourceSettings | None = None,
) -> Fetched:
    """Bring the object to `target`, replacing what was there, or leave all as it was and say why.

    `check` and `on_progress` are called in the caller's thread, `check` several times a second; raising stops the
    fetch. `on_head` gets the object's ETag before its bytes come, and may raise as well. `token` names the hidden file
    of this attempt. The directory of `target` must exist.

    Crash: `target` is as it was, or whole and durable. A hidden file beside it may stay: see `remove_partials`.
    """
    # Here and not above: a run that fetches nothing need not load it.
    from holdfast_images.source.transfer import Transfer  # noqa: PLC0415

    expected = valid_sha256(sha256) if sha256 is not None else None
    settings = settings or SourceSettings()
    tick = check or (lambda: None)
    digest = hashlib.sha256()
    done = 0
    new_reader = _reader_factory(location, settings)
    with Partial(target, token) as partial:
        with Transfer(str(location), new_reader, partial, settings, connections) as transfer:
            head = transfer.head(tick)
            if on_head is not None:
                on_head(head.etag)
            _refuse_size(location, head.size, limit)
            if head.size is not None:
                partial.reserve(head.size)
            elif expected is None and not head.ends_clearly:
                raise ImageRefused(
                    "SIZE_UNKNOWN",
                    f"the server of {location} does not say how long it is: an early end would not be noticed",
                    hint="pin the image's SHA-256, or use a server that sends a Content-Length",
                )
            for view in transfer.pieces(tick):
                digest.update(view)
                done += len(view)
                _refuse_size(location, done, limit)
                if on_progress is not None:
                    on_progress(done, head.size)
        _refuse_size(location, done, limit)
        checksum = digest.hexdigest()
        if expected is not None and checksum != expected:
            raise ChecksumMismatch(
                f"{location} has SHA-256 {checksum}, and {expected} was asked for",
                hint="the object is another one, or was tampered with: ask whoever published the digest",
            )
        return Fetched(checksum=checksum, size_bytes=done, etag=head.etag, fingerprint=partial.publish())


def _reader_factory(location: Location, settings: SourceSettings) -> Callable[[], Reader]:
    if isinstance(location, FileObject):
        from holdfast_images.source.files import FileReader  # noqa: PLC0415

        return lambda: FileReader(location)

    import ssl  # noqa: PLC0415

    from holdfast_images.source.addresses import address_of  # noqa: PLC0415
    from holdfast_images.source.connection import HttpReader  # noqa: PLC0415

    # Asked again here: the location may come from a job that was submitted under other settings.
    asked = location.url if isinstance(location, HttpObject) else location.endpoint
    if asked is not None and not may_be_asked(asked, allow_http=settings.allow_http):
        raise SourceUntrusted(f"{location} is not https", hint="plain http must be allowed in the settings")
    address = address_of(location, settings)
    tls = ssl.create_default_context()
    return lambda: HttpReader(address, str(location), settings, tls)


def _refuse_size(location: Location, size: int | None, limit: int) -> None:
    if size is not None and size > limit:
        raise ImageRefused(
            "IMAGE_TOO_LARGE",
            f"{location} has {size} bytes or more; {limit} are allowed",
            hint="raise the limit if you trust the image",
        )
    if size == 0:
        raise ImageRefused("EMPTY", f"{location} has no bytes")
