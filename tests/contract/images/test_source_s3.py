"""What only S3 has: signatures, anonymous reading, buckets that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast_images.errors import AccessDenied, ObjectNotFound
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import Credentials, Secret, location_of
from tests.support.images.lying_server import CuttingProxy, Exchange, LyingServer
from tests.support.images.s3_server import BUCKET, CREDENTIALS, S3Server, s3_server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_credentials_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_wrong_credentials_are_denied_and_not_shown(store: S3Server, tmp_path: Path) -> None:
    location = store.put("secret.tar", b"x")
    wrong = Credentials(access_key_id="tester", secret_access_key=Secret("hush-hush-hush"))
    settings = msgspec.structs.replace(store.settings, credentials=wrong)

    with pytest.raises(AccessDenied) as caught:
        fetch(location, tmp_path / "x", limit=10, settings=settings)

    assert "SignatureDoesNotMatch" in str(caught.value)
    assert "hush" not in f"{caught.value!r} {caught.value.hint} {settings!r}"
    assert "X-Amz" not in f"{caught.value!r}"
    assert list(tmp_path.iterdir()) == []


def test_credentials_may_come_from_the_environment(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = store.put("environment.tar", b"from the environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret_access_key.text)

    fetch(location, tmp_path / "x", limit=99, settings=msgspec.structs.replace(store.settings, credentials=None))

    assert (tmp_path / "x").read_bytes() == b"from the environment"


def test_an_anonymous_reader_is_denied_what_is_not_public(store: S3Server, tmp_path: Path) -> None:
    store.put("private.tar", b"x")
    settings = msgspec.structs.replace(store.settings, anonymous=True, credentials=None)

    with pytest.raises(AccessDenied, match="AccessDenied"):
        fetch(location_of(f"s3://{BUCKET}/private.tar", settings=settings), tmp_path / "x", limit=10, settings=settings)


def test_a_host_without_credentials_is_told_so_at_once(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = store.put("x.tar", b"x")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")

    with pytest.raises(AccessDenied, match="no credentials"):
        fetch(location, tmp_path / "x", limit=10, settings=msgspec.structs.replace(store.settings, credentials=None))

    assert list(tmp_path.iterdir()) == []


def test_an_anonymous_reader_signs_nothing(tmp_path: Path) -> None:
    with LyingServer().running() as web:
        web.content = b"public"
        settings = msgspec.structs.replace(S3Server(web.url).settings, anonymous=True)

        fetch(location_of("s3://bucket/a b+c.tar", settings=settings), tmp_path / "x", limit=10, settings=settings)

        assert [path for path, _ in web.asked] == ["/bucket/a%20b%2Bc.tar"]
        assert "Authorization" not in web.asked[0][1]


def test_a_bucket_that_is_not_there_is_named(store: S3Server, tmp_path: Path) -> None:
    location = location_of("s3://no-such-bucket/x.tar", settings=store.settings)

    with pytest.raises(ObjectNotFound, match="no bucket s3://no-such-bucket"):
        fetch(location, tmp_path / "x", limit=10, settings=store.settings)


def test_a_bucket_in_another_region_is_told(tmp_path: Path) -> None:
    def elsewhere(exchange: Exchange) -> None:
        body = b"<Error><Code>PermanentRedirect</Code></Error>"
        exchange.say(301, body, {"x-amz-bucket-region": "eu-west-3"})

    with LyingServer().running() as web:
        web.lie = elsewhere
        settings = S3Server(web.url).settings

        with pytest.raises(AccessDenied) as caught:
            fetch(location_of("s3://bucket/x", settings=settings), tmp_path / "x", limit=10, settings=settings)

    assert caught.value.hint == "set the region to eu-west-3"


@pytest.mark.parametrize("seed", range(4))
def test_cut_connections_lose_no_byte(store: S3Server, tmp_path: Path, seed: int) -> None:
    content = bytes(range(256)) * 16384
    store.put("cut.tar", content)
    port = int(store.endpoint.rpartition(":")[2])
    with CuttingProxy(port, cuts=25, seed=seed).running() as proxy:
        settings = msgspec.structs.replace(
            store.settings,
            endpoint=f"http://127.0.0.1:{proxy.port}",
            range_bytes=1 << 20,
            tries=30,
            backoff_seconds=0.001,
        )
        fetched = fetch(
            location_of(f"s3://{BUCKET}/cut.tar", settings=settings), tmp_path / "x", limit=1 << 30, settings=settings
        )

    assert (tmp_path / "x").read_bytes() == content
    assert fetched.size_bytes == len(content)
    assert proxy.cuts_left < 25
