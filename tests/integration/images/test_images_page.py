"""The images view in process: what it shows without script, what can be done there, and that nothing in it is live."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from holdfast_images import ImageManager, Settings
from tests.acceptance.images.driving import HONEST, HOSTILE, Gate
from tests.support.backends import Backend as Home
from tests.support.images.http_images import ImageApi

both_stores = pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data=str(tmp_path / "data"), host="alpha", api_sources=f"file://{tmp_path}/")


@pytest.fixture
def api(home: Home, settings: Settings) -> Iterator[ImageApi]:
    api = ImageApi(home.place, settings)
    yield api
    api.close()


def source_of(tmp_path: Path, content: bytes = HONEST, name: str = "image.tar") -> str:
    path = tmp_path / name
    path.write_bytes(content)
    return f"file://{path}"


def page(api: ImageApi, path: str, status: int = 200, **options: str) -> str:
    answer = api.ask("GET", path, headers={"Accept": "text/html"}, **options)
    assert answer.status_code == status, answer.text
    return answer.text


def post(api: ImageApi, path: str, scope: str = "operate", **fields: str) -> tuple[int, str]:
    headers = {"Content-Type": FORM, "Accept": "text/html"}
    answer = api.ask("POST", path, scope=scope, headers=headers, content=urlencode(fields))
    return answer.status_code, answer.headers.get("Location", answer.text)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


@both_stores
def test_an_image_is_processed_snapshot_and_removed_by_forms(api: ImageApi, tmp_path: Path) -> None:
    empty = page(api, "/images")
    begun = post(api, "/image/process", "submit", source=source_of(tmp_path), image_id="demo")
    waiting = text_of(page(api, begun[1]))
    with api.worker():
        api.done("POST", "/v1/images", json={"source": source_of(tmp_path), "image_id": "demo"})
        again = post(api, "/image/process", "submit", source=source_of(tmp_path), image_id="demo")
        snapshot = post(api, "/images/demo/snapshot", "submit", name="second")
        api.done("POST", "/v1/images/demo/snapshots", json={"name": "second"})
        shown = text_of(page(api, "/images/demo"))
        verified = post(api, "/images/demo/verify")
        asked = text_of(page(api, "/images/demo/remove"))
        unreasoned = post(api, "/images/demo/remove", force="true")
        removed = post(api, "/images/demo/remove", force="true", reason="no longer wanted")
        api.done("DELETE", "/v1/images/demo?force=true") if api.images.images() else None

    assert "No image is here yet" in empty
    assert begun == (303, "/images/demo?done=process")
    assert "It is on its way" in waiting
    assert "waiting" in waiting
    assert again == (303, "/images/demo?done=there")
    assert snapshot == (303, "/images/demo?done=snapshot")
    assert "ready" in shown
    assert "snap-demo" in shown
    assert "extract-layers" in shown
    assert (verified[0], "Every byte is what was recorded" in verified[1]) == (200, True)
    assert "It has 2 snapshots, and is removed only with them" in asked
    assert unreasoned[0] == 400
    assert removed == (303, "/images/demo?done=remove")


def test_what_is_on_its_way_is_drawn_with_its_steps(api: ImageApi) -> None:
    gate = Gate()
    with gate.server.running(), api.worker():
        api.ask("POST", "/v1/images", json={"source": gate.url, "image_id": "slow"})
        gate.asked.wait(30)
        html = page(api, "/images/slow")
        fragment = page(api, "/images?fragment=list")
        gate.open()
        api.done("POST", "/v1/images", json={"source": gate.url, "image_id": "slow"})
    after = page(api, "/images/slow")

    assert "1 image is under way" in text_of(html)
    assert ("downloading" in html, 'class="on" d="' in html, 'class="ok" d="' in html) == (True, True, True)
    assert fragment.lstrip().startswith("<section")
    assert "<html" not in fragment
    assert 'class="on" d="' not in after
    assert "sealed and verified" in after


def test_what_was_refused_says_why(api: ImageApi, tmp_path: Path) -> None:
    wish = {"source": source_of(tmp_path, HOSTILE), "image_id": "hostile"}
    with api.worker():
        api.ask("POST", "/v1/images", json=wish, headers={"Prefer": "wait=60"})
    text = text_of(page(api, "/images/hostile"))

    assert "refused" in text
    assert "ABSOLUTE_SYMLINK" in text


def test_leftovers_are_shown_before_they_go(api: ImageApi, tmp_path: Path, settings: Settings) -> None:
    with api.worker():
        api.done("POST", "/v1/images", json={"source": source_of(tmp_path), "image_id": "demo"})
    (Path(settings.data or "") / "images" / "lost.tar").write_bytes(b"x" * 5000)
    planned = page(api, "/image/gc")
    [mark] = re.findall(r'name="plan" value="([0-9a-f]+)"', planned)
    other = post(api, "/image/gc", plan="0" * 32, reason="tidy")
    done = post(api, "/image/gc", plan=mark, reason="tidy")

    assert "lost.tar" in planned
    assert other[0] == 412
    assert "1 removed, 4.9 KiB given back." in text_of(done[1])


def test_a_lock_is_shown_and_released(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        api.done("POST", "/v1/images", json={"source": source_of(tmp_path), "image_id": "demo"})
    api.images._host.catalog.acquire_image_lock("demo", "<b>somebody</b>")
    shown = page(api, "/images")
    released = post(api, "/images/demo/release", reason="left behind")

    assert "&lt;b&gt;somebody&lt;/b&gt;" in shown
    assert released == (303, "/images?done=release")
    assert "Nobody holds one" in page(api, "/images")


HOSTILE_KEYS = [
    "<script>alert(1)</script>.tar",
    "\"'><img src=x onerror=alert(1)>.tar",
    "a\u202egnp.tar",
    "{{7*7}}.tar",
]
PATHS = ("/images", "/images/demo", "/image/process", "/image/gc", "/images/demo/snapshot", "/images/demo/remove")
ACTIONS = [
    ("/image/process", "read"),
    ("/images/demo/remove", "submit"),
    ("/images/demo/verify", "submit"),
    ("/image/gc", "submit"),
]


@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_hostile_names_are_inert(api: ImageApi, key: str) -> None:
    catalog = api.images._host.catalog
    catalog.store_image_metadata("hostile", key, "/nowhere", "0" * 64, 1)
    for path in ("/images", "/images/hostile", f"/images?{urlencode({'text': key})}"):
        html = page(api, path)

        assert "<script>alert" not in html
        assert "<img" not in html
        assert "49.tar" not in html
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", html)


def test_a_view_has_no_style_no_handler_and_no_script_in_it(api: ImageApi, tmp_path: Path) -> None:
    with api.worker():
        api.done("POST", "/v1/images", json={"source": source_of(tmp_path), "image_id": "demo"})
    for path in PATHS:
        html = page(api, path)

        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script>", html) == []
        assert html.count("<h1") == 1


@pytest.mark.parametrize("path, scope", ACTIONS)
def test_an_action_takes_its_scope(api: ImageApi, path: str, scope: str) -> None:
    assert post(api, path, scope)[0] == 403
    assert api.ask("GET", "/images", scope="", headers={"X-Scope": ""}).status_code == 401


def test_an_image_that_nobody_has_is_not_found(api: ImageApi) -> None:
    assert "there is no image" in page(api, "/images/nobodys", 404)


@pytest.mark.parametrize("home", ["postgres"], indirect=True)
def test_a_fleet_is_drawn_host_by_host(api: ImageApi, home: Home, tmp_path: Path) -> None:
    with ImageManager.open(home.place, Settings(data=str(tmp_path / "beta"), host="beta")) as other:
        other.process(other.request(source_of(tmp_path), image_id="far"))
    api.images.prepare()
    html = page(api, "/images")
    detail = text_of(page(api, "/images/far"))

    assert "Hosts × images" in html
    assert re.search(r'<th scope="col">alpha</th><th scope="col">beta</th>', html)
    assert "ready on beta" in detail
    assert "ask the server that runs there" in detail
