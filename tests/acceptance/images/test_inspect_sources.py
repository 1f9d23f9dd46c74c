"""`inspect` takes what process-image takes: a file, a URL, an object in a bucket."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.images.driving import HONEST, HOSTILE, ImageHoldfast
from tests.support.images.lying_server import LyingServer


@pytest.fixture
def web() -> Iterator[LyingServer]:
    with LyingServer().running() as server:
        server.content = HOSTILE
        yield server


@pytest.fixture
def holdfast(tmp_path: Path) -> ImageHoldfast:
    holdfast = ImageHoldfast(tmp_path)
    (tmp_path / "temporary").mkdir()
    holdfast.environment["TMPDIR"] = str(tmp_path / "temporary")
    return holdfast


def test_an_object_is_inspected_wherever_it_is_and_nothing_is_left(holdfast: ImageHoldfast, web: LyingServer) -> None:
    bucket = ("--bucket", "images", "--endpoint", web.url, "--anonymous")
    ways = [
        ("--source", web.location.url),
        (web.location.url,),
        ("--s3-key", "a/b.tar", *bucket),
        ("s3://images/a/b.tar", "--endpoint", web.url, "--anonymous"),
        (holdfast.source(HOSTILE),),
    ]
    ended = [holdfast("--json", "inspect", *way) for way in ways]

    assert [each.code for each in ended] == [3] * len(ways)
    assert all(each.data["findings"] == ended[0].data["findings"] for each in ended)
    assert list((holdfast.directory / "temporary").iterdir()) == []
    assert not holdfast.state.exists()


def test_an_object_that_is_acceptable_or_not_there_says_so(holdfast: ImageHoldfast, web: LyingServer) -> None:
    web.content = HONEST

    assert holdfast("inspect", web.location.url).code == 0
    assert holdfast("inspect", web.location.url, "--sha256", "0" * 64).code == 1
    web.lie = lambda exchange: exchange.say(404)
    assert holdfast("inspect", web.location.url).code == 4
    assert holdfast("inspect", "x.tar", "--source", web.location.url).code == 2
    assert holdfast("inspect").code == 2
    assert list((holdfast.directory / "temporary").iterdir()) == []


def test_the_hint_of_a_refused_image_can_be_followed(holdfast: ImageHoldfast, web: LyingServer) -> None:
    refused = holdfast("process-image", "--source", web.location.url)
    hint = re.search(r"hint: .*: holdfast (inspect .*)", refused.err)

    assert refused.code == 3
    assert hint is not None
    assert holdfast(*shlex.split(hint[1])).code == 3
