"""Flows, queues, workers, findings, repairs, stalls, bulk actions and health over HTTP; on both stores, in process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from holdfast import Engine, Flow
from holdfast.core.states import JobState
from holdfast.errors import JobMovedOnError, StoreUnavailable
from holdfast.web import Call, Extension, Reply, Route, Scope
from holdfast.web.application import api_routes, app
from holdfast.web.threads import Threads
from tests.support.backends import Backend
from tests.support.flows import Answer
from tests.support.waiting import eventually
from tests.support.web import FLOW, Asking, a_flow, by_token, served


@pytest.fixture
def engine(backend: Backend) -> Iterator[Engine]:
    with Engine.open(backend.place, flows=[a_flow()]) as engine:
        yield engine


@pytest.fixture
def http(engine: Engine) -> Iterator[Asking]:
    with served(engine) as client:
        yield client


def submit(engine: Engine, **options: Any) -> str:
    return engine.submit(FLOW, {"name": "x"}, **options)


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# --- flows ---


def test_flows_are_listed_drawn_and_shown_with_figures(http: Asking, engine: Engine) -> None:
    submit(engine)
    listed = http.get("/v1/flows").json()["flows"]
    one = http.get(f"/v1/flows/{FLOW}").json()
    drawn = http.get(f"/v1/flows/{FLOW}/graph?format=dot").json()

    assert [flow["name"] for flow in listed] == [FLOW, "holdfast.bulk"]
    assert [step["kind"] for step in one["steps"]] == ["step", "step", "commit"]
    assert drawn["diagram"].startswith("digraph")
    assert code(http.get("/v1/flows/other")) == (404, "unknown-flow")
    assert code(http.get(f"/v1/flows/{FLOW}/graph?format=png")) == (400, "invalid-parameter")


def test_a_plan_tells_which_jobs_a_deploy_would_quarantine(backend: Backend, engine: Engine) -> None:
    engine.store.changes_after(None, limit=1)
    kept = submit(engine)
    newer = Flow(FLOW, request=Needing, response=Answer, version="2").start("one", lambda _run: Answer())
    with Engine.open(backend.place, flows=[newer]) as other, served(other) as http:
        plan = http.get(f"/v1/flows/{FLOW}/plan").json()

    assert (plan["looked_at"], plan["more"]) == (1, False)
    assert [job["job_id"] for job in plan["would_quarantine"]] == [kept]


class Needing(msgspec.Struct):
    """A request that older jobs do not have."""

    address: str


# --- queues and workers ---


def test_queues_are_limited_paused_and_resumed_with_a_reason(http: Asking, engine: Engine) -> None:
    submit(engine, queue="q")
    limited = http.patch("/v1/queues/q", json={"limit": 3, "reason": "small host"}).json()
    paused = http.post("/v1/queues/q/pause", json={"reason": "disk"}).json()
    resumed = http.post("/v1/queues/q/resume", json={"reason": "bought one"}).json()
    history = http.get("/v1/queues/q/history").json()["events"]

    assert limited["queue"]["max_running"] == 3
    assert (paused["queue"]["paused_by"], paused["queue"]["paused_reason"]) == ("admin-er", "disk")
    assert resumed["queue"]["paused_at"] is None
    assert [(event["action"], event["reason"]) for event in history] == [
        ("resume", "bought one"), ("pause", "disk"), ("limit", "small host"),
    ]  # fmt: skip
    assert (
        http.patch("/v1/queues/q", json={"limit": None, "reason": "large host"}).json()["queue"]["max_running"] is None
    )
    assert code(http.post("/v1/queues/q/pause", json={})) == (422, "invalid-body")
    assert code(http.post("/v1/queues/absent/pause", json={"reason": "x"})) == (404, "queue-not-found")


def test_the_queue_without_a_name_is_a_dash(http: Asking, engine: Engine) -> None:
    submit(engine)

    assert http.get("/v1/queues/-").json()["backlog"]["ready"] == 1


def test_workers_and_the_house_are_shown(http: Asking, engine: Engine) -> None:
    submit(engine)
    with engine.worker(concurrency=1):
        workers = eventually(lambda: http.get("/v1/workers").json()["workers"])
    stats = http.get("/v1/stats").json()

    assert [(one["live"], FLOW in one["worker"]["flows"]) for one in workers] == [(True, True)]
    assert {"queues", "workers", "counts", "findings", "throughput"} <= set(stats)


def test_metrics_are_in_prometheus_form(http: Asking, engine: Engine) -> None:
    submit(engine)
    answer = http.get("/metrics")

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "\nholdfast_jobs" in answer.text


# --- findings, repairs, stalls ---


def test_a_check_runs_in_the_background_and_its_findings_are_repaired_as_planned(
    http: Asking, engine: Engine, backend: Backend
) -> None:
    job_id = submit(engine)
    with backend.shell() as shell:
        put_back = backend.without_triggers(shell)
        shell.execute(f"UPDATE jobs SET state = 'failed' WHERE job_id = '{job_id}'")
        put_back()
    started = http.post("/v1/findings", json={})
    found = eventually(lambda: (f := http.get("/v1/findings").json())["state"] == "idle" and f)
    plan = http.get("/v1/repair")
    without, stale = http.post("/v1/repair"), http.post("/v1/repair", headers={"If-Match": '"other"'})
    done = http.post("/v1/repair", headers={"If-Match": plan.headers["etag"]})

    assert (started.status_code, started.headers["location"]) == (202, "/v1/findings")
    assert (found["source"], found["total"] > 0, found["jobs_checked"]) == ("check", True, 1)
    assert plan.json()["actions"][0]["kind"] == "reproject"
    assert [code(without), code(stale)] == [(428, "precondition-required"), (412, "plan-changed")]
    assert done.json()["done"][0]["is_done"] is True
    assert engine.store.job(job_id).state is JobState.PENDING
    assert http.get("/v1/repair").json() == {"actions": []}


def test_nothing_stalls_here_and_a_job_that_is_not_there_is_no_stalled_one(http: Asking, engine: Engine) -> None:
    absent = {"reason": "x", "jobs": ["00000000000000000000000000"]}

    assert http.get("/v1/stalls").json() == {"stalled": []}
    assert http.post("/v1/stalls/recover", json={"reason": "x", "jobs": [submit(engine)]}).json() == {"recovered": []}
    assert code(http.post("/v1/stalls/recover", json=absent)) == (404, "job-not-found")
    assert code(http.post("/v1/stalls/recover", json={"reason": " "})) == (400, "reason-required")


# --- bulk actions ---


def test_a_bulk_action_is_previewed_and_is_a_job_of_whoever_asked(http: Asking, engine: Engine) -> None:
    jobs = [submit(engine, key=f"a-{number}", delay=600) for number in range(3)]
    other = submit(engine, key="b", delay=600)
    wish = {"action": "cancel", "filter": {"key_prefix": "a-"}}

    preview = http.post("/v1/bulk/preview", json=wish).json()
    answer = http.post("/v1/bulk", json={**wish, "reason": "wrong"}, headers={"Idempotency-Key": "once"})
    again = http.post("/v1/bulk", json={**wish, "reason": "wrong"}, headers={"Idempotency-Key": "once"})
    job_id = answer.json()["job_id"]
    with engine.worker(concurrency=1):
        engine.wait(job_id, 30)
    result = http.get(f"/v1/jobs/{job_id}/result").json()

    assert (preview["acted_on"]["count"], preview["acted_on"]["capped"]) == (3, False)
    assert (answer.status_code, again.content) == (201, answer.content)
    assert (result["state"], result["response"]["done"]) == ("succeeded", 3)
    assert [engine.store.journal(job)[-1].actor for job in [*jobs, other]] == ["admin-er"] * 3 + ["client"]
    assert engine.store.journal(job_id)[0].actor == "admin-er"


def test_a_bulk_action_with_a_filter_that_is_misspelt_is_refused(http: Asking) -> None:
    answer = http.post("/v1/bulk", json={"action": "cancel", "filter": {"flwo": FLOW}, "reason": "x"})

    assert code(answer) == (422, "invalid-body")


# --- the application itself ---


def test_it_is_mounted_into_another_application_and_its_links_stay_inside(engine: Engine) -> None:
    inner = app(engine, authenticate=by_token, page=False)
    outer = TestClient(Starlette(routes=[Mount("/ops", app=inner)]), headers={"Authorization": "Bearer admin"})
    jobs = [outer.post(f"/ops/v1/flows/{FLOW}/jobs", json={"request": {"name": str(number)}}) for number in range(3)]
    page = outer.get("/ops/v1/jobs?limit=2")
    inner.close()

    assert jobs[0].headers["location"] == f"/ops/v1/jobs/{jobs[0].json()['job_id']}"
    assert page.links["next"]["url"].startswith("/ops/v1/jobs?limit=2&after=")
    assert code(outer.get("/ops/nothing")) == (404, "no-such-path")


def test_without_an_authenticator_nobody_may_do_anything(engine: Engine) -> None:
    application = app(engine, page=False)
    http = Asking(application, "admin")

    assert code(http.get("/v1/jobs")) == (401, "unauthenticated")
    assert http.get("/livez").status_code == 200
    application.close()


def test_a_store_that_cannot_be_used_is_told_as_passing(http: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(http.application.services.engine.store, "last_change", broken)
    answer = http.get("/readyz")

    assert code(answer) == (503, "not-ready")
    assert "away" not in answer.text
    assert answer.headers["retry-after"] == "1"
    assert http.get("/livez").status_code == 200


def test_a_fault_of_our_own_is_logged_and_not_shown(
    http: Asking, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(http.application.services.engine.store, "last_change", broken)
    answer = http.get("/readyz")

    assert code(answer) == (500, "internal")
    assert "secret" not in answer.text
    assert "secret" in caplog.text


def test_more_than_can_wait_are_told_to_come_again(http: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.application.services.get(Threads), "_waiting", 10_000)
    answer = http.get("/v1/jobs")

    assert code(answer) == (503, "overloaded")
    assert answer.headers["retry-after"] == "1"


class Moved(JobMovedOnError):
    """An error of another package."""

    def __init__(self) -> None:
        super().__init__("x", expected="a", head="b")
        self.facts = {"colour": "red"}


def failing(_call: Call) -> Reply:
    raise Moved


def an_extension(name: str = "failing") -> Extension:
    route = Route(method="GET", path=f"/v1/{name}", name=name, summary="It fails.", tag="more", handler=failing)
    return Extension(name="more", routes=[route], statuses={Moved: 418})


def test_an_extension_adds_routes_and_statuses_of_its_own_errors(engine: Engine) -> None:
    with served(engine, extensions=[an_extension()]) as http:
        answer = http.get("/v1/failing")

        assert code(answer) == (418, "moved")
        assert answer.json()["facts"] == {"colour": "red", "job_id": "x", "expected": "a", "head": "b"}
        assert "/v1/failing" in http.get("/openapi.json").json()["paths"]


def test_an_extension_cannot_take_the_name_of_a_route(engine: Engine) -> None:
    with pytest.raises(Exception, match="two routes are 'listJobs'"):
        api_routes([an_extension("listJobs")])


# --- tokens ---


def test_tokens_are_made_shown_once_and_revoked(http: Asking, engine: Engine) -> None:
    made = http.post("/v1/tokens", json={"name": "ci", "scope": "submit", "seconds": 60})
    twice = http.post("/v1/tokens", json={"name": "ci", "scope": "admin", "seconds": None})
    listed = http.get("/v1/tokens")
    revoked = [http.delete("/v1/tokens/ci").json()["revoked_by"] for _ in range(2)]

    assert (made.status_code, made.json()["token"]["created_by"]) == (201, "admin-er")
    assert twice.status_code == 409
    assert [token["name"] for token in listed.json()["tokens"]] == ["ci"]
    assert made.json()["secret"] not in listed.text
    assert revoked == ["admin-er", "admin-er"]
    assert http.delete("/v1/tokens/nobody").status_code == 404
    assert http.who_may("operate").get("/v1/tokens").status_code == 403


# --- the document ---


def test_the_document_has_a_path_and_a_type_for_each_flow(http: Asking) -> None:
    document = http.get("/openapi.json").json()
    operation = document["paths"][f"/v1/flows/{FLOW}/jobs"]["post"]
    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    schema = document["components"]["schemas"][body]

    assert operation["operationId"] == f"submitJob_{FLOW}"
    assert schema["properties"]["request"] == {"$ref": "#/components/schemas/Ask"}
    assert "/v1/flows/holdfast.bulk/jobs" not in document["paths"]
    assert document["components"]["schemas"]["Ask"]["properties"]["number"]["type"] == "integer"


def test_every_reference_of_the_document_leads_somewhere(backend: Backend) -> None:
    from pydantic import BaseModel

    class Street(BaseModel):
        name: str

    class Address(BaseModel):
        street: Street

    flow = Flow("post", request=Address, response=type(None)).start("one", lambda _run: None)
    with Engine.open(backend.place, flows=[flow]) as engine, served(engine) as http:
        document = http.get("/openapi.json").json()
        sent = http.post("/v1/flows/post/jobs", json={"request": {"street": {"name": "x"}}})
        refused = http.post("/v1/flows/post/jobs", json={"request": {"street": "x"}})
    text = json.dumps(document)
    references = {part.split('"')[0] for part in text.split('"$ref": "')[1:]}

    assert {r for r in references if not leads_somewhere(document, r)} == set()
    assert "#/components/schemas/Address.Street" in references
    assert (sent.status_code, code(refused)) == (201, (422, "request-invalid"))


def leads_somewhere(document: Any, reference: str) -> bool:
    for part in reference.removeprefix("#/").split("/"):
        document = document.get(part, {})
    return bool(document)


def test_every_operation_says_who_may(http: Asking) -> None:
    document = http.get("/openapi.json").json()
    open_to_all = [o["operationId"] for p in document["paths"].values() for o in p.values() if o.get("security") == []]

    assert sorted(open_to_all) == ["livez", "readyz"]
    assert {route.scope for route in api_routes()} == {None, *Scope}
