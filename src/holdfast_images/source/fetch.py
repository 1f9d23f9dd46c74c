"""Images that are files of this host already."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast_images.errors import (
    AccessDenied,
    ChecksumMismatch,
    ImageRefused,
    ObjectNotFound,
    Permanent,
    SourceChanged,
    SourceUnavailable,
    SourceUntrusted,
)
from holdfast_images.model import valid_sha256
from holdfast_images.source.location import (
    FileObject,
    HttpObject,
    Location,
    S3Object,
    SourceSettings,
    full_name,
    may_be_asked,
)
from holdfast_images.source.partial import Fingerprint, Kept, Partial, hash_range
from holdfast_images.source.responses import RangeRequest, RangeResponse

if TYPE_CHECKING:
    from holdfast_images.source.transfer import Reader


class LocalFileReader:
    """Reads a regular file by the same questions as an object; a change of it while it is read is noticed."""

    def __init__(self, location: FileObject) -> None:
        self.at: int | None = None
        self._where = str(location)
        self._path = location.path
        self._descriptor: int | None = None
        self._stop = 0
        self._etag: str | None = None

    def ask(self, question: RangeRequest) -> RangeResponse:
        """Begin to read the bytes that are asked for."""
        if self._descriptor is None:
            self._descriptor = self._open()
        status = os.fstat(self._descriptor)
        size = status.st_size
        self._etag = question.etag or _etag(status)
        self._refuse_change()
        self.at = question.start
        self._stop = size if question.stop is None else min(question.stop, size)
        return RangeResponse(length=self._stop - self.at, size=size, etag=self._etag, ranged=True)

    def read_into(self, view: memoryview) -> int:
        """Read on; 0 at the end."""
        if self.at is None or self._descriptor is None or self.at >= self._stop:
            self.at = None
            return 0
        try:
            count = os.preadv(self._descriptor, [view[: self._stop - self.at]], self.at)
        except OSError as error:
            raise SourceUnavailable(f"{self._where}: {error.strerror}") from error
        # After reading, so that what was read is known to be of the file that was asked for.
        self._refuse_change()
        self.at = self.at + count if self.at + count < self._stop else None
        return count

    def watch(self, now: float) -> None:
        """A file does not stall, or nothing can be done about it."""

    def interrupt(self, reason: str) -> None:
        """A read from a disk cannot be interrupted, and is soon over."""

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self.at = None

    def _open(self) -> int:
        try:
            # Without blocking, so that a pipe that nobody writes to is not waited for.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(f"there is no file {self._where}") from None
        except PermissionError:
            raise AccessDenied(f"{self._where} may not be read by this user") from None
        except OSError as error:
            raise SourceUnavailable(f"{self._where}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Permanent(f"{self._where} is no regular file", hint="give the path of the archive itself")
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return descriptor

    def _refuse_change(self) -> None:
        assert self._descriptor is not None
        if _etag(os.fstat(self._descriptor)) != self._etag:
            raise SourceChanged(f"{self._where} was changed while it was read")


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'


# --- An object becomes a file: whole, hashed on the way, durable, and under its name only then ----------


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
    fetch. `on_head` gets the object's ETag before its bytes come, and may raise as well. The directory of `target`
    must exist. `token` names a hidden file beside it: who comes again with the same token after a fetch that was
    stopped, killed or cut goes on behind the bytes that are there, if the object is still the same (strong ETag).

    Crash: `target` is as it was, or whole and durable. A hidden file beside it may stay: see `remove_partials`.
    """
    order = _Order(
        location=location,
        limit=limit,
        sha256=valid_sha256(sha256) if sha256 is not None else None,
        connections=connections,
        check=check or (lambda: None),
        on_progress=on_progress or (lambda *_: None),
        on_head=on_head or (lambda *_: None),
        settings=settings or SourceSettings(),
    )
    with Partial(target, token) as partial:
        try:
            begun = _begun(order, partial)
            try:
                return _fetch_rest(order, partial, begun)
            except SourceChanged:
                if begun.question is None or not partial.is_kept:
                    raise
            # What is there is of another object.
            partial.restart()
            return _fetch_rest(order, partial, _Begun())
        except (Permanent, SourceChanged, OSError):
            partial.is_kept = False
            raise
        finally:
            partial.is_kept = partial.is_kept and partial.kept() is not None


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked of `fetch`."""

    location: Location
    limit: int
    sha256: str | None
    connections: int
    check: Callable[[], None]
    on_progress: Callable[[int, int | None], None]
    on_head: Callable[[str | None], None]
    settings: SourceSettings

    @property
    def origin(self) -> str:
        return hashlib.sha256(full_name(self.location).encode("utf-8", "surrogatepass")).hexdigest()


class _Begun:
    """The bytes that are there already, their digest, and of which object they are."""

    def __init__(self, count: int = 0, question: RangeRequest | None = None) -> None:
        self.count = count
        self.digest = hashlib.sha256()
        self.question = question


def _begun(order: _Order, partial: Partial) -> _Begun:
    """What an earlier fetch has left, if it can be gone on with; else the file is empty."""
    from holdfast_images.source.responses import RangeRequest  # noqa: PLC0415 - as in _fetch_rest

    kept = partial.kept()
    if kept is not None and kept.origin == order.origin:
        partial.is_kept = True
        # The last byte is asked for again, so that the server says of a complete file, too, whether it is the same.
        last = kept.count - 1
        stop = min(last + order.settings.range_bytes, kept.size)
        begun = _Begun(last, RangeRequest(last, stop, kept.etag, kept.size))
        hash_range(partial.descriptor, begun.digest, 0, last, order.check)
        whole = begun.digest.copy()
        hash_range(partial.descriptor, whole, last, kept.count)
        if whole.hexdigest() == kept.sha256:
            return begun
    partial.is_kept = False
    partial.restart()
    return _Begun()


def _fetch_rest(order: _Order, partial: Partial, begun: _Begun) -> Fetched:
    # Here and not above: a run that fetches nothing need not load it.
    from holdfast_images.source.transfer import Transfer  # noqa: PLC0415

    location, digest, done = order.location, begun.digest, begun.count
    readers = _reader_factory(location, order.settings)
    transfer = Transfer(str(location), readers, partial, order.settings, order.connections, begun.question)

    def note(count: int) -> None:
        nonlocal done
        done += count
        answer = transfer.answered  # a cut may be noticed before anybody has asked for the answer
        if answer is not None and answer.ranged and answer.size is not None and answer.etag is not None:
            sha256 = digest.copy().hexdigest()
            partial.record(Kept(origin=order.origin, etag=answer.etag, size=answer.size, count=done, sha256=sha256))

    try:
        with transfer:
            head = transfer.head(order.check)
            order.on_head(head.etag)
            _refuse_size(location, head.size, order.limit)
            _reserve(order, partial, head)
            order.on_progress(done, head.size)
            for view in transfer.pieces(order.check):
                digest.update(view)
                note(len(view))
                _refuse_size(location, done, order.limit)
                order.on_progress(done, head.size)
    finally:
        # A thread that is left behind must find the file removed: nobody else's bytes are to be written over.
        partial.is_kept = partial.has_token and transfer.is_over
        if partial.is_kept and (more := transfer.written_from(done)):
            hash_range(partial.descriptor, digest, done, done + more)
            note(more)
            order.on_progress(done, transfer.answered.size if transfer.answered is not None else None)
    _refuse_size(location, done, order.limit)
    checksum = digest.hexdigest()
    if order.sha256 is not None and checksum != order.sha256:
        raise ChecksumMismatch(
            f"{location} has SHA-256 {checksum}, and {order.sha256} was asked for",
            hint="the object is another one, or was tampered with: ask whoever published the digest",
        )
    fingerprint = partial.publish(done)
    return Fetched(checksum=checksum, size_bytes=done, etag=head.etag, fingerprint=fingerprint)


def _reserve(order: _Order, partial: Partial, head: RangeResponse) -> None:
    if head.size is not None:
        partial.reserve(head.size)
    elif order.sha256 is None and not head.ends_clearly:
        raise ImageRefused(
            "SIZE_UNKNOWN",
            f"the server of {order.location} does not say how long it is: an early end would not be noticed",
            hint="pin the image's SHA-256, or use a server that sends a Content-Length",
        )


def _reader_factory(location: Location, settings: SourceSettings) -> Callable[[], Reader]:
    if isinstance(location, FileObject):
        return lambda: LocalFileReader(location)

    from holdfast_images.source.http import (  # noqa: PLC0415
        Access,
        HttpReader,
        address_of,
        tls_context,
    )

    # Asked again here: the location may come from a job that was submitted under other settings.
    asked = location.url if isinstance(location, HttpObject) else location.endpoint
    if asked is not None and not may_be_asked(asked, allow_http=settings.allow_http):
        raise SourceUntrusted(f"{location} is not https", hint="plain http must be allowed in the settings")
    aws = isinstance(location, S3Object)
    tls = tls_context(os.environ, aws=aws)
    access = Access(address_of(location, settings), tls, aws=aws)
    return lambda: HttpReader(access, str(location), settings)


def _refuse_size(location: Location, size: int | None, limit: int) -> None:
    if size is not None and size > limit:
        raise ImageRefused(
            "IMAGE_TOO_LARGE",
            f"{location} has {size} bytes or more; {limit} are allowed",
            hint="raise the limit if you trust the image",
        )
    if size == 0:
        raise ImageRefused("EMPTY", f"{location} has no bytes")
