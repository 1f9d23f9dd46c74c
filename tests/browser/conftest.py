"""A shop with a server, two workers and a browser: everything real, in processes of its own."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright

from holdfast import Engine, JobState
from tests.browser.living import FLOWS, Order, take_order
from tests.support.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "build" / "screens"
WIDE, NARROW, LEAST = (1440, 900), (390, 844), (320, 700)


class Process:
    """A process of the shop, and what it told in its first line."""

    def __init__(self, *arguments: str) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.browser.living", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("SHOP_TALKS") else subprocess.DEVNULL,
            text=True,
        )
        self._arguments = arguments

    @cached_property
    def told(self) -> dict[str, str]:
        """Its first line, when it has started."""
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        assert line, f"{self._arguments} has not started"
        found: dict[str, str] = json.loads(line)
        return found

    @property
    def pid(self) -> int:
        return self._popen.pid

    def is_running(self) -> bool:
        return self._popen.poll() is None

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        with suppress(ProcessLookupError):
            self._popen.send_signal(how)
        try:
            self._popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._popen.stdout is not None:
            self._popen.stdout.close()


class Shop:
    """The store, its server and its workers."""

    def __init__(self, place: str, folder: str | None = None) -> None:
        self.place = place
        self._folder = Path(folder or place)
        self.engine = Engine.open(place, flows=FLOWS, actor="operator:test")
        self.server = Process("serve", place, "0")
        self.workers = [Process("work", place)]
        self.tokens = {name: text for name, text in self.server.told.items() if name != "port"}
        self.port = self.server.told["port"]
        self.sessions: dict[str, Any] = {}
        """The cookies of those who have logged in."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def submit(self, mood: str = "well", **fields: Any) -> str:
        options = {name: fields.pop(name) for name in ("key", "run_after", "delay", "queue") if name in fields}
        return self.engine.submit(take_order, Order(mood=mood, **fields), **options)

    def ended(self, mood: str, **fields: Any) -> str:
        return self.all_ended(self.submit(mood, **fields))[0]

    def all_ended(self, *jobs: str) -> list[str]:
        for job_id in jobs:
            self.engine.wait(job_id, PATIENCE)
        return list(jobs)

    def gated(self) -> tuple[str, Callable[[], None]]:
        """A job that waits in its step until it is let go on."""
        gate = self.gate()
        return self.submit("gated", text=str(gate)), gate.touch

    def gate(self) -> Path:
        """A file that is not there yet."""
        return self._folder / f"gate-{time.monotonic_ns()}"

    def is_in(self, job_id: str, step: str) -> None:
        eventually(
            lambda: any(one.step == step for one in self.engine.store.running([job_id])), f"{job_id} is not in {step}"
        )

    def state(self, job_id: str) -> JobState:
        return self.engine.store.job(job_id).state

    def restart_server(self, between: Callable[[], object] = lambda: None) -> None:
        self.server.end()
        between()
        self.server = Process("serve", self.place, self.port)
        assert self.server.told["port"] == self.port

    def keep_working(self) -> None:
        """A worker that has died is followed by another one."""
        for one in self.workers:
            if not one.is_running():
                one.end()
        self.workers = [one for one in self.workers if one.is_running()] or [Process("work", self.place)]

    def close(self) -> None:
        for process in [*self.workers, self.server]:
            process.end()
        self.engine.close()


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    shop = Shop(str(tmp_path_factory.mktemp("shop")))
    yield shop
    shop.close()


@pytest.fixture(scope="session")
def filled(shop: Shop) -> dict[str, str]:
    """Jobs of every kind, by what they are."""
    jobs = {mood: shop.submit(mood, number=at, key=f"A-{at}") for at, mood in enumerate(("well", "done", "flaky"), 10)}
    jobs["declined"] = shop.submit(
        "declined",
        key="<img src=x onerror=alert(1)>",
        text="<script>alert(document.domain)</script> \x1b[31mred \u202egnp.exe",
    )
    jobs["broken"] = shop.submit("broken", key="A-20")
    jobs["family"] = shop.engine.submit("close-day", {"number": 5})
    shop.all_ended(*jobs.values(), *(shop.submit("declined", number=number, key=f"B-{number}") for number in range(4)))
    jobs["crash"] = shop.submit("crash", key="A-21", seconds=0.2)
    eventually(lambda: not shop.workers[0].is_running(), "the worker has not died")
    shop.keep_working()
    shop.all_ended(jobs["crash"])
    jobs["later"] = shop.submit("well", delay=3600, key="A-22")
    return jobs


class DriverLoop:
    """The event loop of the browser's driver: in its own tests this thread is in it, in all others in none."""

    loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        asyncio._set_running_loop(self.loop)

    def leave(self) -> None:
        self.loop = asyncio._get_running_loop() or self.loop
        asyncio._set_running_loop(None)


DRIVER = DriverLoop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The driver takes the thread for its own until it ends; tests of other folders run loops, too."""
    if Path(__file__).parent not in item.path.parents:
        return (yield)
    DRIVER.enter()
    try:
        return (yield)
    finally:
        DRIVER.leave()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    assert found, "the browser is missing: make tools"
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        DRIVER.enter()  # the last test of the session may be of another folder
        browser.close()
    DRIVER.loop = None
    asyncio._set_running_loop(None)


class Watched:
    """A browser of somebody who is logged in; what it complains about is kept."""

    def __init__(self, browser: Browser, shop: Shop, who: str = "nina", **options: Any) -> None:
        width, height = options.pop("size", WIDE)
        session = None if options.pop("own_session", False) else shop.sessions.get(who)
        self.context: BrowserContext = browser.new_context(
            viewport={"width": width, "height": height}, storage_state=session, **options
        )
        self.context.set_default_timeout(PATIENCE * 1000)
        self.complaints: list[str] = []
        self.shop = shop
        self.page = self.new_page()
        if who and session is None:
            self.log_in(who)
            shop.sessions.setdefault(who, self.context.storage_state())

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self._heard(message.type, f"{message.text} {message.location}"))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", self._asked)
        page.add_init_script(
            "addEventListener('securitypolicyviolation',"
            " (e) => console.error('CSP ' + e.violatedDirective + ' ' + e.blockedURI))"
        )
        return page

    def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "ERR_CONNECTION" not in text and "ERR_INCOMPLETE" not in text:
            self.complaints.append(f"{kind}: {text}")

    def log_in(self, who: str) -> None:
        self.page.goto(f"{self.shop.url}/login")
        self.page.fill("#token", self.shop.tokens[who])
        self.page.click("button[type=submit]")
        self.page.wait_for_url(f"{self.shop.url}/")

    def go(self, path: str, *, live: bool = True) -> Page:
        self.page.goto(self.shop.url + path)
        if live:
            self.page.wait_for_selector(".live:not(.off)")
        return self.page

    def close(self) -> None:
        self.context.close()


@pytest.fixture
def open_browser(browser: Browser, shop: Shop) -> Iterator[Callable[..., Watched]]:
    """Browsers that must have nothing to complain about in the end."""
    opened: list[Watched] = []

    def open_one(who: str = "nina", **options: Any) -> Watched:
        opened.append(Watched(browser, shop, who, **options))
        return opened[-1]

    with ExitStack() as closing:
        yield open_one
        for each in opened:
            closing.callback(each.close)
        complaints = [complaint for each in opened for complaint in each.complaints]
    assert complaints == []


@pytest.fixture
def watched(open_browser: Callable[..., Watched]) -> Watched:
    return open_browser()
