"""What every source promises: file, S3 and https are read by one suite."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from holdfast_images.errors import ChecksumMismatch, ImageRefused, ObjectNotFound, SourceChanged
from holdfast_images.source.fetch import Fetched, fetch
from holdfast_images.source.location import Location, SourceSettings, location_of
from holdfast_images.source.partial import fingerprint_of, partials_of
from tests.support.images.lying_server import LyingServer, certificate_in
from tests.support.images.s3_server import S3Server, s3_server

RANGE = 64 << 10
LIMIT = 1 << 30


class Origin(msgspec.Struct, frozen=True):
    """A kind of source, and how an object gets into it."""

    put: Callable[[str, bytes], Location]
    settings: SourceSettings


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate_in(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["file", "s3", "https"])
def origin(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Origin]:
    match request.param:
        case "file":
            directory = tmp_path_factory.mktemp("origin")

            def put_file(key: str, content: bytes) -> Location:
                path = directory / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                return location_of(f"file://{quote(str(path))}")

            yield Origin(put_file, SourceSettings(range_bytes=RANGE))
        case "s3":
            server: S3Server = request.getfixturevalue("store")
            yield Origin(server.put, msgspec.structs.replace(server.settings, range_bytes=RANGE))
        case _:
            path: Path = request.getfixturevalue("certificate")
            monkeypatch.setenv("SSL_CERT_FILE", str(path))
            with LyingServer(path).running() as web:

                def put_page(key: str, content: bytes) -> Location:
                    web.content = content
                    return location_of(f"{web.url}/{quote(key)}")

                yield Origin(put_page, SourceSettings(range_bytes=RANGE, backoff_seconds=0.01))


@pytest.fixture
def bring(origin: Origin, tmp_path: Path) -> Callable[..., Fetched]:
    def call(location: Location, **options: object) -> Fetched:
        return fetch(location, tmp_path / "image.tar", **{"limit": LIMIT, "settings": origin.settings, **options})  # type: ignore[arg-type]

    return call


@pytest.mark.parametrize("size", [1, RANGE - 1, RANGE, RANGE + 1, 7 * RANGE, 7 * RANGE + 1, 40 * RANGE - 1])
def test_every_byte_arrives_and_is_hashed(
    origin: Origin, bring: Callable[..., Fetched], tmp_path: Path, size: int
) -> None:
    content = random.Random(size).randbytes(size)

    fetched = bring(origin.put("images/one.tar", content))

    assert (tmp_path / "image.tar").read_bytes() == content
    assert fetched.checksum == hashlib.sha256(content).hexdigest()
    assert fetched.size_bytes == size
    assert fetched.fingerprint == fingerprint_of(tmp_path / "image.tar")
    assert partials_of(tmp_path / "image.tar") == []


@pytest.mark.parametrize(
    "key",
    ["with space.tar", "ümlaut/日本.tar", "plus+and%percent.tar", "a&b=c;d,e.tar", "hash#question?.tar", "~'()*!$.tar"],
)
def test_a_key_may_have_odd_characters(origin: Origin, bring: Callable[..., Fetched], key: str) -> None:
    fetched = bring(origin.put(key, key.encode()))

    assert fetched.checksum == hashlib.sha256(key.encode()).hexdigest()


def test_an_empty_object_is_refused(origin: Origin, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    with pytest.raises(ImageRefused) as caught:
        bring(origin.put("empty.tar", b""))

    assert caught.value.code == "EMPTY"
    assert list(tmp_path.iterdir()) == []


def test_an_object_over_the_limit_is_refused_and_one_at_the_limit_is_not(
    origin: Origin, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    location = origin.put("big.tar", bytes(3 * RANGE))

    with pytest.raises(ImageRefused) as caught:
        bring(location, limit=3 * RANGE - 1)

    assert caught.value.code == "IMAGE_TOO_LARGE"
    assert list(tmp_path.iterdir()) == []
    assert bring(location, limit=3 * RANGE).size_bytes == 3 * RANGE


def test_a_pinned_digest_is_kept(origin: Origin, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    location = origin.put("pinned.tar", b"content")
    right = hashlib.sha256(b"content").hexdigest()

    assert bring(location, sha256=f"sha256:{right.upper()}").checksum == right

    (tmp_path / "image.tar").write_bytes(b"what was there before")
    with pytest.raises(ChecksumMismatch):
        bring(location, sha256="0" * 64)

    assert (tmp_path / "image.tar").read_bytes() == b"what was there before"
    assert partials_of(tmp_path / "image.tar") == []


def test_an_object_replaced_while_it_is_read_is_noticed(
    origin: Origin, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    location = origin.put("changing.tar", random.Random(1).randbytes(200 * RANGE))
    replaced: list[int] = []

    def replace(done: int, total: int | None) -> None:
        if not replaced:
            replaced.append(done)
            origin.put("changing.tar", random.Random(2).randbytes(200 * RANGE))

    with pytest.raises(SourceChanged):
        bring(location, on_progress=replace)

    assert list(tmp_path.iterdir()) == []


def test_whoever_asks_to_stop_is_heard_and_nothing_is_left(
    origin: Origin, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    seen: list[int] = []

    def check() -> None:
        if seen:
            raise Stop

    with pytest.raises(Stop):
        bring(origin.put("stop.tar", bytes(100 * RANGE)), check=check, on_progress=lambda done, _: seen.append(done))

    assert list(tmp_path.iterdir()) == []


def test_progress_grows_to_the_whole(origin: Origin, bring: Callable[..., Fetched]) -> None:
    told: list[tuple[int, int | None]] = []

    bring(origin.put("progress.tar", bytes(10 * RANGE + 5)), on_progress=lambda *now: told.append(now))

    assert told == sorted(told)
    assert told[-1] == (10 * RANGE + 5, 10 * RANGE + 5)


def test_a_second_fetch_replaces_the_first(origin: Origin, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    bring(origin.put("again.tar", b"first"))
    bring(origin.put("again.tar", b"second"))

    assert (tmp_path / "image.tar").read_bytes() == b"second"


@pytest.mark.parametrize("origin", ["file", "s3"], indirect=True)
def test_what_is_not_there_is_said_to_be_missing(origin: Origin, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    location = origin.put("there.tar", b"x")
    missing = (
        msgspec.structs.replace(location, path=location.path + "x")
        if hasattr(location, "path")
        else msgspec.structs.replace(location, key="elsewhere.tar")
    )

    with pytest.raises(ObjectNotFound):
        bring(missing)

    assert list(tmp_path.iterdir()) == []
