"""Every view in a real browser: what it shows, that it is accessible, and how it looks, in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import LEAST, NARROW, SCREENS, WIDE, Shop, Watched

_PACKAGE = find_spec("axe_playwright_python")
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
AXE = Path(_PACKAGE.origin).parent / "axe.min.js"
RULES = "axe.run(document, {resultTypes: ['violations']})"

VIEWS = {
    "house": "/",
    "machines": "/flows",
    "machine": "/flows/take-order",
    "jobs": "/jobs",
    "jobs-failed": "/jobs?state=failed",
    "job": "/jobs/{crash}",
    "job-failed": "/jobs/{declined}",
    "job-later": "/jobs/{later}",
    "job-family": "/jobs/{family}",
    "retry": "/jobs/{declined}/retry",
    "bulk": "/bulk?action=retry&state=failed",
    "repair": "/repair",
    "pause": "/queue/pause?queue=orders",
    "limit": "/queue/limit?queue=orders",
    "missing": "/flows/nobodys",
    "nowhere": "/nothing/here",
}
PROBLEMS = ("missing", "nowhere")
SIZES = (NARROW, LEAST, (768, 1000), WIDE)


def violations(page: Page) -> list[str]:
    # The policy of the page lets no script in: the checker comes in from outside, as an extension would.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(RULES)
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found["violations"]]


@pytest.mark.sampled("name")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_accessible_and_never_scrolls_sideways(
    open_browser: Callable[..., Watched], filled: dict[str, str], name: str, scheme: str
) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    watched = open_browser(color_scheme=scheme, reduced_motion="reduce")
    page = watched.go(VIEWS[name].format(**filled), live=name not in PROBLEMS)
    watched.complaints = [one for one in watched.complaints if name not in PROBLEMS or "404" not in one]
    found = violations(page)
    page.screenshot(path=SCREENS / f"{name}-{scheme}.png", full_page=True)
    beyond = {}
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        beyond[width] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
    page.screenshot(path=SCREENS / f"{name}-{scheme}-{NARROW[0]}.png", full_page=True)

    assert found == []
    assert {width: by for width, by in beyond.items() if by > 0} == {}


def test_who_is_not_logged_in_is_asked_who_they_are(open_browser: Callable[..., Watched], shop: Shop) -> None:
    watched = open_browser(who="")
    page = watched.page
    page.goto(f"{shop.url}/jobs")
    found = violations(page)
    page.fill("#token", "wrong")
    page.click("button[type=submit]")
    refused = page.inner_text(".banner.failed")
    watched.complaints = [one for one in watched.complaints if "401" not in one]

    assert found == []
    assert "no valid token" in refused
