"""A source is named by a URL, or by bucket and key; what is a secret in it stays out of sight."""

from __future__ import annotations

import msgspec
import pytest

from holdfast_images.errors import InvalidName
from holdfast_images.source.http import address_of
from holdfast_images.source.location import (
    Credentials,
    FileObject,
    HttpObject,
    S3Object,
    Secret,
    SourceSettings,
    full_name,
    location_of,
    masked,
    origin_of,
    without_secrets,
)

SIGNED = "https://host/x.tar?X-Amz-Date=1&X-Amz-Signature=hush"


def test_a_url_and_a_bucket_with_a_key_name_the_same_object() -> None:
    assert location_of("s3://bucket/a/b.tar") == location_of(bucket="bucket", key="a/b.tar")


def test_the_settings_say_where_a_bucket_is() -> None:
    settings = SourceSettings(endpoint="https://store.example/", region="eu", anonymous=True)

    location = location_of("s3://bucket/a.tar", settings=settings)

    assert location == S3Object(
        bucket="bucket", key="a.tar", endpoint="https://store.example", region="eu", anonymous=True
    )


def test_a_full_name_tells_buckets_and_endpoints_apart_and_no_secrets() -> None:
    elsewhere = SourceSettings(endpoint="https://store.example")

    assert full_name(location_of("s3://bucket/a.tar")) == "s3://bucket/a.tar"
    assert full_name(location_of("s3://bucket/a.tar", settings=elsewhere)) == (
        "s3://bucket/a.tar at https://store.example"
    )
    assert full_name(location_of(SIGNED)) == "https://host/x.tar"
    assert full_name(location_of("https://host/x.tar?version=2")) == "https://host/x.tar?version=2"


def test_a_file_is_named_by_its_absolute_path() -> None:
    assert location_of("file:///srv/a%20b.tar") == FileObject(path="/srv/a b.tar")
    assert str(location_of("file:///srv/a%20b.tar")) == "file:///srv/a%20b.tar"


@pytest.mark.parametrize(
    "source",
    [
        "",
        "images/a.tar",
        "/srv/a.tar",
        "ftp://host/a",
        "s3://",
        "s3://bucket",
        "s3://bucket/",
        "s3://Bucket/a",
        "s3://bucket/../a",
        "s3://bucket/%2e%2e/a",
        "file://",
        "file://host/a",
        "file:///a%00b",
        "file:relative",
        "https://",
        "https:///path",
        "https://user:hush@host/",
        "https://host:port/",
        "https://host/a b",
        "https://höst/",
        "https://[::1/",
        "https://host/\n",
        "http://example.com/a.tar",
        "http://127.0.0.1.example.com/a",
    ],
)
def test_what_names_nothing_that_may_be_read_is_refused(source: str) -> None:
    with pytest.raises(InvalidName) as caught:
        location_of(source)

    assert "hush" not in str(caught.value)


def test_a_source_is_given_once() -> None:
    with pytest.raises(InvalidName):
        location_of()
    with pytest.raises(InvalidName):
        location_of("s3://bucket/a", key="a")


@pytest.mark.parametrize(
    "endpoint", ["http://store.example", "https://store.example/path", "store.example", "https://u@h"]
)
def test_an_endpoint_is_https_and_nothing_but_a_host(endpoint: str) -> None:
    with pytest.raises(InvalidName):
        location_of("s3://bucket/a", settings=SourceSettings(endpoint=endpoint))


def test_plain_http_is_for_this_host_unless_allowed() -> None:
    assert location_of("http://localhost:1/a") == HttpObject(url="http://localhost:1/a")
    assert location_of("http://h/a", settings=SourceSettings(allow_http=True)) == HttpObject(url="http://h/a")


def test_a_signature_is_kept_apart_and_never_shown() -> None:
    location = location_of(SIGNED)
    assert isinstance(location, HttpObject)

    assert location.signature is not None
    assert address_of(location, SourceSettings())() == SIGNED
    assert "hush" not in f"{location!r} {location}"
    assert b"hush" not in msgspec.json.encode(without_secrets(location))


def test_a_query_that_signs_nothing_is_part_of_the_url() -> None:
    assert location_of("https://host/x?version=2#part") == HttpObject(url="https://host/x?version=2")


@pytest.mark.parametrize(
    "url, shown",
    [
        (SIGNED, "https://host/x.tar?…"),
        ("https://user:hush@host/x", "https://host/x"),
        ("https://host/x#hush", "https://host/x"),
    ],
)
def test_a_message_shows_a_url_without_what_opens_it(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_keys_are_not_shown() -> None:
    keys = Credentials(access_key_id="id", secret_access_key=Secret("hush"), session_token=Secret("hush"))

    assert "hush" not in f"{SourceSettings(credentials=keys)!r} {keys} {keys.secret_access_key}"


def test_the_same_object_has_the_same_origin_whoever_signed_for_it() -> None:
    assert origin_of(location_of(SIGNED)) == origin_of(location_of("https://host/x.tar?X-Amz-Signature=other"))
    assert origin_of(location_of("s3://bucket/a/b")) == ("bucket", "a/b")
    assert origin_of(location_of("file:///a/b")) == ("file://", "/a/b")
    assert origin_of(location_of("https://host/a?v=1")) != origin_of(location_of("https://host/a?v=2"))


@pytest.mark.parametrize(
    "settings, url",
    [
        (SourceSettings(), "https://buck.s3.amazonaws.com/a%20b/%2B"),
        (SourceSettings(region="eu-west-3"), "https://buck.s3.eu-west-3.amazonaws.com/a%20b/%2B"),
        (SourceSettings(path_style=True), "https://s3.amazonaws.com/buck/a%20b/%2B"),
        (SourceSettings(endpoint="https://h:1"), "https://h:1/buck/a%20b/%2B"),
        (SourceSettings(endpoint="https://h:1", path_style=False), "https://buck.h:1/a%20b/%2B"),
    ],
)
@pytest.mark.parametrize("anonymous", [True, False])
def test_a_bucket_is_in_the_path_or_in_the_host(settings: SourceSettings, url: str, anonymous: bool) -> None:
    keys = Credentials(access_key_id="id", secret_access_key=Secret("hush"))
    settings = msgspec.structs.replace(settings, anonymous=anonymous, credentials=keys)
    location = location_of("s3://buck/a b/+", settings=settings)
    assert isinstance(location, S3Object)

    address, _, query = address_of(location, settings)().partition("?")

    assert address == url
    assert ("X-Amz-Signature" in query) is not anonymous
