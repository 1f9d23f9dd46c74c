"""The same page over PostgreSQL: it lives, obeys, and goes on after a restart of its server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Shop, Watched
from tests.support.backends import PostgresBackend


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    backend = PostgresBackend(tmp_path)
    shop = Shop(backend.place, str(tmp_path))
    yield shop
    shop.close()
    backend.close()


def test_a_job_is_watched_across_a_restart_and_another_one_retried(browser: Browser, shop: Shop) -> None:
    watched = Watched(browser, shop)
    job_id, open_gate = shop.gated()
    page = watched.go(f"/jobs/{job_id}")
    expect(page.locator("#answer .badge")).to_have_text("running")
    shop.restart_server(open_gate)
    expect(page.locator("#answer .badge")).to_have_text("succeeded")
    expect(page.locator("#entries tbody tr")).to_have_count(len(shop.engine.journal(job_id)))
    failed = shop.ended("declined")
    page = watched.go(f"/jobs/{failed}")
    page.keyboard.press("r")
    page.fill("#action [name=reason]", "on the other store, too")
    page.click("#action [data-go]")
    expect(page.locator(".banner.succeeded")).to_be_visible()
    shop.engine.wait(failed, 60)
    page.keyboard.press("v")
    expect(page.locator("#verdict")).to_contain_text("chain holds up to head")
    house = watched.go("/")
    expect(house.locator("#queues tr[data-id=orders]")).to_be_visible()
    watched.close()

    assert watched.complaints == []
    assert [entry.actor for entry in shop.engine.journal(failed) if "on the other store" in entry.reason] == [
        "token:nina"
    ]
