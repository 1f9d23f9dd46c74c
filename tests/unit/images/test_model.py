"""Names are checked once, and what is derived from them never changes."""

from __future__ import annotations

import itertools
import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast_images.errors import InvalidName
from holdfast_images.model import (
    THIN_IDS,
    default_snapshot_name,
    device_id_candidates,
    device_name,
    ext4_uuid,
    image_id_of,
    snapshot_id_candidates,
    valid_bucket,
    valid_image_id,
    valid_key,
    valid_sha256,
    valid_snapshot_name,
)


@pytest.mark.parametrize("key", ["a", "images/debian 12.tar", "ü/日本.tar", "a+b%c", "..a/b..", "a" * 1024, "é" * 512])
def test_a_key_of_s3_is_taken_as_it_is(key: str) -> None:
    assert valid_key(key) == key


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "a/../b",
        "../a",
        "a/..",
        "./a",
        "a\\..\\b",
        "a\x00b",
        "a\nb",
        "a\x1b[0m",
        "a\x7f",
        "a\x85",
        "%2e%2e/a",
        "a/%2E%2e",
        "%252e",
        "%2fa",
        "a%5cb",
        "a%00",
        "a" * 1025,
        "é" * 513,
        chr(0xD800),
        "a\u2028b",
    ],
)
def test_a_key_that_hides_something_is_refused(key: str) -> None:
    with pytest.raises(InvalidName):
        valid_key(key)


@pytest.mark.parametrize("bucket", ["abc", "a.b-c", "0" * 63])
def test_a_bucket_is_taken(bucket: str) -> None:
    assert valid_bucket(bucket) == bucket


@pytest.mark.parametrize("bucket", ["", "ab", "a" * 64, "Abc", "a_b", "-ab", "ab-", "a..b", "1.2.3.4", "a/b", "abc\n"])
def test_what_is_no_bucket_is_refused(bucket: str) -> None:
    with pytest.raises(InvalidName):
        valid_bucket(bucket)


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "-a", ".a", "a/b", "a b", "a" * 64, "ä", "a\n"])
def test_what_cannot_name_a_file_and_a_device_is_no_image_id(name: str) -> None:
    with pytest.raises(InvalidName):
        valid_image_id(name)


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "a" * 128, "control", "thin-1", "ä", "a\n"])
def test_what_cannot_name_a_device_is_no_snapshot_name(name: str) -> None:
    with pytest.raises(InvalidName):
        valid_snapshot_name(name)


@pytest.mark.parametrize("name", ["a", "vm-1", "a:b@c+d=e#f_g.h", "a" * 127, "thin-x"])
def test_a_snapshot_name_is_taken(name: str) -> None:
    assert valid_snapshot_name(name) == name


def test_a_digest_is_taken_as_registries_and_people_write_it() -> None:
    assert valid_sha256("sha256:" + "AB" * 32) == "ab" * 32


@pytest.mark.parametrize("digest", ["", "ab", "g" * 64, "a" * 63, "a" * 65, "md5:" + "a" * 64, "a" * 64 + "\n"])
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(InvalidName):
        valid_sha256(digest)


# --- derived ------------------------------------------------------------------------------------------------------


def test_derived_names_are_those_of_every_version() -> None:
    assert image_id_of("bucket", "images/debian-12.tar.gz") == "debian-12-e28ee554fab2"
    assert list(itertools.islice(device_id_candidates("debian-12"), 3)) == [6912121, 10921400, 14930679]
    assert list(itertools.islice(snapshot_id_candidates(7, "vm-1"), 3)) == [9039712, 6151887, 3264062]
    assert ext4_uuid("debian-12") == "c24ff17b-144b-8566-a0d8-8e8258b0bcb1"
    assert device_name(7) == "thin-7"
    assert default_snapshot_name("debian-12") == "snap-debian-12"


@given(st.text(), st.text())
def test_every_source_has_an_image_id_that_may_be_one(bucket: str, key: str) -> None:
    assert valid_image_id(image_id_of(bucket, key).encode().decode())


@pytest.mark.parametrize(
    "one, other",
    [
        (("a", "b/c"), ("a/b", "c")),
        (("a", "x/i.tar"), ("a", "y/i.tar")),
        (("a", "i.tar"), ("b", "i.tar")),
        (("a", "i.tar"), ("a", "i.tar.gz")),
        (("a", "I.tar"), ("a", "i.tar")),
    ],
)
def test_two_sources_have_two_image_ids(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert image_id_of(*one) != image_id_of(*other)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", fullmatch=True))
def test_candidates_are_thin_ids_and_all_different(image: str) -> None:
    first = list(itertools.islice(device_id_candidates(image), 200))

    assert len(set(first)) == 200
    assert all(0 <= candidate < THIN_IDS for candidate in first)
    assert first == list(itertools.islice(device_id_candidates(image), 200))


@given(st.text(max_size=20))
def test_candidates_reach_every_id_of_the_pool(image: str) -> None:
    first, second, third = itertools.islice(device_id_candidates(image), 3)

    assert (second - first) % THIN_IDS == (third - second) % THIN_IDS
    assert (second - first) % 2 == 1, "an even step would leave out half of a power of two"


@given(st.text(alphabet="abc123-_", min_size=1, max_size=63))
def test_the_uuid_of_a_file_system_is_one(image: str) -> None:
    text = ext4_uuid(image)

    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)
    assert uuid.UUID(text).variant == uuid.RFC_4122
    assert text[14] == "8"
    assert text != ext4_uuid(image + "x")
