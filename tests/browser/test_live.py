"""The page lives: what changes in the store changes on the screen, without a reload, and across a restart."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from playwright.sync_api import Page, Route, expect

from holdfast import JobState
from tests.browser.conftest import Shop, Watched
from tests.support.waiting import eventually

BEYOND = "999999999999999999.0.1."
STAY = "window.stays = true"
# A value at the end: a function would be taken for what is to be evaluated, and called.
NOTE_WHAT_IS_READ = """
window.read = [];
const before = fetch;
window.fetch = (...given) => { window.read.push([performance.now(), String(given[0])]); return before(...given); };
0
"""


def stayed(page: Page) -> bool:
    return bool(page.evaluate("window.stays === true"))


def test_a_job_comes_to_its_end_before_ones_eyes(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    job_id, open_gate = shop.gated()
    page = watched.go(f"/jobs/{job_id}")
    page.evaluate(STAY)
    expect(page.locator("#answer .badge")).to_have_text("running")
    expect(page.locator("#answer progress")).to_be_visible()
    open_gate()
    expect(page.locator("#answer .badge")).to_have_text("succeeded")
    expect(page.locator("#entries tbody tr")).to_have_count(len(shop.engine.journal(job_id)))

    assert stayed(page)


def test_the_house_and_the_machine_move_with_the_jobs_in_two_browsers(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str]
) -> None:
    one, other = open_browser(), open_browser("rita")
    house, machine = one.go("/"), other.go("/flows/take-order")
    house.evaluate(STAY)
    machine.evaluate(STAY)
    job_id = shop.submit("slow", seconds=30)
    try:
        expect(house.locator("#tiles .tile").first.locator(".big")).to_have_text("1")
        expect(house.locator("#workers tbody tr td[data-l=leases]").first).to_have_text("1")
        expect(machine.locator(".machine.wide .busy .name")).to_have_text("pack")
        expect(machine.locator(".machine.wide .busy .n-run")).to_have_text("1")
    finally:
        shop.engine.cancel(job_id, reason="the test is over")
    expect(house.locator("#tiles .tile").first.locator(".big")).to_have_text("0")
    expect(machine.locator(".machine.wide .busy")).to_have_count(0)

    assert stayed(house)
    assert stayed(machine)


def test_rows_change_in_their_places_and_newer_ones_are_announced(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    job_id = shop.submit("slow", seconds=30, key="watched")
    page = watched.go("/jobs?flow=take-order")
    page.evaluate(STAY)
    first = page.locator("#rows tr").first
    first.locator("input").check()
    before = page.locator("#rows tr").evaluate_all("rows => rows.map((row) => row.dataset.id)")
    expect(first.locator(".st")).to_have_text("running")
    later = shop.submit("well")
    shop.engine.cancel(job_id, reason="changed my mind")
    expect(first.locator(".st")).to_have_text("failed")
    expect(page.locator("#newer a")).to_contain_text("1 newer job matches")
    after = page.locator("#rows tr").evaluate_all("rows => rows.map((row) => row.dataset.id)")
    is_selected = first.locator("input").is_checked()
    page.click("#newer a")
    page.wait_for_selector(f"#rows tr[data-id='{later}']")

    assert after == before
    assert is_selected


def test_a_server_that_was_restarted_loses_nothing(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    job_id, open_gate = shop.gated()
    page = watched.go(f"/jobs/{job_id}")
    page.evaluate(STAY)

    def while_it_is_gone() -> None:
        expect(page.locator("#offline")).to_be_visible()
        assert page.locator(".live .say").inner_text() == "reconnecting"
        open_gate()
        shop.engine.wait(job_id, 60)

    shop.restart_server(while_it_is_gone)
    expect(page.locator("#offline")).to_be_hidden()
    expect(page.locator("#answer .badge")).to_have_text("succeeded")
    expect(page.locator("#entries tbody tr")).to_have_count(len(shop.engine.journal(job_id)))

    assert stayed(page)


def test_a_page_goes_on_behind_the_last_change_it_has_seen(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    asked: list[str] = []
    page = watched.page
    page.on("request", lambda request: asked.append(request.url) if "/v1/events" in request.url else None)
    watched.go("/")
    shop.ended("well")
    shop.restart_server(lambda: shop.ended("well"))
    expect(page.locator("#offline")).to_be_hidden()
    eventually(lambda: len(asked) > 1, "it has not asked again")

    places = [int(address.partition("after=")[2].partition(".")[0]) for address in asked]

    assert places[-1] > places[0]


def test_who_is_told_to_resync_reads_everything_anew_and_goes_on(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    page, asked = watched.page, list[str]()

    def ask(route: Route) -> None:
        asked.append(route.request.url)
        # The first time from a place that this store has not, as after another one was restored in its stead.
        route.continue_(url=re.sub("after=[^&]*", f"after={BEYOND}", asked[0]) if len(asked) == 1 else asked[-1])

    page.route("**/v1/events?*", ask)
    job_id, open_gate = shop.gated()
    watched.go(f"/jobs/{job_id}", live=False)
    page.evaluate(STAY)
    expect(page.locator("#resynced")).to_be_visible()
    expect(page.locator(".live .say")).to_have_text("live")
    open_gate()
    expect(page.locator("#answer .badge")).to_have_text("succeeded")

    assert stayed(page)
    assert len(asked) > 1
    assert BEYOND not in asked[-1]


def test_who_may_not_look_any_more_is_asked_who_they_are(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str]
) -> None:
    watched = open_browser(own_session=True)
    page, other = watched.go("/jobs"), watched.new_page()
    other.goto(f"{shop.url}/")
    other.click("text=Log out")
    expect(page.locator("#token")).to_be_visible()
    watched.complaints = [one for one in watched.complaints if "401" not in one]

    assert page.url == f"{shop.url}/jobs"


def test_a_fragment_is_read_at_most_four_times_a_second(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    page = watched.page
    watched.go("/")
    page.evaluate(NOTE_WHAT_IS_READ)
    jobs = [shop.submit("well") for _ in range(60)]
    for job_id in jobs:
        shop.engine.wait(job_id, 60)
    expect(page.locator("#tiles .tile").nth(1).locator(".big")).to_have_text("1")
    read = page.evaluate("window.read")
    times = [at for at, address in read if "tiles" in address]

    assert all(after - before >= 240 for before, after in pairwise(times))
    assert all(shop.state(job_id) is JobState.SUCCEEDED for job_id in jobs)
