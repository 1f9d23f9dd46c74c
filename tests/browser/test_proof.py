"""The proof: the browser recomputes the hashes of a journal, with WebCrypto and without."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Shop, Watched


@pytest.mark.parametrize("secure", [True, False], ids=["by WebCrypto", "by its own SHA-256"])
def test_the_chain_is_recomputed_in_the_browser(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str], secure: bool
) -> None:
    watched = open_browser()
    if not secure:  # as on plain HTTP from another host
        watched.page.add_init_script("Object.defineProperty(globalThis.crypto, 'subtle', {value: undefined})")
    for name in ("declined", "crash"):
        page = watched.go(f"/jobs/{filled[name]}")
        page.keyboard.press("v")
        entries = shop.engine.journal(filled[name])
        expect(page.locator("#verdict")).to_contain_text(
            f"{len(entries)} entries, chain holds up to head {entries[-1].hash[:8]}"
        )

        assert page.locator("#entries tr.holds").count() == len(entries)


@pytest.mark.parametrize("field", ["reason", "actor", "at", "prev_hash", "seq"])
def test_an_entry_that_was_changed_is_named(watched: Watched, filled: dict[str, str], field: str) -> None:
    def changed(route: Route) -> None:
        entries = json.loads(route.fetch().body())
        entries[2][field] = 7 if field in ("at", "seq") else "x"
        route.fulfill(json=entries)

    watched.page.route("**/journal.json", changed)
    page = watched.go(f"/jobs/{filled['crash']}")
    page.click("#verify")
    expect(page.locator("#verdict")).to_contain_text("The 6 entries" if field == "seq" else "Entry 3:")

    assert page.locator("#entries tr.holds").count() == 2


def test_the_proof_is_copied(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    watched.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = watched.go(f"/jobs/{filled['crash']}")
    page.click("text=Copy proof")
    expect(page.locator("[data-copy='#proof-text']")).to_have_text("Copied")
    copied = page.evaluate("navigator.clipboard.readText()")

    assert copied.endswith(shop.engine.journal(filled["crash"])[-1].hash)
    assert filled["crash"] in copied
