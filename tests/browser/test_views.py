"""Every view in a real browser: what it shows, that it is accessible, and how it looks, in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

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
    "missing": "/flows/nobodys",
}


def violations(watched: Watched) -> list[str]:
    # The policy of the page lets no script in: the checker comes in from outside, as an extension would.
    watched.page.evaluate(AXE.read_text(encoding="utf-8"))
    found = watched.page.evaluate(RULES)
    return [f"{one['id']}: {[node['html'][:120] for node in one['nodes'][:3]]}" for one in found["violations"]]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible_in_light_and_dark(
    open_browser: Callable[..., Watched], filled: dict[str, str], scheme: str
) -> None:
    SCREENS.mkdir(parents=True, exist_ok=True)
    watched = open_browser(color_scheme=scheme, reduced_motion="reduce")
    found = {}
    for name, path in VIEWS.items():
        page = watched.go(path.format(**filled), live=name != "missing")
        found[name] = violations(watched)
        page.screenshot(path=SCREENS / f"{name}-{scheme}.png", full_page=True)
    watched.complaints = [one for one in watched.complaints if "404" not in one]

    assert {name: each for name, each in found.items() if each} == {}


@pytest.mark.parametrize("size", [NARROW, LEAST, (768, 1000), WIDE], ids=str)
def test_nothing_scrolls_sideways(
    open_browser: Callable[..., Watched], filled: dict[str, str], size: tuple[int, int]
) -> None:
    watched = open_browser(size=size, color_scheme="dark")
    wide = {}
    for name, path in VIEWS.items():
        page = watched.go(path.format(**filled), live=name != "missing")
        wide[name] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if size == NARROW:
            page.screenshot(path=SCREENS / f"{name}-{size[0]}.png", full_page=True)
    watched.complaints = [one for one in watched.complaints if "404" not in one]

    assert {name: by for name, by in wide.items() if by > 0} == {}


def test_who_is_not_logged_in_is_asked_who_they_are(open_browser: Callable[..., Watched], shop: Shop) -> None:
    watched = open_browser(who="")
    page = watched.page
    page.goto(f"{shop.url}/jobs")
    found = violations(watched)
    page.fill("#token", "wrong")
    page.click("button[type=submit]")
    refused = page.inner_text(".banner.failed")
    watched.complaints = [one for one in watched.complaints if "401" not in one]

    assert found == []
    assert "no valid token" in refused
