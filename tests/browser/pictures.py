"""The pictures of the documentation, of a shop that lives: `python -m tests.browser.pictures docs/images`."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from holdfast import Engine
from tests.browser.conftest import Process, Shop, Watched
from tests.browser.living import Order, old_order
from tests.support.waiting import eventually

MOODS = ["well"] * 22 + ["done"] * 8 + ["flaky"] * 4 + ["declined"] * 3 + ["broken"]
SECONDS = (0.02, 0.1, 0.3, 1, 2.5)
LIFE = 45
SIZE = (1280, 800)


@contextmanager
def living(shop: Shop) -> Iterator[None]:
    """Orders come in."""
    ended = threading.Event()

    def order() -> None:
        number = 50_000
        while not ended.wait(0.22):
            number += 1
            shop.submit(random.choice(MOODS), number=number, key=f"A-{number}", seconds=random.choice(SECONDS))

    thread = threading.Thread(target=order)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def crashed(shop: Shop) -> str:
    """A job whose worker has died, and which another one goes on with."""
    job_id = shop.submit("crash", key="A-60001", seconds=6)
    eventually(lambda: not all(one.is_running() for one in shop.workers), "no worker has died")
    for one in shop.workers:
        if not one.is_running():
            one.end()
    shop.workers = [*(one for one in shop.workers if one.is_running()), Process("work", shop.place)]
    return job_id


def draw(folder: Path) -> None:
    """Three pictures."""
    random.seed(4)
    place = tempfile.mkdtemp() + "/shop"
    with Engine.open(place, flows=[old_order]) as engine:
        for number in range(3):
            engine.submit(old_order, Order(number=number), delay=3600)
    shop = Shop(place)
    shop.engine.store.set_queue("orders", max_running=8, actor="operator:nina", reason="two tills")
    shop.workers.append(Process("work", place))
    with living(shop), sync_playwright() as playwright:
        threading.Event().wait(LIFE / 3)
        job_id = crashed(shop)
        for number in range(4):
            shop.submit("slow", key=f"A-{61_000 + number}", seconds=LIFE)
        threading.Event().wait(LIFE / 2)
        found = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for name, path, scheme, height in (
            ("page-house", "/", "light", 640),
            ("page-machine", "/flows/take-order", "light", 760),
            ("page-job", f"/jobs/{job_id}", "dark", 760),
        ):
            watched = Watched(browser, shop, color_scheme=scheme, size=(SIZE[0], height), reduced_motion="reduce")
            watched.go(path).wait_for_timeout(2000)
            watched.page.screenshot(path=folder / f"{name}.png")
        browser.close()
    shop.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
