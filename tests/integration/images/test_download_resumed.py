"""A download goes on where it was: after a kill, a stop, a failure and a timeout. Bytes are counted at the server."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast import Engine, JobState
from holdfast_images.errors import ChecksumMismatch, SourceUnavailable
from holdfast_images.flows.context import FlowContext, Timeouts
from holdfast_images.flows.process import all_flows
from holdfast_images.flows.schemas import ProcessRequest, key_of
from holdfast_images.model import image_id_of
from holdfast_images.source.fetch import Fetched, fetch
from holdfast_images.source.location import SourceSettings
from holdfast_images.source.partial import partials_of
from tests.support.images.archives import member
from tests.support.images.lying_server import PATH, Exchange, LyingServer
from tests.support.images.small_image import context_at, context_with, small_image

RANGE = 128 << 10
CONTENT = random.Random(11).randbytes(24 * RANGE + 77)
SETTINGS = SourceSettings(range_bytes=RANGE, backoff_seconds=0.001, backoff_most_seconds=0.01, tries=2)
TOKEN = "job"


class Stop(Exception):
    pass


@pytest.fixture
def web() -> Iterator[LyingServer]:
    with LyingServer().running() as server:
        server.content = CONTENT
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "image.tar"


def bring(web: LyingServer, target: Path, **options: object) -> Fetched:
    given: dict[str, object] = {"token": TOKEN, "settings": SETTINGS, **options}
    return fetch(web.location, target, limit=1 << 30, **given)  # type: ignore[arg-type]


def stop_at(share: float) -> Callable[[int, int | None], None]:
    def progress(done: int, total: int | None) -> None:
        if done > share * len(CONTENT):
            raise Stop

    return progress


def stopped(web: LyingServer, target: Path, share: float = 0.7) -> int:
    """Bytes that the server has sent to a download that was stopped on its way."""
    with pytest.raises(Stop):
        bring(web, target, on_progress=stop_at(share))
    assert len(partials_of(target)) == 1
    sent, web.sent = web.sent, 0
    web.asked.clear()
    return sent


def arrived(target: Path) -> bool:
    return target.read_bytes() == CONTENT and partials_of(target) == []


def test_what_was_stopped_goes_on_behind_the_bytes_that_are_there(web: LyingServer, target: Path) -> None:
    sent = stopped(web, target)
    seen: list[int] = []
    fetched = bring(web, target, on_progress=lambda done, _: seen.append(done))

    assert arrived(target)
    assert fetched.size_bytes == len(CONTENT)
    assert sent > 0.7 * len(CONTENT)
    assert web.sent <= len(CONTENT) - 0.7 * len(CONTENT) + 1
    assert seen[0] >= 0.7 * len(CONTENT) - 1
    assert all(headers["If-Match"] == web.etag for _, headers in web.asked)


SCRIPT = """
import sys
from pathlib import Path
from holdfast_images.source.fetch import fetch
from holdfast_images.source.location import HttpObject
from holdfast_images.source.location import SourceSettings
fetch(HttpObject(url=sys.argv[1]), Path(sys.argv[2]), limit=1 << 30, token=sys.argv[3],
      settings=SourceSettings(range_bytes=int(sys.argv[4])), on_progress=lambda *now: print(*now, flush=True))
"""


def test_what_was_killed_goes_on_behind_the_bytes_that_are_there(web: LyingServer, target: Path) -> None:
    def all_but_the_last(exchange: Exchange) -> None:
        exchange.server.ending.wait() if exchange.asked_range[1] == len(CONTENT) else exchange.honest()

    web.lie = all_but_the_last
    command = [sys.executable, "-c", SCRIPT, web.url + PATH, str(target), TOKEN, str(RANGE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        counted = next(done for line in process.stdout if (done := int(line.split()[0])) > 0.9 * len(CONTENT))
        process.kill()
    web.lie, web.sent = None, 0
    bring(web, target)

    assert arrived(target)
    assert web.sent <= len(CONTENT) - counted + 1


@pytest.mark.parametrize("pause", [0.0, 0.2], ids=["asking-at-once", "asking-late"])
def test_a_failure_keeps_what_has_come(web: LyingServer, target: Path, pause: float) -> None:
    # So slow that not one range comes whole: what has come of it is kept, too. Whoever asks late for the first answer
    # finds that the connection was cut already.
    numbers = itertools.count()

    def cut(exchange: Exchange) -> None:
        exchange.honest(cut=70_000 if next(numbers) else 100_000)

    web.lie = cut
    settings = msgspec.structs.replace(SETTINGS, tries=1)
    with pytest.raises(SourceUnavailable):
        bring(web, target, settings=settings, connections=1, check=lambda: time.sleep(pause))
    web.lie, web.sent = None, 0
    bring(web, target)

    assert arrived(target)
    assert web.sent <= len(CONTENT) - 100_000 + 1


@pytest.mark.parametrize(
    "change", ["etag", "shorter", "ranges", "bytes", "record", "origin"], ids=lambda change: f"another-{change}"
)
def test_what_is_there_is_believed_only_if_everything_agrees(
    web: LyingServer, target: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(web, target)
    [partial] = partials_of(target)
    content = CONTENT
    if change == "etag":
        web.content = content = bytes(reversed(CONTENT))
    elif change == "shorter":
        web.content = content = CONTENT[: len(CONTENT) // 3]
    elif change == "ranges":
        web.lie = lambda exchange: exchange.say(200, CONTENT)
    elif change == "bytes":
        with partial.open("r+b") as file:
            file.seek(1000)
            file.write(b"?")
    elif change == "record":
        with partial.open("r+b") as file:
            file.truncate(partial.stat().st_size - 600)
    else:
        partial.rename(partial.with_name(".image.tar.other.partial"))
    bring(web, target, token="other" if change == "origin" else TOKEN)

    assert target.read_bytes() == content
    # From another place the same name is another object; here it is the same place, and goes on.
    assert web.sent <= 0.4 * len(CONTENT) if change == "origin" else web.sent >= len(content)


def test_bytes_of_another_place_are_not_gone_on_with(web: LyingServer, target: Path) -> None:
    stopped(web, target)
    with LyingServer().running() as other:
        other.content = CONTENT
        bring(other, target)

        assert other.sent >= len(CONTENT)
    assert arrived(target)


def test_all_of_it_there_is_asked_about_once_more(web: LyingServer, target: Path) -> None:
    def late(done: int, total: int | None) -> None:
        if done == total:
            raise Stop

    with pytest.raises(Stop):
        bring(web, target, on_progress=late)
    web.sent = 0
    bring(web, target)

    assert arrived(target)
    assert web.sent == 1


def test_content_that_is_not_the_one_asked_for_is_not_kept(web: LyingServer, target: Path) -> None:
    stopped(web, target)
    with pytest.raises(ChecksumMismatch):
        bring(web, target, sha256="0" * 64)

    assert list(target.parent.iterdir()) == []


def test_a_file_goes_on_too(tmp_path: Path, target: Path) -> None:
    from holdfast_images.source.location import FileObject

    source = tmp_path / "source"
    source.write_bytes(CONTENT)
    location = FileObject(path=str(source))
    with pytest.raises(Stop):
        fetch(location, target, limit=1 << 30, token=TOKEN, settings=SETTINGS, on_progress=stop_at(0.5))
    seen: list[int] = []
    fetch(location, target, limit=1 << 30, token=TOKEN, settings=SETTINGS, on_progress=lambda n, _: seen.append(n))

    assert arrived(target)
    assert seen[0] > 0.5 * len(CONTENT) - 1


def test_whoever_has_no_token_keeps_nothing(web: LyingServer, target: Path) -> None:
    with pytest.raises(Stop):
        bring(web, target, token=None, on_progress=stop_at(0.5))

    assert list(target.parent.iterdir()) == []


# --- by a job -----------------------------------------------------------------------------------------------------


def image_of(size: int) -> bytes:
    return small_image(member(b"rootfs/usr/large", random.Random(5).randbytes(size)))


def request_of(web: LyingServer) -> ProcessRequest:
    url = web.location.url
    return ProcessRequest(s3_key=url, image_id=image_id_of("web", "slow.tar"), location=web.location)


def paced(web: LyingServer, rate: int) -> Callable[[Exchange], None]:
    """Answers that come at so many bytes a second, and are counted as they go."""
    part = max(rate // 50, 1)

    def answer(exchange: Exchange) -> None:
        start, stop = exchange.asked_range
        exchange.honest(cut=0, stay=True)
        try:
            for at in range(start, stop, part):
                if exchange.server.ending.wait(part / rate):
                    return
                exchange.wfile.write(exchange.content[at : min(at + part, stop)])
                web.count(min(part, stop - at))
        except OSError:
            exchange.hang_up()

    return answer


def test_a_line_slower_than_the_timeout_is_no_failure(web: LyingServer, tmp_path: Path) -> None:
    web.content = image_of(9 << 20)
    web.lie = paced(web, 1 << 20)
    ctx: FlowContext = context_with(
        context_at(tmp_path), timeouts=Timeouts(download=3.0), source=msgspec.structs.replace(SETTINGS, tries=5)
    )
    with Engine.open(tmp_path / "state", flows=all_flows(ctx)) as engine, engine.worker():
        request = request_of(web)
        job = engine.submit("process-image", request, key=key_of(request))
        result = engine.wait(job, timeout=120)
        stage = next(child.job_id for child in engine.store.children(job) if child.name == "download")
        rewinds = [
            entry.reason or "" for entry in engine.store.journal(stage) if "download_timeout" in (entry.reason or "")
        ]
    ctx.catalog.close()

    assert result.state is JobState.SUCCEEDED
    assert rewinds
    assert "going on" in rewinds[0]
    assert "(3 s)" in rewinds[0]
    assert web.sent <= len(web.content) * 1.3


def test_a_line_that_brings_nothing_is_told_with_the_name_of_the_setting(web: LyingServer, tmp_path: Path) -> None:
    web.content = image_of(1 << 20)
    web.lie = paced(web, 2000)
    ctx = context_with(context_at(tmp_path), timeouts=Timeouts(download=0.5), source=SETTINGS)
    with Engine.open(tmp_path / "state", flows=all_flows(ctx)) as engine, engine.worker():
        request = request_of(web)
        result = engine.wait(engine.submit("process-image", request, key=key_of(request)), timeout=120)
    ctx.catalog.close()

    assert result.state is JobState.FAILED
    assert "download_timeout (0.5 s)" in (result.reason or "")
    assert list((tmp_path / "state/images").iterdir()) == []


def test_a_command_that_was_killed_goes_on(web: LyingServer, tmp_path: Path) -> None:
    web.content = image_of(80 << 20)
    web.lie = paced(web, 20 << 20)
    command = [
        *(str(Path(sys.executable).parent / "holdfast"), "--state", str(tmp_path / "state"), "--json"),
        *("process-image", "--source", web.location.url, "--image-id", "slow"),
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "AWS"))}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    while web.sent < 0.85 * len(web.content) and first.poll() is None:
        web.ending.wait(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    before, web.sent, web.lie = web.sent, 0, None
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert again.returncode == 0, again.stderr
    assert before >= 0.85 * len(web.content)
    # The default range is 4 MiB: two connections, and four buffers to spare.
    assert web.sent <= len(web.content) - before + (6 * 4 << 20)
    assert web.sent < len(web.content) / 2
