"""Which objects are one, however they are reached."""

from __future__ import annotations

import pytest

from holdfast_images.flows.lookup import Relation, is_derived, keys_of, relation_of
from holdfast_images.flows.schemas import DownloadRequest
from holdfast_images.model import image_id_of
from holdfast_images.source.location import FileObject, HttpObject, Location, S3Object, full_name

HERE = S3Object(bucket="images", key="a at http.tar", endpoint="http://127.0.0.1:9000")


def at(endpoint: str | None, *, bucket: str = "images", key: str = HERE.key) -> S3Object:
    return S3Object(bucket=bucket, key=key, endpoint=endpoint)


@pytest.mark.parametrize(
    "asked, relation",
    [
        (HERE, Relation.SAME),
        (at("http://localhost:9000"), Relation.SAME),
        (at("http://LOCALHOST:9000"), Relation.SAME),
        (at("http://[::1]:9000"), Relation.SAME),
        (at("http://localhost:9001"), Relation.ELSEWHERE),
        (at("https://store.example"), Relation.ELSEWHERE),
        (at(None), Relation.ELSEWHERE),
        (at(HERE.endpoint, bucket="staging"), Relation.OTHER),
        (at(HERE.endpoint, key="a"), Relation.OTHER),
        (at(HERE.endpoint, key="a at http.tar2"), Relation.OTHER),
        (FileObject(path="/a"), Relation.OTHER),
    ],
)
def test_an_object_is_its_bucket_and_key(asked: Location, relation: Relation) -> None:
    assert relation_of(full_name(HERE), asked) is relation


@pytest.mark.parametrize("first", ["https://Store.Example", "https://store.example:443", "https://store.example."])
def test_spellings_of_an_endpoint_are_one_store(first: str) -> None:
    assert relation_of(full_name(at(first)), at("https://store.example")) is Relation.SAME


def test_an_object_without_an_endpoint_may_have_got_one() -> None:
    assert relation_of(full_name(at(None)), at(None)) is Relation.SAME
    assert relation_of(full_name(at(None)), at("https://store.example")) is Relation.ELSEWHERE


def test_what_older_versions_did_not_record_is_taken_for_the_same() -> None:
    assert relation_of("", HERE) is Relation.SAME


def test_other_urls_are_other_objects() -> None:
    assert relation_of("https://a/x.tar", HttpObject(url="https://a/x.tar")) is Relation.SAME
    assert relation_of("https://a/x.tar", HttpObject(url="https://b/x.tar")) is Relation.OTHER


def test_the_key_comes_first_and_no_two_images_share_the_last_name() -> None:
    request = DownloadRequest(s3_key="a.tar", image_id="x", location=at(HERE.endpoint, key="a.tar"))

    assert keys_of(request) == ["a.tar", "s3://images/a.tar", "s3://images/a.tar at http://127.0.0.1:9000#x"]
    assert not is_derived(request)
    derived = image_id_of("images", "a.tar")
    assert is_derived(DownloadRequest(s3_key="a.tar", image_id=derived, location=request.location))
