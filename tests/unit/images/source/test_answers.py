"""Only the range that was asked for, of the object it was asked of, is an answer."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import Message

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.errors import AccessDenied, ObjectNotFound, Permanent, SourceChanged, SourceUnavailable
from holdfast_images.source.responses import Busy, RangeRequest, RangeResponse, answer_of, error_of, is_strong


def headers_of(**values: str) -> Message:
    message = Message()
    for name, value in values.items():
        message[name.replace("_", "-")] = value
    return message


def test_the_range_that_was_asked_for_is_an_answer() -> None:
    headers = headers_of(content_range="bytes 10-19/100", content_length="10", etag='"x"')

    answer = answer_of(RangeRequest(10, 20, '"x"', 100), 206, headers, "here")

    assert answer == RangeResponse(length=10, size=100, etag='"x"', ranged=True)


@given(
    start=st.integers(0, 50),
    length=st.integers(1, 50),
    first=st.integers(0, 100),
    last=st.integers(0, 100),
    size=st.integers(0, 101),
)
def test_an_accepted_range_is_inside_the_question_and_begins_where_it_does(
    start: int, length: int, first: int, last: int, size: int
) -> None:
    headers = headers_of(content_range=f"bytes {first}-{last}/{size}", etag='"x"')
    try:
        answer = answer_of(RangeRequest(start, start + length, '"x"', 100), 206, headers, "here")
    except (SourceUnavailable, SourceChanged):
        assert not (first == start and start <= last < min(start + length, 100) and size == 100)
    else:
        assert (first, size) == (start, 100)
        assert answer.length == last + 1 - first <= length


@given(st.text(max_size=40))
def test_no_text_that_is_no_range_is_taken_for_one(text: str) -> None:
    message = Message()
    message.add_header("Content-Range", text.replace("\r", "").replace("\n", ""))

    with pytest.raises(SourceUnavailable):
        answer_of(RangeRequest(5, 6), 206, message, "here")


def test_a_short_first_range_is_no_answer_and_a_short_later_one_is() -> None:
    headers = headers_of(content_range="bytes 0-4/100", etag='"x"')

    assert answer_of(RangeRequest(0, 10, '"x"', 100), 206, headers, "here").length == 5
    with pytest.raises(SourceUnavailable):
        answer_of(RangeRequest(0, 10), 206, headers, "here")


def test_an_answer_that_only_its_end_limits_says_so() -> None:
    assert not answer_of(RangeRequest(), 200, headers_of(), "here").ends_clearly
    assert answer_of(RangeRequest(), 200, headers_of(transfer_encoding="chunked"), "here").ends_clearly
    assert answer_of(RangeRequest(), 200, headers_of(content_length="3"), "here").ends_clearly


@pytest.mark.parametrize(
    "etag, strong", [('"x"', True), ('W/"x"', False), (None, False), ("x", False), ('"a\nb"', False)]
)
def test_only_a_strong_etag_means_equal_bytes(etag: str | None, strong: bool) -> None:
    assert is_strong(etag) is strong


@pytest.mark.parametrize(
    "status, body, kind",
    [
        (400, b"<Code>ExpiredToken</Code>", AccessDenied),
        (400, b"<Code>AuthorizationHeaderMalformed</Code><Region>eu-west-3</Region>", AccessDenied),
        (403, b"", AccessDenied),
        (404, b"<Code>NoSuchBucket</Code>", ObjectNotFound),
        (416, b"", SourceChanged),
        (503, b"<Code>SlowDown</Code>", Busy),
        (418, b"", Permanent),
        (200, b"<Error><Code>NoSuchKey</Code></Error>", ObjectNotFound),
        (200, b"<Error><Code>SlowDown</Code></Error>", Busy),
        (200, b"<Error><Code>ExpiredToken</Code></Error>", AccessDenied),
        (200, b"<Error><Code>Whatever</Code></Error>", Permanent),
    ],
)
def test_an_error_says_whether_trying_again_can_help(status: int, body: bytes, kind: type[Exception]) -> None:
    assert type(error_of(RangeRequest(), status, headers_of(), body, "here", now=0.0)) is kind


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("7", 7.0),
        ("", 0.0),
        ("-1", 0.0),
        ("soon", 0.0),
        ("Wed, 21 Oct 2026 07:28:00 GMT", 40.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("Wednesday, 21-Oct-26 07:28:00 GMT", 40.0),
        ("Wed, 99 Oct 2026 07:28:00 GMT", 0.0),
    ],
)
def test_a_busy_server_may_say_for_how_long_or_until_when(text: str, seconds: float) -> None:
    now = datetime(2026, 10, 21, 7, 27, 20, tzinfo=UTC).timestamp()
    error = error_of(RangeRequest(), 503, headers_of(retry_after=text), b"", "here", now=now)

    assert isinstance(error, Busy)
    assert error.wait == seconds
