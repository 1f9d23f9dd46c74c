"""The way to the server: proxies, names, TLS, and what a server says that is meant for somebody else's eyes."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from holdfast_images.errors import (
    AccessDenied,
    ImageError,
    InvalidName,
    ObjectNotFound,
    Permanent,
    SourceUnavailable,
    SourceUntrusted,
)
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import (
    Credentials,
    HttpObject,
    Location,
    S3Object,
    Secret,
    SourceSettings,
    location_of,
)
from tests.support.images.lying_server import PATH, Exchange, LyingServer, certificate_in

RANGE = 128 << 10
CONTENT = os.urandom(5 * RANGE + 77)
SETTINGS = SourceSettings(
    range_bytes=RANGE,
    backoff_seconds=0.001,
    backoff_most_seconds=0.01,
    tries=4,
    credentials=Credentials(access_key_id="AKID", secret_access_key=Secret("hush")),
)


@pytest.fixture(autouse=True)
def nothing_of_this_hosts_own_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "SSL_CERT_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture
def web() -> Iterator[LyingServer]:
    with LyingServer().running() as server:
        server.content = CONTENT
        yield server


def bring(location: Location, target: Path, settings: SourceSettings = SETTINGS) -> bytes:
    fetch(location, target, limit=1 << 30, settings=settings)
    return target.read_bytes()


def refused(
    location: Location, target: Path, kind: type[ImageError], settings: SourceSettings = SETTINGS
) -> ImageError:
    with pytest.raises(kind) as caught:
        bring(location, target, settings)
    assert not target.exists()
    return caught.value


def in_bucket(server: LyingServer) -> S3Object:
    return S3Object(bucket="images", key="a.tar", endpoint=server.url)


# --- proxies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "127.0.0.2"])
@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_what_is_said_to_this_host_is_said_to_no_proxy(
    web: LyingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, host: str
) -> None:
    with LyingServer().running() as proxy:
        monkeypatch.setenv(variable, proxy.url)
        url = f"http://{host}:{web.server_address[1]}"
        web_answers = host != "127.0.0.2"  # where nobody listens
        signed = S3Object(bucket="images", key="a.tar", endpoint=url)
        if web_answers:
            assert bring(HttpObject(url=url + PATH), tmp_path / "x") == CONTENT
            assert bring(signed, tmp_path / "y") == CONTENT
        else:
            refused(signed, tmp_path / "x", SourceUnavailable)

    assert proxy.greetings == 0


def test_another_host_is_asked_through_the_proxy(
    web: LyingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", web.url)
    settings = SourceSettings(range_bytes=RANGE, allow_http=True)

    assert bring(HttpObject(url="http://images.example/a.tar"), tmp_path / "x", settings) == CONTENT
    assert {path for path, _ in web.asked} == {"http://images.example/a.tar"}


# --- what a server says -----------------------------------------------------------------------------------------------

HARMFUL = "\x1b\x07\x9b\x85\n\r\u2028"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x1b]0;owned\x07\x1b[2Jerror: none\r\n\r\n",
        b"HTTP/9.9\x1b[31m 200 OK\r\n\r\n",
        b"HTTP/1.1 302 F\r\nLocation: ftp://\x1bchost\x9b31m\x0b\x85/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 206 P\r\nContent-Range: bytes \x1b[2J\x9b1m\r\nETag: "x"\r\nContent-Length: 5\r\n\r\nhello',
        b"HTTP/1.1 200 P\r\nContent-Length: 5\x1b[2J\r\n\r\nhello",
        b"HTTP/1.1 403 \x1b[2J\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_nothing_a_server_says_can_steer_a_terminal(web: LyingServer, tmp_path: Path, answer: bytes) -> None:
    def say(exchange: Exchange) -> None:
        exchange.wfile.write(answer)
        exchange.hang_up()

    web.lie = say
    error = refused(web.location, tmp_path / "x", ImageError)

    assert not set(f"{error}{error.hint}") & set(HARMFUL)


def test_two_lengths_are_no_length(web: LyingServer, tmp_path: Path) -> None:
    def two(exchange: Exchange) -> None:
        exchange.send_response(200)
        exchange.send_header("Content-Length", "1000")
        exchange.send_header("Content-Length", "2000")
        exchange.end_headers()
        exchange.wfile.write(CONTENT[:2000])
        exchange.hang_up()

    web.lie = two

    assert "1000, 2000" in str(refused(web.location, tmp_path / "x", SourceUnavailable))


@pytest.mark.parametrize(
    "code, kind",
    [("NoSuchKey", ObjectNotFound), ("AccessDenied", AccessDenied), ("SlowDown", SourceUnavailable), ("X", Permanent)],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_an_error_that_says_all_is_well_is_an_error(
    web: LyingServer, tmp_path: Path, code: str, kind: type[ImageError], chunked: bool
) -> None:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>m</Message></Error>'.encode()
    headers: dict[str, str | None] = {}
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        headers = {"Content-Length": None, "Transfer-Encoding": "chunked"}
    web.lie = lambda exchange: exchange.say(200, body, headers)

    assert code in str(refused(web.location, tmp_path / "x", kind)) or kind is ObjectNotFound


@pytest.mark.parametrize("content", [b"<Error>not quite", b"<" * 70, b"<?xml version='1.0'?>" + bytes(9000)])
def test_what_only_begins_like_an_error_is_content(web: LyingServer, tmp_path: Path, content: bytes) -> None:
    web.content = content

    assert bring(web.location, tmp_path / "x") == content


@pytest.mark.parametrize("target", ["https://example.com:99999/x", "http://localhost:0/x", "https://example.com:x/"])
def test_a_redirect_to_a_port_that_cannot_be_is_refused_at_once(web: LyingServer, tmp_path: Path, target: str) -> None:
    web.lie = lambda exchange: exchange.say(302, b"", {"Location": target})
    refused(web.location, tmp_path / "x", SourceUntrusted)

    assert len(web.asked) == 1


def test_a_denial_in_the_middle_is_an_expired_address_and_asked_again(web: LyingServer, tmp_path: Path) -> None:
    denials = iter([True])

    def once(exchange: Exchange) -> None:
        # Not the first connection, which is served all the time.
        if exchange.asked_range[0] > 0 and next(denials, False):
            exchange.say(403, b"<Error><Code>ExpiredToken</Code></Error>")
        else:
            exchange.honest()

    web.lie = once

    assert bring(in_bucket(web), tmp_path / "x") == CONTENT
    assert next(denials, None) is None


def test_a_denial_that_stays_is_told_as_one(web: LyingServer, tmp_path: Path) -> None:
    def only_the_first(exchange: Exchange) -> None:
        exchange.say(403, b"<Error><Code>ExpiredToken</Code></Error>") if exchange.asked_range[0] else exchange.honest()

    web.lie = only_the_first
    error = refused(in_bucket(web), tmp_path / "x", AccessDenied)

    assert "ExpiredToken" in str(error)


@pytest.mark.parametrize("as_date", [False, True])
def test_a_server_that_asks_to_be_left_alone_is(web: LyingServer, tmp_path: Path, as_date: bool) -> None:
    times: list[float] = []
    answers = itertools.count()

    def busy(exchange: Exchange) -> None:
        times.append(time.monotonic())
        if next(answers) == 0:
            until = format_datetime(datetime.now(tz=UTC) + timedelta(seconds=3), usegmt=True)
            exchange.say(429, b"", {"Retry-After": until if as_date else "2"})
        else:
            exchange.honest()

    web.lie = busy

    assert bring(web.location, tmp_path / "x") == CONTENT
    assert times[1] - times[0] >= 1.9  # a date has no fractions of a second


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["there-is-no-such-host.invalid", "a..b", "x" * 64 + ".example"])
def test_a_host_that_does_not_exist_is_asked_for_once(tmp_path: Path, host: str) -> None:
    error = refused(HttpObject(url=f"https://{host}/a.tar"), tmp_path / "x", Permanent)

    assert f"there is no host {host}" in str(error)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9123", "minio.example", "minio.example:9000", "//minio.example"])
def test_an_endpoint_without_a_scheme_is_told_to_have_one(endpoint: str) -> None:
    with pytest.raises(InvalidName) as caught:
        location_of("s3://images/a.tar", settings=SourceSettings(endpoint=endpoint))

    assert "begin with https:// or http://" in (caught.value.hint or "")


# --- TLS --------------------------------------------------------------------------------------------------------------


@contextmanager
def secure(directory: Path, **options: object) -> Iterator[tuple[LyingServer, Path]]:
    directory.mkdir()
    certificate = certificate_in(directory, **options)  # type: ignore[arg-type]
    with LyingServer(certificate).running() as server:
        server.content = CONTENT
        yield server, directory / "public.pem"


def test_a_wrong_name_is_not_mended_by_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with secure(tmp_path / "tls", names="DNS:elsewhere.example") as (server, public):
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        error = refused(server.location, tmp_path / "x", SourceUntrusted)

        assert server.greetings == 1
    assert "CERT_FILE" not in (error.hint or "")
    assert "name" in (error.hint or "")


def test_an_old_certificate_is_not_mended_by_an_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with secure(tmp_path / "tls", days=-5) as (server, public):
        monkeypatch.setenv("SSL_CERT_FILE", str(public))
        error = refused(server.location, tmp_path / "x", SourceUntrusted)

    assert "expired" in str(error)
    assert "clock" in (error.hint or "")
    assert "CERT_FILE" not in (error.hint or "")


def test_an_authority_nobody_knows_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with secure(tmp_path / "tls") as (server, public), secure(tmp_path / "other") as (_, other):
        unknown = refused(in_bucket(server), tmp_path / "x", SourceUntrusted)
        monkeypatch.setenv("SSL_CERT_FILE", str(other))
        still_unknown = refused(server.location, tmp_path / "x", SourceUntrusted)
        monkeypatch.setenv("SSL_CERT_FILE", str(public))

        assert bring(server.location, tmp_path / "x") == CONTENT
    assert "SSL_CERT_FILE or AWS_CA_BUNDLE" in (unknown.hint or "")
    assert "SSL_CERT_FILE is set" in (still_unknown.hint or "")


def test_the_bundle_of_aws_holds_for_buckets_and_for_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secure(tmp_path / "tls") as (server, public):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(public))

        assert bring(in_bucket(server), tmp_path / "x") == CONTENT
        refused(server.location, tmp_path / "y", SourceUntrusted)


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "AWS_CA_BUNDLE"])
@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_bundle_that_is_none_is_told_by_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, content: bytes | None
) -> None:
    bundle = tmp_path / "bundle.pem"
    if content is not None:
        bundle.write_bytes(content)
    monkeypatch.setenv(variable, str(bundle))
    error = refused(S3Object(bucket="images", key="a", endpoint="https://localhost:9"), tmp_path / "x", InvalidName)

    assert str(error).startswith(f"{variable} names {bundle}")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_kind_of_tls_is_refused_at_once(tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_in(tmp_path))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    greetings = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                greetings.append(connection)
                try:
                    context.wrap_socket(connection, server_side=True)
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/x"
        error = refused(HttpObject(url=url), tmp_path / "x", SourceUntrusted)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()

    assert "TLS" in str(error)
    assert len(greetings) == 1


# --- this host's own limits -------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that limits hold for")
def test_threads_that_cannot_start_are_told_as_such(web: LyingServer) -> None:
    # Everything is imported before the user is another one, who cannot read it everywhere.
    script = (
        "import os, resource, sys, tempfile; from pathlib import Path; from holdfast_images.errors import NoThreads\n"
        "from holdfast_images.source.fetch import fetch; from holdfast_images.source.location import HttpObject\n"
        "with tempfile.TemporaryDirectory() as place:\n"
        "    os.chmod(place, 0o777)\n"
        "    fetch(HttpObject(url=sys.argv[1]), Path(place, 'x'), limit=1 << 30)\n"
        "    os.unlink(Path(place, 'x'))\n"
        "    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))\n"
        "    os.setuid(65534)\n"
        "    try: fetch(HttpObject(url=sys.argv[1]), Path(place, 'x'), limit=1 << 30)\n"
        "    except NoThreads as error: print(error, list(Path(place).iterdir()))\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, web.url + PATH], capture_output=True, text=True, check=True, cwd="/tmp"
    )

    assert "limit of processes" in ended.stdout
    assert ended.stdout.strip().endswith("[]")
