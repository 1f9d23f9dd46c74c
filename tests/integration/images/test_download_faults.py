"""Servers that lie, networks that break, disks that fill and processes that die: a file is whole or not there."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast_images.errors import (
    AccessDenied,
    ImageError,
    ImageRefused,
    NoSpace,
    ObjectNotFound,
    Permanent,
    SourceChanged,
    SourceUnavailable,
    SourceUntrusted,
)
from holdfast_images.source.fetch import Fetched, fetch
from holdfast_images.source.location import HttpObject, SourceSettings, location_of
from holdfast_images.source.partial import partials_of, remove_partials
from tests.support.images.lying_server import PATH, Exchange, LyingServer, certificate_in
from tests.support.waiting import eventually

RANGE = 128 << 10
CONTENT = random.Random(7).randbytes(5 * RANGE + 77)
SETTINGS = SourceSettings(range_bytes=RANGE, backoff_seconds=0.001, backoff_most_seconds=0.01, tries=4)
IMPATIENT = SourceSettings(range_bytes=RANGE, backoff_seconds=0.001, stall_seconds=0.2, tries=2)


@pytest.fixture
def web() -> Iterator[LyingServer]:
    with LyingServer().running() as server:
        server.content = CONTENT
        yield server


@pytest.fixture
def bring(web: LyingServer, tmp_path: Path) -> Callable[..., Fetched]:
    def call(settings: SourceSettings = SETTINGS, limit: int = 1 << 30, sha256: str | None = None) -> Fetched:
        return fetch(web.location, tmp_path / "image.tar", limit=limit, settings=settings, sha256=sha256)

    return call


def expect_refused(
    bring: Callable[..., Fetched], tmp_path: Path, kind: type[ImageError], **options: object
) -> ImageError:
    """The error of a fetch that left nothing behind."""
    with pytest.raises(kind) as caught:
        bring(**options)
    assert list(tmp_path.iterdir()) == []
    return caught.value


def arrived(tmp_path: Path) -> bool:
    return (tmp_path / "image.tar").read_bytes() == CONTENT and partials_of(tmp_path / "image.tar") == []


# --- lies that a fetch sees through and outlives ----------------------------------------------------------------


def test_a_body_cut_short_is_asked_for_again_from_where_it_broke(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    chance = random.Random(3)
    cuts = iter([True] * 12)

    def cut(exchange: Exchange) -> None:
        exchange.honest(cut=chance.randrange(RANGE) if next(cuts, False) else None)

    web.lie = cut
    bring(SourceSettings(range_bytes=RANGE, backoff_seconds=0.001, tries=14))

    assert arrived(tmp_path)
    starts = [int(re.findall(r"\d+", headers["Range"])[0]) for _, headers in web.asked]
    assert any(start % RANGE for start in starts)
    assert all(headers["If-Match"] for _, headers in web.asked[13:])


def test_a_body_longer_than_its_length_adds_nothing(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    def longer(exchange: Exchange) -> None:
        exchange.honest()
        exchange.wfile.write(b"and then some" * 5000)

    web.lie = longer
    bring(SourceSettings(range_bytes=RANGE, backoff_seconds=0.001, tries=6))

    assert arrived(tmp_path)


def test_a_server_without_ranges_is_read_in_one_answer(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    web.lie = lambda exchange: exchange.say(200, exchange.content)

    fetched = bring()

    assert arrived(tmp_path)
    assert fetched.etag is None
    assert len(web.asked) == 1


def test_a_part_that_says_it_is_all_right_is_taken_as_a_part(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    def two_hundred(exchange: Exchange) -> None:
        start, stop = exchange.asked_range
        part = f"bytes {start}-{stop - 1}/{len(CONTENT)}"
        exchange.say(200, CONTENT[start:stop], {"Content-Range": part, "ETag": exchange.etag})

    web.lie = two_hundred
    bring()

    assert arrived(tmp_path)


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_parts_without_a_strong_etag_are_not_joined(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, etag: str | None
) -> None:
    web.lie = lambda exchange: exchange.honest(ETag=etag)
    bring()

    assert arrived(tmp_path)
    assert ["Range" in headers for _, headers in web.asked] == [True, False]


def test_an_answer_in_chunks_is_put_together(web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    def chunked(exchange: Exchange) -> None:
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in batches(CONTENT, 70_001))
        exchange.say(200, chunks + b"0\r\n\r\n", {"Content-Length": None, "Transfer-Encoding": "chunked"})

    web.lie = chunked
    bring()

    assert arrived(tmp_path)


def batches(content: bytes, size: int) -> Iterator[bytes]:
    return (content[start : start + size] for start in range(0, len(content), size))


def test_the_objects_own_bytes_are_kept_whatever_the_server_calls_them(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    web.content = gzip.compress(CONTENT, mtime=0)
    web.lie = lambda exchange: exchange.honest(Content_Encoding="gzip")
    bring()

    assert (tmp_path / "image.tar").read_bytes() == web.content
    assert {headers["Accept-Encoding"] for _, headers in web.asked} == {"identity"}


def test_a_server_that_is_busy_for_a_while_is_asked_again(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    answers = itertools.count()

    def busy(exchange: Exchange) -> None:
        status = {0: 503, 1: 429, 4: 500, 6: 502}.get(next(answers))
        exchange.say(status, b"", {"Retry-After": "0"}) if status else exchange.honest()

    web.lie = busy
    bring()

    assert arrived(tmp_path)


def test_a_redirect_is_followed(web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    def redirect(exchange: Exchange) -> None:
        exchange.say(302, b"", {"Location": "/real?sig=1"}) if exchange.path == PATH else exchange.honest()

    web.lie = redirect
    bring()

    assert arrived(tmp_path)


def test_a_redirect_whose_target_expires_is_asked_for_again(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    numbers = itertools.count(1)
    uses: dict[str, int] = {}

    def expiring(exchange: Exchange) -> None:
        if exchange.path == PATH:
            exchange.say(302, b"", {"Location": f"/once?token={next(numbers)}"})
            return
        uses[exchange.path] = uses.get(exchange.path, 0) + 1
        exchange.honest() if uses[exchange.path] <= 2 else exchange.say(403)

    web.lie = expiring
    bring()

    assert arrived(tmp_path)


# --- lies that end a fetch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status, kind",
    [
        (403, AccessDenied),
        (401, AccessDenied),
        (404, ObjectNotFound),
        (410, ObjectNotFound),
        (412, SourceChanged),
        (429, SourceUnavailable),
        (500, SourceUnavailable),
        (503, SourceUnavailable),
        (400, Permanent),
        (302, Permanent),
    ],
)
def test_a_status_says_whether_trying_again_can_help(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, status: int, kind: type[ImageError]
) -> None:
    web.lie = lambda exchange: exchange.say(status)

    assert web.url in str(expect_refused(bring, tmp_path, kind))


@pytest.mark.parametrize(
    "content_range",
    ["bytes 1-{last}/{size}", "bytes 0-{last}/*", "bytes 0-9/{size}", "bytes 0-{size}/{size}", "octets 0-1/2", ""],
)
def test_a_range_that_was_not_asked_for_is_not_believed(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, content_range: str
) -> None:
    told = content_range.format(last=RANGE - 1, size=len(CONTENT))
    web.lie = lambda exchange: exchange.honest(Content_Range=told)

    expect_refused(bring, tmp_path, SourceUnavailable)


def test_everything_instead_of_a_later_range_is_not_believed(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    def forgetful(exchange: Exchange) -> None:
        if exchange.asked_range[0]:
            exchange.say(200, CONTENT, {"ETag": exchange.etag})
        else:
            exchange.honest()

    web.lie = forgetful

    expect_refused(bring, tmp_path, SourceUnavailable)


def test_a_replaced_object_is_noticed_without_the_servers_help(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    etags = (f'"{number}"' for number in itertools.count())
    web.lie = lambda exchange: exchange.honest(ETag=next(etags))

    expect_refused(bring, tmp_path, SourceChanged)


@pytest.mark.parametrize("length", ["-1", "1e3", "12x", "99999999999999999999"])
def test_a_length_that_is_no_number_is_not_believed(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, length: str
) -> None:
    web.lie = lambda exchange: exchange.say(200, CONTENT, {"Content-Length": length})

    expect_refused(bring, tmp_path, SourceUnavailable)


def test_an_answer_of_unknown_length_needs_a_pinned_digest(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.say(200, CONTENT, {"Content-Length": None, "Connection": "close"}, cut=len(CONTENT))

    web.lie = endless
    error = expect_refused(bring, tmp_path, ImageRefused)
    bring(sha256=hashlib.sha256(CONTENT).hexdigest())

    assert isinstance(error, ImageRefused)
    assert error.code == "SIZE_UNKNOWN"
    assert arrived(tmp_path)


def test_an_endless_answer_is_stopped_at_the_limit(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.say(200, b"", {"Content-Length": None, "Transfer-Encoding": "chunked"}, cut=0, stay=True)
        while not exchange.server.ending.is_set():
            exchange.wfile.write(b"10000\r\n" + bytes(65536) + b"\r\n")

    web.lie = endless
    error = expect_refused(bring, tmp_path, ImageRefused, limit=10 * RANGE)

    assert isinstance(error, ImageRefused)
    assert error.code == "IMAGE_TOO_LARGE"


@pytest.mark.parametrize("chunks", [b"5\r\nhel", b"zz\r\nhello\r\n", b"5\r\nhello\r\n"])
def test_chunks_that_break_off_are_no_end(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, chunks: bytes
) -> None:
    web.lie = lambda exchange: exchange.say(
        200, chunks, {"Content-Length": None, "Transfer-Encoding": "chunked"}, cut=len(chunks)
    )

    expect_refused(bring, tmp_path, SourceUnavailable)


@pytest.mark.parametrize(
    "answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 999999 ?\r\n\r\n", b"HTTP/1.1 200 OK\r\nA" * 70_000]
)
def test_what_is_not_http_is_no_answer(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, answer: bytes
) -> None:
    def babble(exchange: Exchange) -> None:
        exchange.wfile.write(answer)
        exchange.hang_up()

    web.lie = babble

    expect_refused(bring, tmp_path, SourceUnavailable)


def silent(exchange: Exchange) -> None:
    exchange.server.ending.wait()


def silent_after_the_headers(exchange: Exchange) -> None:
    exchange.honest(cut=0, stay=True)
    exchange.server.ending.wait()


def dripping(exchange: Exchange) -> None:
    exchange.honest(cut=0, stay=True)
    while not exchange.server.ending.wait(0.01):
        exchange.wfile.write(b".")


def dripping_headers(exchange: Exchange) -> None:
    exchange.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while not exchange.server.ending.wait(0.01):
        exchange.wfile.write(b".")


@pytest.mark.parametrize("lie", [silent, silent_after_the_headers, dripping, dripping_headers])
def test_a_server_that_brings_next_to_nothing_is_given_up(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, lie: Callable[[Exchange], None]
) -> None:
    web.lie = lie

    assert "stalls" in str(expect_refused(bring, tmp_path, SourceUnavailable, settings=IMPATIENT))


def test_a_stop_is_heard_while_the_server_is_silent(web: LyingServer, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def check() -> None:
        if web.asked:
            raise Stop

    web.lie = silent

    with pytest.raises(Stop):
        fetch(web.location, tmp_path / "x", limit=1, check=check)

    eventually(lambda: not [t for t in threading.enumerate() if t.name == "holdfast-fetch"], "no thread is left")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://localhost/x", "http://example.com/x", "gopher:x", "http://[x"]
)
def test_a_redirect_to_where_nothing_may_be_read_is_refused(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path, target: str
) -> None:
    web.lie = lambda exchange: exchange.say(302, b"", {"Location": target})

    expect_refused(bring, tmp_path, SourceUntrusted)


def test_plain_http_to_another_host_is_not_asked_for_a_job_either(tmp_path: Path) -> None:
    with pytest.raises(SourceUntrusted):
        fetch(HttpObject(url="http://example.com/x.tar"), tmp_path / "x", limit=1)

    assert list(tmp_path.iterdir()) == []


def test_a_redirect_in_a_circle_ends(web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path) -> None:
    web.lie = lambda exchange: exchange.say(302, b"", {"Location": exchange.path})

    expect_refused(bring, tmp_path, SourceUntrusted)
    assert len(web.asked) < 10


def test_https_is_not_left_for_http(
    web: LyingServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certificate_in(tmp_path_factory.mktemp("tls"))
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with LyingServer(certificate).running() as secure:
        secure.lie = lambda exchange: exchange.say(302, b"", {"Location": web.url + PATH})

        with pytest.raises(SourceUntrusted):
            fetch(secure.location, tmp_path / "x", limit=1 << 30)

    assert web.asked == []


def test_a_certificate_that_nobody_vouches_for_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with LyingServer(certificate_in(tmp_path_factory.mktemp("tls"))).running() as secure:
        with pytest.raises(SourceUntrusted, match="certificate"):
            fetch(secure.location, tmp_path / "x", limit=1 << 30)

        assert secure.asked == []


def test_a_port_that_speaks_no_tls_is_told(web: LyingServer, tmp_path: Path) -> None:
    location = HttpObject(url=web.url.replace("http:", "https:") + PATH)

    with pytest.raises(SourceUntrusted, match="does not speak TLS"):
        fetch(location, tmp_path / "x", limit=1, settings=SETTINGS)

    assert web.greetings == 1


def test_nobody_listening_is_a_passing_trouble(tmp_path: Path) -> None:
    with LyingServer() as gone:
        location = gone.location

    with pytest.raises(SourceUnavailable, match="refused"):
        fetch(location, tmp_path / "x", limit=1, settings=SETTINGS)


def test_no_message_shows_a_signature(web: LyingServer, tmp_path: Path) -> None:
    location = location_of(f"{web.url}/x.tar?X-Amz-Signature=hush&X-Amz-Date=1")
    web.lie = lambda exchange: exchange.say(403)

    with pytest.raises(AccessDenied) as caught:
        fetch(location, tmp_path / "x", limit=1)

    assert web.asked[0][0] == "/x.tar?X-Amz-Signature=hush&X-Amz-Date=1"
    assert "hush" not in f"{caught.value!r} {caught.value.hint} {location!r} {location}"


# --- this host's own trouble ---------------------------------------------------------------------------------------


def test_a_full_disk_is_told_with_the_numbers_and_nothing_is_left(web: LyingServer, tmp_path: Path) -> None:
    script = (
        "import resource, sys; from pathlib import Path; from holdfast_images.errors import NoSpace\n"
        "from holdfast_images.source.fetch import fetch; from holdfast_images.source.location import HttpObject\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "try: fetch(HttpObject(url=sys.argv[1]), Path(sys.argv[2]), limit=1 << 30)\n"
        "except NoSpace as error: print(error)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, web.url + PATH, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )

    assert f"{len(CONTENT)} bytes are needed" in ended.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("says_length", [True, False])
def test_a_file_system_without_room_keeps_what_it_had(web: LyingServer, tmp_path: Path, says_length: bool) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(small)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        (small / "other").write_bytes(b"stays")
        if not says_length:
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(CONTENT), CONTENT)
            headers: dict[str, str | None] = {"Content-Length": None, "Transfer-Encoding": "chunked"}
            web.lie = lambda exchange: exchange.say(200, chunks, headers)
        with pytest.raises(NoSpace, match="are free"):
            fetch(web.location, small / "x", limit=1 << 30, settings=SETTINGS)

        assert [path.name for path in small.iterdir()] == ["other"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_killed_fetch_leaves_a_hidden_file_that_is_collected(web: LyingServer, tmp_path: Path) -> None:
    def first_range_only(exchange: Exchange) -> None:
        exchange.server.ending.wait() if exchange.asked_range[0] else exchange.honest()

    web.lie = first_range_only
    target = tmp_path / "image.tar"
    target.write_bytes(b"before")
    script = (
        "import sys; from pathlib import Path; from holdfast_images.source.fetch import fetch\n"
        "from holdfast_images.source.location import HttpObject\n"
        "from holdfast_images.source.location import SourceSettings\n"
        "fetch(HttpObject(url=sys.argv[1]), Path(sys.argv[2]), limit=1 << 30,"
        f" settings=SourceSettings(range_bytes={RANGE}), on_progress=lambda *now: print(now, flush=True))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, web.url + PATH, str(target)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        process.stdout.readline()
        while_alive = remove_partials(target)
        left = partials_of(target)
        process.kill()

    assert while_alive == []
    assert len(left) == 1
    assert target.read_bytes() == b"before"
    assert remove_partials(target) == left
    assert [path.name for path in tmp_path.iterdir()] == ["image.tar"]


def test_memory_does_not_grow_with_the_object(web: LyingServer, tmp_path: Path) -> None:
    web.content = bytes(200 << 20)
    script = (
        "import sys; from pathlib import Path; from holdfast_images.source.fetch import fetch\n"
        "from holdfast_images.source.location import HttpObject\n"
        "fetch(HttpObject(url=sys.argv[1]), Path(sys.argv[2]), limit=1 << 30)\n"
        "print(Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, web.url + PATH, str(tmp_path / "x")], capture_output=True, text=True, check=True
    )

    assert int(ended.stdout) < 100 << 10


def test_a_slow_first_byte_is_answered_with_more_connections(
    web: LyingServer, bring: Callable[..., Fetched], tmp_path: Path
) -> None:

    def late(exchange: Exchange) -> None:
        exchange.server.ending.wait(0.05)
        exchange.honest()

    web.content = bytes(100 * RANGE)
    web.lie = late
    most = 0

    def look(done: int, total: int | None) -> None:
        nonlocal most
        most = max(most, len([t for t in threading.enumerate() if t.name == "holdfast-fetch"]))

    fetch(web.location, tmp_path / "x", limit=1 << 30, settings=SETTINGS, on_progress=look)

    assert most > 2
    assert most <= SETTINGS.most_connections


def test_a_run_that_fetches_nothing_loads_no_client() -> None:
    script = (
        "import sys; import holdfast_images.source.fetch, holdfast_images.source.location,"
        " holdfast_images.source.partial, holdfast_images.source.partial\n"
        "print(sorted(set(sys.modules) & {'obstore', 'ssl', 'http.client', 'asyncio', 'threading', 'urllib.request'}))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert loaded.strip() == "[]"
