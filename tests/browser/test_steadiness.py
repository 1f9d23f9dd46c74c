"""Numbers stand still: nothing moves while things change, and a long list is as quick as a short one."""

from __future__ import annotations

import statistics

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Shop, Watched
from tests.browser.living import Order, take_order

NOTE_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) {
    window.shifts.push([one.value, one.sources.map((each) => each.node?.id || each.node?.className)]);
  }
}).observe({type: "layout-shift", buffered: false});
0
"""


@pytest.mark.parametrize("path", ["/", "/flows/take-order", "/jobs?flow=take-order"])
def test_nothing_moves_while_numbers_change(watched: Watched, shop: Shop, filled: dict[str, str], path: str) -> None:
    page = watched.go(path)
    page.evaluate(NOTE_SHIFTS)
    jobs = [shop.submit("slow", seconds=0.3) for _ in range(6)]
    for job_id in jobs:
        shop.engine.wait(job_id, 60)
    page.wait_for_timeout(1500)
    shifts = page.evaluate("window.shifts")

    # Words in the middle of a sentence give way to a longer number beside them; no element moves.
    assert [element for _, elements in shifts for element in elements if element] == []


SERVERS_TIME = "(([one]) => one.responseEnd - one.requestStart)(performance.getEntriesByType('navigation'))"


@pytest.mark.exhaustive
def test_a_list_of_10_000_is_as_quick_as_a_short_one(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    def took(path: str) -> float:
        times = []
        for _ in range(7):
            page = watched.go(path)
            times.append(
                page.evaluate(
                    "(([one]) => one.responseEnd - one.requestStart)(performance.getEntriesByType('navigation'))"
                )
            )
        return float(statistics.median(times))

    few = took("/jobs")
    for _ in range(10):
        shop.engine.submit_many([shop.engine.prepare(take_order, Order(), delay=86_400) for _ in range(1000)])
    many = took("/jobs")
    page = watched.go("/jobs?state=pending")
    for _ in range(20):
        page.click("a[rel=next]")
        expect(page.locator("#rows tr")).to_have_count(50)
    deep = took(page.url.removeprefix(shop.url))
    print(f"server's time for a page: {few:.0f} ms of few jobs, {many:.0f} ms of 10,000, {deep:.0f} ms deep in them")

    assert many < 6 * few + 50
    assert deep < 6 * few + 50
