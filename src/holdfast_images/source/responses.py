"""What an answer to a GET means: status and headers judged against what was asked. Pure."""

from __future__ import annotations

import re
from datetime import UTC
from email.message import Message
from email.utils import parsedate_to_datetime

import msgspec

from holdfast_images.errors import (
    AccessDenied,
    ImageError,
    ObjectNotFound,
    Permanent,
    SourceChanged,
    SourceUnavailable,
)

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_LENGTH = re.compile(r"\d{1,18}")
_S3_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,80})</Code>")
_S3_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
_REGION = re.compile(r"[a-z0-9-]{1,40}")
REDIRECTS = {301, 302, 303, 307, 308}
# Clocks, tokens and signatures: S3 answers some of them with 400, and some stores with 200.
_DENIED_CODES = {
    "AccessDenied",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidRequest",
    "InvalidToken",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
}
_BUSY_CODES = {"InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown"}
_MISSING_CODES = {"NoSuchBucket", "NoSuchKey", "NoSuchVersion"}
_ERROR_DOCUMENT = re.compile(rb"\s*(<\?xml[^>]*\?>\s*)?<Error[\s>]")
ERROR_DOCUMENT_BYTES = 64 << 10
"""No error of a store is longer, and hardly an image is shorter."""


class RangeRequest(msgspec.Struct, frozen=True):
    """Bytes `start` up to, not including, `stop`; None asks for everything in one answer."""

    start: int = 0
    stop: int | None = None
    etag: str | None = None
    size: int | None = None
    """What the first answer said, and every other must repeat."""


class RangeResponse(msgspec.Struct, frozen=True):
    """An answer whose body can be used."""

    length: int | None
    """Of this body; None if only its end will tell."""
    size: int | None
    """Of the object."""
    etag: str | None
    ranged: bool
    """The body is the range that was asked for, and others can be joined to it."""
    ends_clearly: bool = True
    """An early end would be noticed."""


class Busy(SourceUnavailable):
    """The server asked to be left alone for some seconds."""

    def __init__(self, message: str, *, wait: float) -> None:
        super().__init__(message)
        self.wait = wait


class RangesGone(SourceUnavailable):
    """The server sends everything, whatever part is asked for."""


def answer_of(question: RangeRequest, status: int, headers: Message[str, str], where: str) -> RangeResponse:
    """What a 200 or 206 promises; SourceUnavailable or SourceChanged if it is not what was asked for."""
    length = _length(headers, where)
    etag = _etag(headers)
    if question.etag is not None and etag != question.etag:
        raise SourceChanged(f"{where} was replaced while it was read: its ETag was {question.etag}, and is {etag}")
    if "Content-Range" not in headers:
        if status == 206:
            raise SourceUnavailable(f"{where}: the server sent a part and does not say which")
        if question.start > 0 or question.etag is not None:
            raise RangesGone(f"{where}: the server sent everything when bytes from {question.start} were asked for")
        chunked = headers.get("Transfer-Encoding", "").strip().lower() == "chunked"
        return RangeResponse(length, size=length, etag=etag, ranged=False, ends_clearly=chunked or length is not None)
    # rclone's S3 server says 200 where it means 206; the range is what counts.
    return _ranged(question, headers["Content-Range"], length, etag, where)


def _ranged(
    question: RangeRequest, content_range: str, length: int | None, etag: str | None, where: str
) -> RangeResponse:
    parts = _CONTENT_RANGE.fullmatch(content_range.strip())
    first, last, size = (int(part) for part in parts.groups()) if parts else (-1, -1, -1)
    if question.stop is None or first != question.start or not first <= last < min(size, question.stop):
        raise SourceUnavailable(
            f"{where}: bytes {question.start}-{question.stop or ''} were asked for, and {content_range[:80]!r} came"
        )
    if question.size is not None and size != question.size:
        raise SourceChanged(f"{where} was replaced while it was read: it had {question.size} bytes, and has {size}")
    if last + 1 < min(size, question.stop) and question.size is None:
        raise SourceUnavailable(f"{where}: the server sent {content_range[:80]!r}, which is less than was asked for")
    if length is not None and length != last + 1 - first:
        raise SourceUnavailable(f"{where}: the server sent {length} bytes as {content_range[:80]!r}")
    # Parts may be joined only by a strong validator (RFC 9110, 15.3.7.3).
    return RangeResponse(length=last + 1 - first, size=size, etag=etag, ranged=is_strong(etag))


def is_strong(etag: str | None) -> bool:
    """Does an equal ETag mean equal bytes?"""
    return etag is not None and etag.startswith('"') and etag.isascii() and etag.isprintable()


def is_error_document(body: bytes) -> bool:
    """Does an answer that says all is well begin as the errors of S3 do? No image does."""
    return _ERROR_DOCUMENT.match(body) is not None and _S3_CODE.search(body) is not None


def error_of(
    question: RangeRequest, status: int, headers: Message[str, str], body: bytes, where: str, *, now: float
) -> ImageError:
    """The error that any other answer means; `body` is the beginning of what came with it, `now` is in seconds."""
    found = _S3_CODE.search(body)
    code = found[1].decode() if found else ""
    told = f"{where}: the server answers {status}{f' ({code})' if code else ''}"
    if status in {408, 425, 429} or status >= 500 or code in _BUSY_CODES:
        return Busy(told, wait=_wait(headers, now))
    if status == 412:
        return SourceChanged(f"{where} was replaced while it was read")
    if status == 416:
        return SourceChanged(f"{where} became shorter than {question.start + 1} bytes while it was read")
    if status in {404, 410} or code in _MISSING_CODES:
        what = "bucket" if code == "NoSuchBucket" else "object"
        return ObjectNotFound(f"there is no {what} {where}", hint="look at the spelling, the endpoint and the region")
    if region := _region(headers, body):
        return AccessDenied(f"{told}; the bucket is in region {region}", hint=f"set the region to {region}")
    if status in {401, 403, 407} or code in _DENIED_CODES:
        return AccessDenied(
            told,
            hint="look at the credentials, their rights (s3:GetObject) and this host's clock; without the right to list"
            " the bucket, S3 also says so of an object that is not there",
        )
    return Permanent(told, hint="look at the URL and the endpoint: this is not how an object is answered")


def _length(headers: Message[str, str], where: str) -> int | None:
    # With chunks a length means nothing (RFC 9112, 6.3).
    if "Transfer-Encoding" in headers or "Content-Length" not in headers:
        return None
    # Somebody on the way may have taken the one, and somebody else the other (RFC 9112, 6.3).
    told = {text.strip() for text in headers.get_all("Content-Length", [])}
    text = ", ".join(sorted(told))
    if not _LENGTH.fullmatch(text):
        raise SourceUnavailable(f"{where}: {text[:80]!r} is no Content-Length")
    return int(text)


def _etag(headers: Message[str, str]) -> str | None:
    """It is kept in rows and sent back: what is not plain text is none."""
    etag = headers.get("ETag")
    return etag if etag is not None and etag.isascii() and etag.isprintable() else None


def _wait(headers: Message[str, str], now: float) -> float:
    """Seconds that the server asks to be left alone: it may give their number, or a date."""
    text = headers.get("Retry-After", "").strip()
    if _LENGTH.fullmatch(text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        return max(0.0, (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now)
    except (ValueError, OverflowError, TypeError):
        return 0.0


def _region(headers: Message[str, str], body: bytes) -> str | None:
    if _REGION.fullmatch(told := headers.get("x-amz-bucket-region", "")) and (
        b"PermanentRedirect" in body or b"AuthorizationHeaderMalformed" in body or b"IllegalLocation" in body
    ):
        return told
    found = _S3_REGION.search(body)
    return found[1].decode() if found else None
