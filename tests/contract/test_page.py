"""The page on both stores, in process: what the views say, what the forms do, and that nothing hostile gets through."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from holdfast import Engine
from holdfast.bulk import Bulk
from holdfast.core.records import ErrorRecord
from holdfast.core.states import Disposition, JobState
from holdfast.core.step import PATH_AFTER_FAILURE, EndCode
from holdfast.web import Everybody, Scope, app
from holdfast.web.page.frame import STATIC
from tests.contract.test_views import a_flow
from tests.support.bench import OLD, OTHER, WORKER, Bench, commit, end, finish, finish_step, record_try
from tests.support.waiting import eventually

HOSTILE = "<script>alert('x')</script>\"'><img src=x onerror=y> \x1b[31m\u202egnp"
NOBODYS = "0" * 26
VOID = {"meta", "link", "input", "br", "hr", "img", "col"}
Get = Callable[..., "Seen"]


class Seen(HTMLParser):
    """A page as a browser would take it: its tags, and its text."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.status = response.status_code
        self.html = response.text
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.parts: list[str] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        self.parts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())

    def links(self) -> list[str]:
        return [
            value
            for _, attrs in self.tags
            for name, value in attrs.items()
            if name in ("href", "src", "action") and value
        ]

    def fields(self) -> dict[str, str]:
        return {str(a["name"]): a.get("value") or "" for tag, a in self.tags if tag == "input" and "name" in a}


@pytest.fixture
def engine(bench: Bench) -> Engine:
    engine = Engine(bench.store, [a_flow()])
    Bulk(engine)
    return engine


@pytest.fixture
def http(engine: Engine) -> Iterator[TestClient]:
    with TestClient(
        app(engine, authenticate=Everybody("operator:nina", Scope.ADMIN)), follow_redirects=False
    ) as client:
        yield client


@pytest.fixture
def get(http: TestClient) -> Get:
    def get(path: str, status: int = 200) -> Seen:
        seen = Seen(http.get(path))
        assert seen.status == status, seen.text
        return seen

    return get


def failed(bench: Bench, error: str = "no luck", **fields: Any) -> str:
    claim = bench.running(**fields)
    record = ErrorRecord(type="Abort", message=error, step="one", hint=error)
    bench.apply(end(claim, PATH_AFTER_FAILURE[Disposition.FAILED], code=EndCode.ABORT, error=error, failure=record))
    return claim.job.job_id


def every_kind(bench: Bench) -> dict[str, str]:
    """A job of each kind."""
    crashed = bench.submit()
    bench.take()
    bench.crash()
    again = bench.take(OTHER)
    assert again.job.job_id == crashed
    done = bench.running(key="done")
    bench.apply(finish_step(done), finish_step(done, 1, "two"), commit(done, position=2), finish(done))
    running = bench.running(key="running")
    bench.apply(finish_step(running))
    bench.apply(record_try(running, 1, position=1, error="not yet"))
    return {
        "done": done.job.job_id,
        "running": running.job.job_id,
        "crashed": crashed,
        "failed": failed(bench, "the disk is full"),
        "quarantined": bench.ended(Disposition.QUARANTINED),
        "old": bench.submit(**OLD),
        "waiting": bench.submit(run_after=running.job.job_id),
        "later": bench.submit(not_before=bench.clock() + 3_600_000),
    }


# --- what the views say ---


def test_every_view_is_whole_has_no_id_twice_and_nothing_inline(bench: Bench, get: Get) -> None:
    jobs = every_kind(bench)
    views = ["/", "/flows", "/flows/demo", "/jobs", "/jobs?state=failed&flow=demo", "/repair", "/bulk?action=retry"]
    for path in [*views, *(f"/jobs/{job_id}" for job_id in jobs.values()), f"/jobs/{jobs['failed']}/retry"]:
        seen = get(path)
        inline = [a for tag, a in seen.tags if "style" in a or tag == "style" or any(n.startswith("on") for n in a)]

        assert seen.open == [], path
        assert len(seen.ids) == len(set(seen.ids)), path
        assert inline == [], path
        assert [a for tag, a in seen.tags if tag == "script" and "src" not in a] == [], path


def test_the_house_says_first_what_it_means(bench: Bench, get: Get) -> None:
    quiet = get("/").text
    bench.submit()
    waiting = get("/", 200)
    bench.store.announce(worker_id=WORKER, flows=["demo"])
    bench.store.pause_queue("", actor="operator:nina", reason="inventory")
    bench.ended(Disposition.QUARANTINED, queue="q")

    assert "All is quiet." in quiet
    assert waiting.status == 200
    page = eventually_fresh(get, "/", "1 job waits for an operator")
    assert "1 queue is paused" in page
    assert "inventory" in page


def eventually_fresh(get: Get, path: str, text: str) -> str:
    """What everybody sees is read again when it is old: at most seconds later."""
    return eventually(lambda: seen if text in (seen := get(path).text) else "", f"{path} does not say {text}")


def test_a_job_says_why_it_is_there_before_anything_else(bench: Bench, get: Get) -> None:
    jobs = every_kind(bench)
    shown = {name: get(f"/jobs/{job_id}") for name, job_id in jobs.items()}

    assert "the disk is full" in shown["failed"].text
    assert "Retry" in shown["failed"].text
    assert "holdfast job retry" not in shown["failed"].text
    assert "Release" in shown["quarantined"].text
    assert "died" in shown["crashed"].text
    assert "took over" in shown["crashed"].text
    assert "Reschedule" in shown["later"].text
    assert jobs["running"] in shown["waiting"].html
    assert "Cancel" not in shown["done"].text
    for name, job_id in jobs.items():
        assert bench.journal(job_id)[-1].hash in shown[name].text


def test_the_waterfall_has_a_row_for_each_execution_and_step(bench: Bench, get: Get) -> None:
    jobs = every_kind(bench)
    rows = re.findall(r'<div class="r (\w+)', get(f"/jobs/{jobs['done']}?fragment=waterfall").html)
    crashed = get(f"/jobs/{jobs['crashed']}?fragment=waterfall").html

    assert rows == ["axis", "life", "ex", "s", "s", "s"]
    assert crashed.count('<div class="r ex"') == 2
    assert "wf-crash" in crashed
    assert "wf-take" in crashed
    assert "w-cut" in crashed


def test_a_long_wait_is_drawn_shorter_and_says_so(bench: Bench, get: Get) -> None:
    job_id = bench.submit()
    bench.clock.advance(86_400)
    claim = bench.take()
    bench.clock.advance(10)
    bench.apply(finish_step(claim))
    shown = get(f"/jobs/{job_id}?fragment=waterfall").html

    assert "⁄⁄ 1 d ⁄⁄" in shown


def test_the_machine_has_every_step_the_ways_out_and_the_older_definition(bench: Bench, get: Get) -> None:
    every_kind(bench)
    shown = get("/flows/demo")
    drawn = shown.html.partition('class="machine wide"')[2].partition("</svg>")[0]

    assert re.findall(r'<text class="name"[^>]*>([^<]*)', drawn) == ["one", "two", "three"]
    assert drawn.count('class="inner"') == 1
    assert all(f"state={state}" in drawn for state in ("pending", "succeeded", "failed", "quarantined"))
    assert "step=two" in drawn
    assert f"Older definition {OLD['fingerprint'][:8]}" in shown.text


def test_a_flow_that_is_known_to_the_store_alone_is_drawn_all_the_same(bench: Bench) -> None:
    bench.submit()
    engine = Engine(bench.store)
    with TestClient(app(engine, authenticate=Everybody("operator:nina", Scope.READ))) as client:
        seen = Seen(client.get("/flows/demo"))
        missing = client.get("/flows/other")

    assert "from the store alone" in seen.text
    assert missing.status_code == 404


def test_the_list_pages_by_key_and_keeps_its_filters(bench: Bench, get: Get) -> None:
    for _ in range(60):
        bench.submit(queue="q")
    first = get("/jobs?queue=q&state=pending")
    [older] = [link for link in first.links() if "cursor=" in link]
    second = get(older)

    assert sum(tag == "tr" for tag, _ in first.tags) == 51
    assert sum(tag == "tr" for tag, _ in second.tags) == 11
    assert "queue=q" in older
    assert "60 jobs match" in first.text


@pytest.mark.parametrize("query", ["state=nope", "age=tomorrow", "age=older-1e9", "cursor=x", "nonsense=1", "ids=nope"])
def test_a_filter_that_there_is_not_is_refused_with_a_hint(get: Get, query: str) -> None:
    seen = get(f"/jobs?{query}", 400)

    assert seen.open == []


def test_an_id_that_is_looked_for_is_the_job(bench: Bench, http: TestClient) -> None:
    job_id = bench.submit()
    found = http.get(f"/jobs?q={job_id.lower()}")

    assert (found.status_code, found.headers["location"]) == (303, f"/jobs/{job_id}")


def test_rows_on_the_screen_are_read_again_and_newer_ones_counted(bench: Bench, get: Get) -> None:
    old = bench.submit()
    bench.clock.advance(1)
    bench.submit()
    fresh = get(f"/jobs?fragment=rows,newer&ids={old}")
    rows = [attrs["data-id"] for tag, attrs in fresh.tags if tag == "tr"]

    assert rows == [old]
    assert "1 newer job matches" in fresh.text


def test_a_fragment_is_a_part_of_its_view_and_no_other(bench: Bench, get: Get) -> None:
    bench.submit()
    part = get("/?fragment=tiles,queues")
    unknown = get("/?fragment=nope", 400)
    again = get(f"/?fragment={','.join(['tiles', 'queues'] * 500)}")

    assert part.html.strip().startswith('<div class="tiles"')
    assert "<html" not in part.html
    assert "no fragment" in unknown.text
    assert len(again.html) < 2 * len(part.html)


# --- hostile texts ---


def test_hostile_texts_are_shown_and_are_no_tags(bench: Bench, get: Get) -> None:
    job_id = failed(bench, HOSTILE, key="<script>alert(1)</script>", request='{"n":"<script>"}')
    bench.store.pause_queue("", actor="<b>nina</b>", reason=HOSTILE)
    for path in ("/", "/jobs", f"/jobs/{job_id}", "/flows/demo", f"/jobs?q={'%3Cscript%3E'}", f"/jobs/{job_id}/retry"):
        seen = get(path)
        scripts = [attrs.get("src") for tag, attrs in seen.tags if tag == "script"]

        assert len(scripts) == 1, path
        assert not any(tag in ("img", "b") and attrs.get("src") == "x" for tag, attrs in seen.tags), path
        assert "\x1b" not in seen.html, path
        assert "\u202e" not in seen.html, path
    assert "ESC" in get(f"/jobs/{job_id}").text


@pytest.mark.parametrize(
    "path",
    ["/static/..%2fframe.py", "/static/%2e%2e/frame.py", "/static/.htaccess", "/static/x/y", f"/static/{'a' * 5000}"],
)
def test_assets_are_only_those_that_there_are(http: TestClient, path: str) -> None:
    assert http.get(path).status_code in (400, 404)


def test_all_assets_together_are_small(http: TestClient) -> None:
    sizes = {file.name: len(http.get(f"/static/{file.name}").content) for file in STATIC.iterdir()}

    assert sum(sizes.values()) < 150_000
    assert len(http.get("/").content) < 50_000


# --- what the forms do ---


def post(http: TestClient, path: str, **fields: Any) -> Any:
    return http.post(path, data=fields)


def test_an_action_is_asked_for_with_its_preview_and_done_with_a_reason(
    bench: Bench, http: TestClient, get: Get
) -> None:
    job_id = failed(bench)
    form = get(f"/jobs/{job_id}/retry")
    fields = form.fields()
    nothing = post(http, f"/jobs/{job_id}/retry", head=fields["head"], reason=" ")
    done = post(http, f"/jobs/{job_id}/retry", head=fields["head"], reason="the disk is empty")

    assert fields["head"] == bench.journal(job_id)[-2].hash
    assert nothing.status_code == 400
    assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job_id}?done=retry")
    assert bench.store.job(job_id).state is JobState.PENDING
    assert bench.journal(job_id)[-1].actor == "operator:nina"
    assert "It is pending again." in get(f"/jobs/{job_id}?done=retry").text


def test_each_action_leads_to_its_state(bench: Bench, http: TestClient, get: Get) -> None:
    quarantined, pending = bench.ended(Disposition.QUARANTINED), bench.submit()

    def act(job_id: str, action: str, **fields: Any) -> JobState:
        head = get(f"/jobs/{job_id}/{action}").fields()["head"]
        answer = post(http, f"/jobs/{job_id}/{action}", head=head, reason="because", **fields)
        assert answer.status_code == 303, answer.text
        return bench.store.job(job_id).state

    assert act(quarantined, "release") is JobState.PENDING
    assert act(pending, "reschedule", delay="60", priority="7", queue="") is JobState.PENDING
    assert bench.store.job(pending).priority == 7
    assert act(pending, "force", to="quarantined") is JobState.QUARANTINED
    assert act(quarantined, "cancel") in (JobState.PENDING, JobState.FAILED)
    assert (
        bench.store.job(quarantined).cancel_reason == "because" or bench.store.job(quarantined).state is JobState.FAILED
    )


def test_a_job_that_has_moved_on_is_left_alone(bench: Bench, http: TestClient, get: Get) -> None:
    job_id = failed(bench)
    head = get(f"/jobs/{job_id}/retry").fields()["head"]
    bench.store.retry(job_id, actor="somebody", reason="faster", from_state=JobState.FAILED)
    before = bench.journal(job_id)
    refused = Seen(post(http, f"/jobs/{job_id}/cancel", head=head, reason="too late"))
    without = Seen(post(http, f"/jobs/{job_id}/cancel", reason="unseen"))

    assert refused.status == 412
    assert "has changed since it was looked at" in refused.text
    assert f"/jobs/{job_id}" in refused.links()
    assert without.status == 400
    assert bench.journal(job_id) == before


def test_a_bulk_action_is_previewed_and_becomes_a_job(bench: Bench, http: TestClient, get: Get) -> None:
    jobs = [failed(bench, "alike") for _ in range(3)]
    bench.submit()
    preview = get("/bulk?action=retry&flow=demo")
    chosen = get(f"/bulk?action=retry&job={jobs[0]}&job={jobs[1]}")
    done = post(http, "/bulk", action="retry", flow="demo", reason="all of them")
    job = bench.store.job(done.headers["location"].removeprefix("/jobs/").partition("?")[0])

    assert "Retry 3 jobs" in preview.text
    assert "1 match, but are in another state: left alone" in preview.text
    assert "Retry 2 jobs" in chosen.text
    assert job.flow == "holdfast.bulk"
    assert "all of them" in bench.store.request(job.job_id)


def test_a_reason_is_as_long_as_the_api_takes_it_and_no_longer(bench: Bench, http: TestClient, get: Get) -> None:
    job_id = failed(bench)
    head = get(f"/jobs/{job_id}/retry").fields()["head"]
    before = bench.journal(job_id)
    actions = [
        ("/bulk", {"action": "retry"}),
        (f"/jobs/{job_id}/retry", {"head": head}),
        ("/queue/pause", {"queue": ""}),
    ]
    refused = [post(http, path, reason="x" * 4001, **fields).status_code for path, fields in actions]
    taken = [post(http, path, reason="x" * 4000, **fields).status_code for path, fields in actions[1:]]

    assert refused == [400, 400, 400]
    assert taken == [303, 303]
    assert bench.journal(job_id) != before


def test_a_queue_is_paused_and_resumed(bench: Bench, http: TestClient, get: Get) -> None:
    bench.submit(queue="q")
    form = get("/queue/pause?queue=q")
    post(http, "/queue/pause", reason="inventory", queue=form.fields()["queue"])
    [paused] = [one for one in bench.store.queues() if one.name == "q"]
    post(http, "/queue/resume", queue="q", reason="counted")
    [resumed] = [one for one in bench.store.queues() if one.name == "q"]

    assert (paused.paused_by, paused.paused_reason) == ("operator:nina", "inventory")
    assert resumed.paused_at is None
    assert get("/queue/pause?queue=nope", 404).status == 404


def test_a_check_and_a_plan_of_repairs_can_be_asked_for(http: TestClient, get: Get) -> None:
    asked = post(http, "/check")

    assert asked.status_code == 303
    assert "Nothing is to be repaired" in get("/repair").text
    assert post(http, "/repair", reason="why not").status_code == 200


@pytest.mark.parametrize("path", ["/jobs/{id}/retry", "/bulk?action=retry", "/queue/pause?queue="])
def test_who_may_only_look_is_refused(bench: Bench, engine: Engine, path: str) -> None:
    job_id = failed(bench)
    with TestClient(app(engine, authenticate=Everybody("visitor", Scope.READ))) as client:
        refused = Seen(client.get(path.format(id=job_id)))
        shown = Seen(client.get(f"/jobs/{job_id}"))

    assert refused.status == 403
    assert "You may look" in refused.text
    assert "You may look." in shown.text
    assert "Retry" not in shown.text


def test_who_is_nobody_is_asked_to_log_in(engine: Engine) -> None:
    with TestClient(app(engine)) as client:
        seen = Seen(client.get("/jobs?state=failed"))

    assert seen.status == 401
    assert seen.fields()["next"] == "/jobs?state=failed"
    assert "Token" in seen.text


@pytest.mark.parametrize("path,status", [("/jobs/nope", 400), (f"/jobs/{NOBODYS}", 404), ("/flows/nope", 404)])
def test_what_is_not_there_is_said_in_the_same_look(get: Get, path: str, status: int) -> None:
    seen = get(path, status)

    assert "House" in seen.text
    assert seen.open == []


def test_a_browser_that_is_nowhere_is_told_so_on_the_page_and_a_program_by_a_problem(http: TestClient) -> None:
    of_browser = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    seen = Seen(http.get("/nothing/here", headers=of_browser))
    answers = [http.get("/nothing/here", headers={"Accept": "*/*"}), http.get("/v1/nothing", headers=of_browser)]

    assert seen.status == 404
    assert "There is nothing here." in seen.text
    assert [(one.status_code, one.headers["content-type"]) for one in answers] == [
        (404, "application/problem+json")
    ] * 2


def test_the_limit_of_a_queue_is_set_lifted_and_refused(bench: Bench, get: Get, http: TestClient) -> None:
    bench.submit()
    [queue] = bench.store.queues()
    path = f"/queue/limit?queue={queue.name}"
    form = {"queue": queue.name, "was": get(path).fields()["was"], "limit": "3"}

    def post(**more: str) -> int:
        return int(http.post("/queue/limit", data={**form, **more}, follow_redirects=False).status_code)

    refused = [post(), post(reason=" "), post(reason="x", limit="-1"), post(reason="x", limit="many")]
    unchanged = bench.store.queues()[0].max_running
    done, behind = post(reason="two tills"), post(reason="not seen", limit="9")
    limited = bench.store.queues()[0].max_running
    form = {**form, "was": get(path).fields()["was"], "limit": ""}
    lifted = post(reason="all open")
    events = [(one.before, one.after, one.reason) for one in bench.store.queue_history(queue.name)][:2]

    assert refused == [400, 400, 400, 400]
    assert (unchanged, done, behind, limited) == (None, 303, 409, 3)
    assert (lifted, bench.store.queues()[0].max_running) == (303, None)
    assert events == [("3", "none", "all open"), ("none", "3", "two tills")]


def test_every_link_stays_below_where_the_page_is_mounted(bench: Bench, engine: Engine) -> None:
    jobs = every_kind(bench)
    inner = app(engine, authenticate=Everybody("operator:nina", Scope.ADMIN))
    with TestClient(Starlette(routes=[Mount("/ops/engine", inner)]), follow_redirects=False) as client:
        for path in ("/", "/flows", "/flows/demo", "/jobs", f"/jobs/{jobs['failed']}", f"/jobs/{jobs['failed']}/retry"):
            links = Seen(client.get(f"/ops/engine{path}")).links()
            outside = [link for link in links if not link.startswith(("/ops/engine/", "#"))]
            assert outside == [], path
        head = Seen(client.get(f"/ops/engine/jobs/{jobs['failed']}/retry")).fields()["head"]
        done = client.post(f"/ops/engine/jobs/{jobs['failed']}/retry", data={"head": head, "reason": "mounted"})

    assert done.headers["location"].startswith("/ops/engine/jobs/")
