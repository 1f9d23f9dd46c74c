"""Every action of the page, with script and without: a preview, a reason, and a refusal if the job has moved on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from holdfast import JobState
from holdfast.guard import stalled
from tests.browser.conftest import Shop, Watched
from tests.browser.living import Order, no_progress
from tests.support.backends import SqliteBackend
from tests.support.waiting import eventually

WITHOUT_SCRIPT = {"java_script_enabled": False}


def act(page: Page, label: str, reason: str) -> None:
    """Click it, say why in the dialog, and go on."""
    page.locator("#answer .act").get_by_role("button", name=label).click()
    dialog = page.locator("#action")
    expect(dialog.locator("[data-go]")).to_be_disabled()
    dialog.locator("[name=reason]").fill(reason)
    dialog.locator("[data-go]").click()
    expect(page.locator(".banner.succeeded")).to_be_visible()


def test_a_failed_job_is_retried_and_a_quarantined_one_released(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    failed, quarantined = shop.ended("declined"), shop.ended("broken")
    page = watched.go(f"/jobs/{failed}")
    act(page, "Retry", "the bank is back, #1")
    page = watched.go(f"/jobs/{quarantined}")
    act(page, "Release", "the bank is back, #2")

    reasons = {entry.reason: entry.actor for one in (failed, quarantined) for entry in shop.engine.journal(one)}
    assert any("the bank is back, #1" in reason for reason in reasons)
    assert any("the bank is back, #2" in reason for reason in reasons)
    assert {actor for reason, actor in reasons.items() if "the bank is back" in reason} == {"token:nina"}


def test_a_running_job_is_cancelled_and_a_pending_one_rescheduled_and_forced(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    running, pending = shop.submit("slow", seconds=60), shop.submit("well", delay=3600)
    shop.is_in(running, "pack")
    page = watched.go(f"/jobs/{running}")
    act(page, "Cancel job", "wrong address")
    expect(page.locator("#answer .badge")).to_have_text("failed")
    page = watched.go(f"/jobs/{pending}")
    page.get_by_role("button", name="Reschedule").click()
    page.fill("#action #priority", "7")
    page.fill("#action [name=reason]", "in a hurry")
    page.click("#action [data-go]")
    expect(page.locator("#facts")).to_contain_text("priority 7")
    page.get_by_role("button", name="Force").click()
    page.check("#action input[value=quarantined]")
    page.fill("#action [name=reason]", "to be looked at")
    page.click("#action [data-go]")
    expect(page.locator("#answer .badge")).to_have_text("quarantined")

    assert shop.state(pending) is JobState.QUARANTINED


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
def test_who_acts_on_a_job_that_has_moved_on_is_refused(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str], script: bool
) -> None:
    watched = open_browser(java_script_enabled=script)
    job_id = shop.ended("declined")
    page = watched.go(f"/jobs/{job_id}/retry", live=script)
    shop.engine.force(job_id, "quarantined", reason="somebody else was faster")
    page.fill("[name=reason]", "too late")
    page.click("[data-go]")
    expect(page.locator("[role=alert]")).to_contain_text("has changed since it was looked at")
    page.click("text=Show what changed")
    page.wait_for_url(re.compile(rf"/jobs/{job_id}$"))
    watched.complaints = [one for one in watched.complaints if "412" not in one]

    assert shop.state(job_id) is JobState.QUARANTINED
    assert not any("too late" in entry.reason for entry in shop.engine.journal(job_id))


def test_many_jobs_are_retried_by_a_job_that_shows_how_far_it_is(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    jobs = [shop.ended("declined", text="the line is dead") for _ in range(3)]
    page = watched.go("/jobs?q=the+line+is+dead")
    page.locator("#rows tr input").first.check()
    expect(page.locator("#selcount")).to_have_text("1 selected")
    page.click("#select-matching")
    page.click("#selbar button[value=retry]")
    dialog = page.locator("#action")
    expect(dialog.locator("h1")).to_have_text("Retry 3 jobs")
    expect(dialog.locator(".samples li")).to_have_count(3)
    dialog.locator("[name=reason]").fill("the line is repaired")
    dialog.locator("[data-go]").click()
    expect(page.locator("#answer .badge")).to_have_text("succeeded")
    expect(page.locator(".crumb")).to_contain_text("holdfast.bulk")

    for job_id in jobs:
        shop.engine.wait(job_id, 60)

    assert [len(shop.engine.store.executions(job_id)) for job_id in jobs] == [2, 2, 2]


def test_only_the_selected_rows_are_acted_on(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    chosen, other = shop.ended("declined", text="two of a kind"), shop.ended("declined", text="two of a kind")
    page = watched.go("/jobs?q=two+of+a+kind")
    page.check(f"#rows tr[data-id='{chosen}'] input")
    page.keyboard.press("r")
    page.fill("#action [name=reason]", "only this one")
    page.click("#action [data-go]")
    expect(page.locator("#answer .badge")).to_have_text("succeeded")
    shop.engine.wait(chosen, 60)

    assert [len(shop.engine.store.executions(one)) for one in (chosen, other)] == [2, 1]


def test_a_queue_is_paused_with_a_reason_and_resumed(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    page = watched.go("/")
    page.get_by_role("button", name="Pause… orders").click()
    page.fill("#action [name=reason]", "<b>inventory</b>")
    page.click("#action [data-go]")
    expect(page.locator("#queues tr[data-id=orders]")).to_contain_text("“<b>inventory</b>”")
    expect(page.locator("h1")).to_contain_text("1 queue is paused")
    page.get_by_role("button", name="Resume… orders").click()
    page.fill("#action [name=reason]", "counted")
    page.click("#action [data-go]")
    expect(page.locator("#queues tr[data-id=orders]")).not_to_contain_text("inventory")

    history = shop.engine.store.queue_history("orders")
    assert [(one.action, one.actor) for one in history[:2]] == [("resume", "token:nina"), ("pause", "token:nina")]


def test_the_limit_of_a_queue_is_set_with_a_reason_and_lifted(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    page = watched.go("/")
    row = page.locator("#queues tr[data-id=orders]")
    for limit, reason in (("7", "two tills"), ("", "all open")):
        page.get_by_role("button", name="Limit… orders").click()
        page.fill("#action [name=limit]", limit)
        page.fill("#action [name=reason]", reason)
        page.click("#action [data-go]")
        expect(row.locator("td[data-l=running]")).to_contain_text(re.compile("of 7$" if limit else r"^\d+$"))
    history = [(one.action, one.before, one.after, one.reason) for one in shop.engine.store.queue_history("orders")]

    assert history[:2] == [("limit", "7", "none", "all open"), ("limit", "none", "7", "two tills")]


def test_a_check_is_asked_for_and_what_it_finds_is_repaired(
    watched: Watched, shop: Shop, filled: dict[str, str]
) -> None:
    page = watched.go("/")
    page.click("text=Check now")
    expect(page.locator("#findings_panel")).to_contain_text("Nothing found")
    page = watched.go("/repair")
    before = page.inner_text("h1")
    damage(shop, f"UPDATE jobs SET state = 'succeeded' WHERE job_id = '{filled['declined']}'")
    page = watched.go("/")
    page.click("text=Check now")
    page.click("text=What a repair would do")
    expect(page.locator("h1.lede")).to_contain_text("A repair would take")
    page.fill("[name=reason]", "somebody had a shell")
    page.click("[data-go]")
    expect(page.locator(".banner.succeeded")).to_contain_text(f"job {filled['declined']} is failed again")
    last = shop.engine.journal(filled["declined"])[-1]

    assert "Nothing is to be repaired" in before
    assert "Nothing is to be repaired" in page.inner_text("h1.lede")
    assert shop.state(filled["declined"]) is JobState.FAILED
    assert (last.actor, "somebody had a shell" in last.reason) == ("token:nina", True)


def damage(shop: Shop, statement: str) -> None:
    """Write past every rule, as a stray shell can."""
    backend = SqliteBackend(Path(shop.place))
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(statement)
        put_back()


def test_a_stalled_job_is_recovered(watched: Watched, shop: Shop, filled: dict[str, str]) -> None:
    gate = shop.gate()
    job_id = shop.engine.submit(no_progress, Order(text=str(gate)))
    shop.is_in(job_id, "look-away")
    eventually(lambda: any(verdict == "stalled" for _, verdict in stalled(shop.engine.store)), "it is not stalled")
    page = watched.go("/")
    page.locator("#findings_panel li", has_text="no-progress").get_by_role("button", name="Recover…").click()
    page.fill("#action [name=reason]", "it looks away")
    page.click("#action [data-go]")
    expect(page.locator(".banner.succeeded")).to_be_visible()
    expect(page.locator("#answer .badge")).to_have_text("pending")
    gate.touch()
    reasons = {entry.actor: entry.reason for entry in shop.engine.journal(job_id)}
    shop.engine.cancel(job_id, reason="the test is over")

    assert "it looks away" in reasons["token:nina"]


def test_who_may_only_look_is_offered_nothing_and_refused(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str]
) -> None:
    watched = open_browser("rita")
    page = watched.go(f"/jobs/{filled['declined']}")
    expect(page.locator("#answer")).to_contain_text("You may look.")
    offered = page.locator(".act .btn, #answer form").count()
    page.goto(f"{shop.url}/jobs/{filled['declined']}/retry")
    said = page.inner_text("main")
    watched.complaints = [one for one in watched.complaints if "403" not in one]

    assert offered == 0
    assert "You may look, but not do that." in said


def test_everything_works_without_script(
    open_browser: Callable[..., Watched], shop: Shop, filled: dict[str, str]
) -> None:
    watched = open_browser(**WITHOUT_SCRIPT)
    job_id = shop.ended("declined", key="by-hand")
    page = watched.go("/", live=False)
    page.click(".nav >> text=Jobs")
    page.fill("#y", "by-hand")
    page.click("#filters button")
    page.click(f"a[title='{job_id}']")
    page.click("#answer .act >> text=Retry")
    page.fill("[name=reason]", "by hand")
    page.click("[data-go]")
    expect(page.locator(".banner.succeeded")).to_be_visible()
    shop.engine.wait(job_id, 60)
    page = watched.go("/jobs?key=by-hand", live=False)
    page.click("#selbar button[value=retry]")
    page.fill("[name=reason]", "all that match")
    page.click("[data-go]")
    expect(page.locator(".crumb")).to_contain_text("holdfast.bulk")
    page = watched.go(f"/jobs/{filled['crash']}", live=False)

    assert page.locator("#waterfall rect.w-cut").count() >= 1
    assert not page.locator(".btn:visible", has_text="Verify").count()
