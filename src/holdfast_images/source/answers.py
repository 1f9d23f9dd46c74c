"""What an answer to a GET means: status and headers judged against what was asked. Pure."""

from __future__ import annotations

import re
from email.message import Message

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
# Clocks, tokens and signatures: S3 answers some of them with 400.
_DENIED_CODES = {
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "AuthorizationHeaderMalformed",
    "InvalidRequest",
}


class Question(msgspec.Struct, frozen=True):
    """Bytes `start` up to, not including, `stop`; None asks for everything in one answer."""

    start: int = 0
    stop: int | None = None
    etag: str | None = None
    size: int | None = None
    """What the first answer said, and every other must repeat."""


class Answer(msgspec.Struct, frozen=True):
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


def answer_of(question: Question, status: int, headers: Message[str, str], where: str) -> Answer:
    """What a 200 or 206 promises; SourceUnavailable or SourceChanged if it is not what was asked for."""
    length = _length(headers, where)
    etag = headers.get("ETag")
    if question.etag is not None and etag != question.etag:
        raise SourceChanged(f"{where} was replaced while it was read: its ETag was {question.etag}, and is {etag}")
    if "Content-Range" not in headers:
        if status == 206:
            raise SourceUnavailable(f"{where}: the server sent a part and does not say which")
        if question.start > 0 or question.etag is not None:
            raise SourceUnavailable(
                f"{where}: the server sent everything when bytes from {question.start} were asked for"
            )
        chunked = headers.get("Transfer-Encoding", "").strip().lower() == "chunked"
        return Answer(length, size=length, etag=etag, ranged=False, ends_clearly=chunked or length is not None)
    # rclone's S3 server says 200 where it means 206; the range is what counts.
    return _ranged(question, headers["Content-Range"], length, etag, where)


def _ranged(question: Question, content_range: str, length: int | None, etag: str | None, where: str) -> Answer:
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
    return Answer(length=last + 1 - first, size=size, etag=etag, ranged=is_strong(etag))


def is_strong(etag: str | None) -> bool:
    """Does an equal ETag mean equal bytes?"""
    return etag is not None and etag.startswith('"') and etag.isascii() and etag.isprintable()


def error_of(question: Question, status: int, headers: Message[str, str], body: bytes, where: str) -> ImageError:
    """The error that any other status means; `body` is the beginning of what came with it."""
    found = _S3_CODE.search(body)
    code = found[1].decode() if found else ""
    told = f"{where}: the server answers {status}{f' ({code})' if code else ''}"
    if status in {408, 425, 429} or status >= 500:
        return Busy(told, wait=_wait(headers))
    if status == 412:
        return SourceChanged(f"{where} was replaced while it was read")
    if status == 416:
        return SourceChanged(f"{where} became shorter than {question.start + 1} bytes while it was read")
    if status in {404, 410}:
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
    text = headers["Content-Length"].strip()
    if not _LENGTH.fullmatch(text):
        raise SourceUnavailable(f"{where}: {text[:80]!r} is no Content-Length")
    return int(text)


def _wait(headers: Message[str, str]) -> float:
    text = headers.get("Retry-After", "").strip()
    return float(text) if _LENGTH.fullmatch(text) else 0.0


def _region(headers: Message[str, str], body: bytes) -> str | None:
    if _REGION.fullmatch(told := headers.get("x-amz-bucket-region", "")) and (
        b"PermanentRedirect" in body or b"AuthorizationHeaderMalformed" in body or b"IllegalLocation" in body
    ):
        return told
    found = _S3_REGION.search(body)
    return found[1].decode() if found else None
