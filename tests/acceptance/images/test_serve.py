"""`holdfast serve` with images: a real server, a real worker, a real source; and the commands of the how-to page."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.images.driving import HONEST, HOSTILE, ImageHoldfast
from tests.support.waiting import PATIENCE, eventually

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "serve-images.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT = {"Prefer": "wait=60"}


@pytest.fixture
def holdfast(tmp_path: Path) -> ImageHoldfast:
    return ImageHoldfast(tmp_path)


@contextmanager
def running(holdfast: ImageHoldfast, *words: str, kill: bool = False) -> Iterator[subprocess.Popen[str]]:
    process = holdfast.start(*words)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill() if kill else process.terminate()
        process.communicate(timeout=PATIENCE)


@contextmanager
def served(holdfast: ImageHoldfast, *words: str) -> Iterator[httpx.Client]:
    """A client of a server on a unix socket, as this user."""
    path = holdfast.directory / "holdfast.sock"
    with running(holdfast, "--json", "serve", "--listen", f"unix:{path}", *words) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "ready"
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://holdfast", timeout=2 * PATIENCE) as client:
            yield client


def data_of(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


def test_an_image_goes_its_whole_way_over_http_though_workers_are_killed(holdfast: ImageHoldfast) -> None:
    wish = {"source": holdfast.source(HONEST), "image_id": "demo"}
    hostile = {"source": holdfast.source(HOSTILE, "hostile.tar"), "image_id": "hostile"}
    with served(holdfast) as client:
        begun = client.post("/v1/images", json=wish)
        with running(holdfast, "worker", kill=True):
            eventually(lambda: client.get(begun.headers["Location"]).json()["job"]["state"] != "pending")
        with running(holdfast, "worker"):
            done = data_of(client.post("/v1/images", json=wish, headers=WAIT))
            refused = client.post("/v1/images", json=hostile, headers=WAIT)
            made = data_of(client.post("/v1/images/demo/snapshots", json={"name": "two"}, headers=WAIT))
            listed = {row["image_id"]: row["status"] for row in client.get("/v1/images").json()["rows"]}
            page = client.get("/images").text
            verified = data_of(client.post("/v1/images/demo/verify", json={"deep": True}))
            hostname = Path(done["done"]["snapshot_path"], "rootfs/etc/hostname").read_text()
            removed = data_of(client.delete("/v1/images/demo?force=true", headers=WAIT))
        journal = data_of(client.get(f"{begun.headers['Location']}/journal"))

    assert (begun.status_code, begun.json()["has_worker"]) == (202, False)
    assert hostname == "demo\n"
    assert made["done"]["created"] is True
    assert (refused.status_code, refused.json()["facts"]["code"]) == (422, "ABSOLUTE_SYMLINK")
    assert listed == {"demo": "ready", "hostile": "refused"}
    assert 'aria-current="page">Images' in page
    assert verified == {"findings": []}
    assert sorted(removed["done"]["snapshots"]) == ["snap-demo", "two"]
    assert journal["entries"][0]["actor"].startswith("unix:uid=")
    assert not [name for name in holdfast.left() if name.startswith("demo")]


def test_a_server_looks_without_making_images_of_an_app_that_has_none(holdfast: ImageHoldfast) -> None:
    with served(holdfast, "--app", "app:flows") as client:
        page = client.get("/").text
        found = client.get("/v1/images").status_code

    assert (found, 'href="/images"' in page) == (404, False)


def test_the_commands_of_the_page_do_what_it_says(holdfast: ImageHoldfast) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    started, asked = blocks[0].split(), [block for block in blocks if "curl" in block]
    holdfast.source(HONEST)
    script = "set -euo pipefail\n" + "".join(f"{block}echo\n" for block in asked)
    with served(holdfast, "--work"):
        ran = subprocess.run(
            ["bash", "-c", script],
            cwd=holdfast.directory,
            env=holdfast.environment,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    told = ran.stdout

    assert started == ["holdfast", "serve", "--listen", "unix:holdfast.sock", "--work"]
    assert ran.returncode == 0, ran.stderr + told
    assert sum(block.count("curl ") for block in asked) == 13
    for part in ('"status":"ready"', '"snapshot_name":"second"', '"findings":[]', '"acceptable":true', '"removed":[]'):
        assert part in told
