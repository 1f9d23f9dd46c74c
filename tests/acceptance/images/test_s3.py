"""Images out of a real S3 server, with the usual variables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.images.driving import FIELDS, HONEST, HOSTILE, ImageHoldfast
from tests.support.images.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.put("images/demo.tar", HONEST)
        server.put("images/hostile.tar", HOSTILE)
        yield server


@pytest.fixture
def with_keys(holdfast: ImageHoldfast, store: S3Server) -> ImageHoldfast:
    holdfast.environment |= {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key.text,
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_REGION": "us-east-1",
        "S3_BUCKET": BUCKET,
    }
    return holdfast


def test_a_key_in_the_bucket_of_the_environment_is_processed(with_keys: ImageHoldfast) -> None:
    data = with_keys.json("process-image", "--s3-key", "images/demo.tar")

    assert list(data) == FIELDS
    assert data["s3_key"] == "images/demo.tar"
    assert data["image_id"].startswith("demo-")
    assert data["size_bytes"] == len(HONEST)


def test_flags_say_the_same(with_keys: ImageHoldfast, store: S3Server) -> None:
    words = ("--s3-key", "images/demo.tar", "--bucket", BUCKET, "--endpoint", store.endpoint, "--region", "us-east-1")
    data = with_keys.json("process-image", *words, S3_BUCKET="another-one", AWS_ENDPOINT_URL="https://127.0.0.1:1")

    assert data["size_bytes"] == len(HONEST)


def test_a_url_says_the_same(with_keys: ImageHoldfast) -> None:
    by_url = with_keys.json("process-image", "--source", f"s3://{BUCKET}/images/demo.tar")
    by_key = with_keys.json("process-image", "--s3-key", "images/demo.tar")

    assert by_url["s3_key"] == by_key["s3_key"] == "images/demo.tar"
    assert by_url["device_id"] == by_key["device_id"]


def test_a_missing_key_is_not_found(with_keys: ImageHoldfast) -> None:
    done = with_keys("process-image", "--s3-key", "images/nowhere.tar", "--json")

    assert done.code == 4
    assert done.error["type"] == "ObjectNotFound"
    assert with_keys.left() == []


def test_a_hostile_image_is_refused_again_without_being_fetched_again(with_keys: ImageHoldfast) -> None:
    first = with_keys("process-image", "--s3-key", "images/hostile.tar", "--json")
    again = with_keys("process-image", "--s3-key", "images/hostile.tar", "--json")

    assert first.code == again.code == 3
    assert first.error == again.error
    assert with_keys.left() == []


def test_without_credentials_it_is_denied_and_no_secret_is_kept(with_keys: ImageHoldfast) -> None:
    done = with_keys("process-image", "--s3-key", "images/demo.tar", "--json", AWS_SECRET_ACCESS_KEY="wrong-secret")

    assert done.code == 1
    assert done.error["type"] == "AccessDenied"
    assert "wrong-secret" not in done.err
    assert "wrong-secret" not in with_keys.content()


def test_a_worker_fetches_with_its_own_credentials(with_keys: ImageHoldfast) -> None:
    with with_keys.worker():
        data = with_keys.json("process-image", "--s3-key", "images/demo.tar", AWS_SECRET_ACCESS_KEY=None)

    assert data["stages"]["download"]["outcome"] == "completed"
