"""The keyboard: everything can be reached and done without a pointer."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.browser.conftest import Shop, Watched


def test_keys_go_to_views_and_rows(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    page = watched.go("/")
    keys = page.keyboard
    keys.press("g")
    keys.press("m")
    page.wait_for_url(re.compile("/flows$"))
    keys.press("g")
    keys.press("j")
    page.wait_for_url(re.compile("/jobs$"))
    page.wait_for_selector(".live:not(.off)")
    keys.press("j")
    keys.press("j")
    keys.press("k")
    expect(page.locator("#rows tr").first).to_have_class(re.compile("cursor"))
    keys.press("x")
    expect(page.locator("#selcount")).to_have_text("1 selected")
    keys.press("x")
    expect(page.locator("#selbar")).to_be_hidden()
    first = page.locator("#rows tr").first.get_attribute("data-id")
    page.locator("#rows tr.cursor a").first.focus()
    keys.press("Enter")
    page.wait_for_url(re.compile(f"/jobs/{first}$"))


def test_slash_searches_and_escape_leaves(watched: Watched, filled: dict[str, str]) -> None:
    page = watched.go("/jobs")
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("grj?")
    page.keyboard.press("Escape")
    expect(page.locator("#q")).not_to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.goto(page.url)
    page.keyboard.press("/")
    page.keyboard.type(filled["crash"].lower())
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(f"/jobs/{filled['crash']}$"))


def test_r_asks_to_retry_with_the_focus_where_one_writes_why(watched: Watched, filled: dict[str, str]) -> None:
    page = watched.go(f"/jobs/{filled['broken']}")
    page.keyboard.press("r")
    expect(page.locator("#action [name=reason]")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#action")).to_be_hidden()

    assert page.locator("#answer .badge").inner_text() == "quarantined"


def test_hostile_texts_are_shown_and_obeyed_by_nobody(watched: Watched, filled: dict[str, str]) -> None:
    page = watched.go(f"/jobs/{filled['declined']}")
    expect(page.locator("#why")).to_contain_text("<script>alert(document.domain)</script>")
    tags = page.locator("#why .tag").all_inner_texts()
    page = watched.go("/jobs?key=%3Cimg")

    assert tags == ["ESC", "RLO"]
    assert page.locator("#rows .c-key").first.inner_text() == "<img src=x onerror=alert(1)>"
    assert page.locator("main img, main script").count() == 0
