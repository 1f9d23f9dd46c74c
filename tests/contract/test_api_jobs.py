"""Jobs over HTTP: submit, list, look, wait, steer; on both stores, in process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Engine
from holdfast.core.states import JobState
from holdfast.web.events import Feed
from holdfast.web.job_waits import JobWaits
from tests.support.backends import Backend
from tests.support.waiting import eventually
from tests.support.web import FLOW, Asking, a_flow, served

JOBS = f"/v1/flows/{FLOW}/jobs"
ABSENT = "00000000000000000000000000"


@pytest.fixture
def engine(backend: Backend) -> Iterator[Engine]:
    with Engine.open(backend.place, flows=[a_flow()]) as engine:
        yield engine


@pytest.fixture
def http(engine: Engine) -> Iterator[Asking]:
    with served(engine) as client:
        yield client


def submit(http: Asking, **options: Any) -> str:
    answer = http.post(JOBS, json={"request": {"name": "x"}, **options})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


def code(answer: Any) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:holdfast:problem:{problem['code']}"
    assert problem["status"] == answer.status_code
    return answer.status_code, problem["code"]


def head(http: Asking, job_id: str) -> dict[str, str]:
    return {"If-Match": http.get(f"/v1/jobs/{job_id}").headers["etag"]}


# --- submitting ---


def test_a_job_is_submitted_and_is_where_the_answer_says(http: Asking) -> None:
    answer = http.post(JOBS, json={"request": {"name": "x", "number": 7}, "priority": 3, "key": "k"})
    job = http.get(answer.headers["location"]).json()

    assert (answer.status_code, answer.json()["created"]) == (201, True)
    assert job["job"]["job_id"] == answer.json()["job_id"]
    assert (job["request"], job["job"]["priority"], job["job"]["key"]) == ({"name": "x", "number": 7}, 3, "k")
    assert (job["explanation"]["code"], job["entries"]) == ("no-worker", 1)


def test_a_key_that_is_in_use_gives_the_job_that_has_it(http: Asking) -> None:
    first = submit(http, key="k")
    again = http.post(JOBS, json={"request": {"name": "other"}, "key": "k"})

    assert again.status_code == 200
    assert again.json() == {"job_id": first, "created": False, "same_request": False}


def test_who_submitted_is_in_the_journal(http: Asking, engine: Engine) -> None:
    job_id = submit(http.who_may("submit"))

    assert engine.store.journal(job_id)[0].actor == "submit-er"


@pytest.mark.parametrize(
    "body, told",
    [
        ({"request": {"number": "seven"}}, (422, "request-invalid")),
        ({"request": {}, "priority": "high"}, (422, "invalid-body")),
        ({"request": {}, "unknown": 1}, (422, "invalid-body")),
        ({"request": {}, "run_after": ABSENT}, (404, "job-not-found")),
        ({"request": {}, "key": "\n"}, (400, "invalid-key")),
        ({"request": {"name": "x" * (1 << 20)}}, (413, "request-too-large")),
        ({}, (422, "invalid-body")),
        ([], (422, "invalid-body")),
    ],
    ids=str,
)
def test_what_is_no_job_is_refused(http: Asking, body: object, told: tuple[int, str]) -> None:
    answer = http.post(JOBS, json=body)

    assert code(answer) == told
    assert http.get("/v1/jobs").json()["rows"] == []


def test_a_whole_number_may_be_written_with_a_fraction_of_nothing(http: Asking) -> None:
    answer = http.post(JOBS, content=b'{"request": {"number": 7.0}, "priority": 2.0}', headers=JSON)

    assert answer.status_code == 201


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "content, headers, told",
    [
        (b"{", JSON, (400, "malformed-body")),
        (b"", JSON, (400, "malformed-body")),
        (b"[" * 5000, JSON, (400, "malformed-body")),
        (b'{"request": "\xff"}', JSON, (422, "request-invalid")),
        (b'{"request": {}}', {"Content-Type": "text/plain"}, (415, "unsupported-media-type")),
        (b'{"request": {}}', {"Content-Type": "application/json; charset=latin-1"}, (415, "unsupported-media-type")),
        (b'{"request": {}}', {}, (415, "unsupported-media-type")),
        (b'{"request": {}}', {**JSON, "Accept": "text/html"}, (406, "not-acceptable")),
        (b'{"request": {}}', {**JSON, "Accept": "application/json;q=0"}, (406, "not-acceptable")),
        (b" " * (3 << 20), JSON, (413, "body-too-large")),
        (b'{"request": {}}', {**JSON, "Content-Length": "nonsense"}, (413, "body-too-large")),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_no_request_is_refused(
    http: Asking, content: bytes, headers: dict[str, str], told: tuple[int, str]
) -> None:
    assert code(http.post(JOBS, content=content, headers=headers)) == told


def test_jobs_of_holdfasts_own_flows_are_not_submitted_by_hand(http: Asking) -> None:
    answer = http.post("/v1/flows/holdfast.bulk/jobs", json={"request": {}})

    assert code(answer) == (403, "reserved-flow")


def test_a_flow_that_is_not_known_is_not_found(http: Asking) -> None:
    assert code(http.post("/v1/flows/other/jobs", json={"request": {}})) == (404, "unknown-flow")


# --- looking ---


def test_the_list_goes_in_pages_by_links(http: Asking) -> None:
    jobs = [submit(http) for _ in range(5)][::-1]

    found, links = [], ["/v1/jobs?limit=2&flow=demo"]
    while links:
        answer = http.get(links.pop())
        found.append([row["job"]["job_id"] for row in answer.json()["rows"]])
        links += [answer.links["next"]["url"]] if "next" in answer.links else []

    assert found == [jobs[:2], jobs[2:4], jobs[4:]]


def test_the_list_and_its_count_are_filtered(http: Asking) -> None:
    kept = submit(http, key="a-1", queue="other")
    submit(http, key="b-1")
    ended = submit(http)
    http.post(f"/v1/jobs/{ended}/cancel", json={"reason": "why"}, headers={"If-Match": "*"})

    listed = http.get("/v1/jobs", params={"state": ["pending", "running"], "key_prefix": "a-", "queue": "other"})
    failed = http.get("/v1/jobs", params={"error_text": "WHY"})

    assert [row["job"]["job_id"] for row in listed.json()["rows"]] == [kept]
    assert [row["job"]["job_id"] for row in failed.json()["rows"]] == [ended]
    assert http.get("/v1/jobs/count?state=pending").json()["count"] == 2


@pytest.mark.parametrize(
    "query, told",
    [
        ("colour=red", (400, "unknown-parameter")),
        ("limit=0", (400, "invalid-parameter")),
        ("limit=501", (400, "invalid-parameter")),
        ("limit=ten", (400, "invalid-parameter")),
        ("limit=", (400, "invalid-parameter")),
        ("older_than=null", (400, "invalid-parameter")),
        ("limit=1&limit=2", (400, "invalid-parameter")),
        ("state=gone", (400, "invalid-parameter")),
        ("after=nonsense", (400, "invalid-cursor")),
        ("flow=%ff", (400, "invalid-parameter")),
        ("&".join(["state=failed"] * 101), (400, "invalid-parameter")),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_query_that_is_not_understood_is_refused(http: Asking, query: str, told: tuple[int, str]) -> None:
    assert code(http.get(f"/v1/jobs?{query}")) == told


def test_a_job_that_is_not_there_is_not_found_and_an_id_that_is_none_is_refused(http: Asking) -> None:
    assert code(http.get(f"/v1/jobs/{ABSENT}")) == (404, "job-not-found")
    assert code(http.get("/v1/jobs/nonsense")) == (400, "invalid-key")
    assert code(http.get("/v1/jobs/..%2f..%2fetc")) == (404, "no-such-path")


def test_a_job_that_retention_has_removed_is_gone(http: Asking, engine: Engine) -> None:
    job_id = submit(http)
    engine.cancel(job_id, reason="why")
    engine.store.prune(before=engine.store.now() + 1, limit=10, actor="me", dry_run=False)

    assert code(http.get(f"/v1/jobs/{job_id}")) == (410, "job-pruned")


def test_the_journal_goes_in_pages_and_its_chain_is_verified(http: Asking, engine: Engine) -> None:
    job_id = submit(http)
    with engine.worker(concurrency=1):
        engine.wait(job_id, 30)
    entries = engine.store.journal(job_id)

    first = http.get(f"/v1/jobs/{job_id}/journal?limit=2")
    rest = http.get(first.links["next"]["url"]).json()
    proof = http.get(f"/v1/jobs/{job_id}/verify").json()

    assert [one["hash"] for one in first.json()["entries"]] == [one.hash for one in entries[:2]]
    assert rest["entries"][0]["seq"] == 3
    assert proof == {
        "job_id": job_id, "entries": len(entries), "head": entries[-1].hash, "holds": True, "faults": [],
    }  # fmt: skip
    assert code(http.get(f"/v1/jobs/{ABSENT}/journal")) == (404, "job-not-found")


def test_changes_are_read_to_their_end_and_on_from_there(http: Asking) -> None:
    first = submit(http)
    page = http.get("/v1/changes").json()
    second = submit(http)
    more = eventually(lambda: http.get("/v1/changes", params={"after": page["last"]}).json()["changes"])

    assert [one["entry"]["job_id"] for one in page["changes"]] == [first]
    assert [one["entry"]["job_id"] for one in more] == [second]
    assert code(http.get("/v1/changes?after=999999999999999999.0.1.")) == (410, "changes-lost")
    assert code(http.get("/v1/changes?after=nonsense")) == (400, "invalid-parameter")


# --- waiting ---


def test_the_result_of_a_job_that_has_not_ended_is_accepted_and_not_there(http: Asking) -> None:
    job_id = submit(http)
    answer = http.get(f"/v1/jobs/{job_id}/result")

    assert (answer.status_code, answer.json()["state"]) == (202, "pending")
    assert answer.headers["location"] == f"/v1/jobs/{job_id}/result"
    assert "preference-applied" not in answer.headers


def test_who_prefers_to_wait_gets_the_result_when_it_is_there(http: Asking, engine: Engine) -> None:
    job_id = submit(http)
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(http.get(f"/v1/jobs/{job_id}/result", headers={"Prefer": "wait=60"}))
    )
    waiting.start()
    with engine.worker(concurrency=1):
        waiting.join(60)

    assert answers[0].status_code == 200
    assert answers[0].headers["preference-applied"] == "wait=60"
    assert answers[0].json()["response"]["trail"] == ["one", "two", "three"]


def test_who_has_waited_in_vain_is_told_how_it_stands(http: Asking) -> None:
    answer = http.get(f"/v1/jobs/{submit(http)}/result", headers={"Prefer": "respond-async, wait=1"})

    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")


def test_a_job_is_submitted_and_answered_with_its_result(http: Asking, engine: Engine) -> None:
    wait = {"Prefer": "wait=60", "Idempotency-Key": '"order"'}
    with engine.worker(concurrency=1):
        answer = http.post(JOBS, json={"request": {}}, headers=wait)
    plain = http.post(JOBS, json={"request": {}}, headers={"Idempotency-Key": '"order"'})
    again = http.post(JOBS, json={"request": {}}, headers=wait)

    assert (answer.status_code, answer.headers["preference-applied"]) == (201, "wait=60")
    assert answer.json()["result"]["response"]["trail"] == ["one", "two", "three"]
    assert (plain.status_code, plain.json()) == (
        201,
        {"job_id": answer.json()["job_id"], "created": True, "same_request": True},
    )
    assert (again.status_code, again.json()) == (201, answer.json())
    assert (again.headers["idempotency-replayed"], "preference-applied" in again.headers) == ("true", False)
    assert len(engine.store.jobs()) == 1


def test_who_submits_and_waits_in_vain_is_told_that_it_was_submitted(http: Asking, engine: Engine) -> None:
    wait = {"Prefer": "wait=1", "Idempotency-Key": '"order"'}
    first, again = (http.post(JOBS, json={"request": {}}, headers=wait) for _ in range(2))

    assert {(one.status_code, one.headers["preference-applied"]) for one in (first, again)} == {(201, "wait=1")}
    assert first.json() == again.json()
    assert "result" not in first.json()
    assert [job.job_id for job in engine.store.jobs()] == [first.json()["job_id"]]


def test_who_waits_does_not_keep_the_key_from_others(http: Asking, engine: Engine) -> None:
    answers: list[Any] = []
    wait = {"Prefer": "wait=60", "Idempotency-Key": '"order"'}
    waiting = threading.Thread(target=lambda: answers.append(http.post(JOBS, json={"request": {}}, headers=wait)))
    waiting.start()
    [job] = eventually(engine.store.jobs)

    def asked_again() -> Any:
        answer = http.post(JOBS, json={"request": {}}, headers={"Idempotency-Key": '"order"'})
        return answer if answer.status_code == 201 else None

    told = eventually(asked_again)
    engine.cancel(job.job_id, reason="enough waited")
    waiting.join(60)

    assert told.json()["job_id"] == job.job_id
    assert answers[0].json()["result"]["state"] == "failed"


def test_only_so_many_wait_at_once(http: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.job_waits.MOST", 0)
    answer = http.get(f"/v1/jobs/{submit(http)}/result", headers={"Prefer": "wait=60"})

    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


def test_many_who_wait_cost_one_thread(http: Asking, engine: Engine) -> None:
    jobs = [submit(http) for _ in range(6)]
    answers: list[int] = []

    def wait(job_id: str) -> None:
        answers.append(http.get(f"/v1/jobs/{job_id}/result", headers={"Prefer": "wait=60"}).status_code)

    threads = [threading.Thread(target=wait, args=(job_id,)) for job_id in jobs]
    for thread in threads:
        thread.start()
    waiting = http.application.services.get(JobWaits)
    eventually(lambda: len(waiting._waiters) == len(jobs))
    looking = [one.name for one in threading.enumerate() if one.name == "holdfast-web-waiting"]
    with engine.worker(concurrency=2):
        for thread in threads:
            thread.join(60)

    assert answers == [200] * len(jobs)
    assert looking == ["holdfast-web-waiting"]
    assert eventually(lambda: "holdfast-web-waiting" not in [one.name for one in threading.enumerate()])


def test_a_job_that_fails_has_a_result_too(http: Asking) -> None:
    job_id = submit(http)
    http.post(f"/v1/jobs/{job_id}/cancel", json={"reason": "enough"}, headers={"If-Match": "*"})
    answer = http.get(f"/v1/jobs/{job_id}/result", headers={"Prefer": "wait=60"})

    assert (answer.status_code, answer.json()["state"]) == (200, "failed")
    assert "enough" in answer.json()["reason"]


# --- steering ---


def test_an_override_needs_what_was_looked_at_and_a_reason(http: Asking, engine: Engine) -> None:
    job_id = submit(http)
    path = f"/v1/jobs/{job_id}/cancel"
    seen = head(http, job_id)
    engine.reschedule(job_id, priority=1, reason="meanwhile")

    assert code(http.post(path, json={"reason": "why"})) == (428, "precondition-required")
    assert code(http.post(path, json={"reason": "why"}, headers=seen)) == (412, "job-moved-on")
    assert code(http.post(path, json={"reason": "why"}, headers={"If-Match": "nonsense"})) == (400, "invalid-if-match")
    assert code(http.post(path, json={"reason": "why"}, headers={"If-Match": f"W/{seen['If-Match']}"}))[0] == 412
    assert code(http.post(path, json={"reason": ""}, headers=head(http, job_id))) == (422, "invalid-body")
    assert code(http.post(path, json={"reason": " "}, headers=head(http, job_id))) == (400, "reason-required")
    assert engine.store.job(job_id).state is JobState.PENDING


def test_an_override_is_done_by_whoever_asks_and_answers_with_the_new_head(http: Asking, engine: Engine) -> None:
    job_id = submit(http)
    answer = http.who_may("operate").post(
        f"/v1/jobs/{job_id}/cancel",
        json={"reason": "too old", "metadata": {"ticket": 7}},
        headers={"If-Match": f'"other", {head(http, job_id)["If-Match"]}'},
    )
    last = engine.store.journal(job_id)[-1]

    assert (answer.status_code, answer.json()["state"]) == (200, "failed")
    assert answer.headers["etag"] == f'"{last.hash}"'
    assert (last.actor, '"ticket":7' in last.metadata) == ("operate-er", True)


def test_jobs_are_retried_released_forced_and_rescheduled(http: Asking, engine: Engine) -> None:
    job_id = submit(http)

    def act(verb: str, **wish: Any) -> Any:
        answer = http.post(f"/v1/jobs/{job_id}/{verb}", json={"reason": "why", **wish}, headers=head(http, job_id))
        return answer.json() if answer.is_success else code(answer)

    assert act("reschedule", priority=5, delay=60)["state"] == "pending"
    assert engine.store.job(job_id).priority == 5
    assert act("force", to="quarantined", dry_run=True)["path"] == ["pending", "running", "failed", "quarantined"]
    assert act("force", to="quarantined")["path"] == ["pending", "running", "failed", "quarantined"]
    assert act("retry") == (409, "invalid-state-transition")
    assert act("release")["state"] == "pending"
    assert act("cancel", dry_run=True)["dry_run"] is True
    assert act("cancel") == {"job_id": job_id, "state": "pending", "dry_run": False, "cancel_reason": "why"}
    assert act("force", to="failed")["path"][-1] == "failed"
    assert act("retry")["state"] == "pending"
    assert act("force", to="succeeded") == (409, "invalid-state-transition")
    assert act("reschedule") == (400, "bad-input")


# --- who may ---


@pytest.mark.parametrize(
    "scope, method, path, status",
    [
        (None, "GET", "/v1/jobs", 401),
        (None, "GET", "/openapi.json", 401),
        (None, "GET", "/livez", 200),
        ("read", "GET", "/v1/jobs", 200),
        ("read", "POST", JOBS, 403),
        ("submit", "POST", "/v1/bulk", 403),
        ("submit", "POST", f"/v1/jobs/{ABSENT}/cancel", 403),
        ("operate", "POST", "/v1/repair", 403),
    ],
)
def test_a_scope_covers_what_it_says(http: Asking, scope: str | None, method: str, path: str, status: int) -> None:
    answer = http.who_may(scope).request(method, path, json=None if method == "GET" else {"request": {}})

    assert answer.status_code == status
    assert ("www-authenticate" in answer.headers) is (status == 401)


def test_methods_that_are_not_there_are_told_which_are(http: Asking) -> None:
    answer = http.delete("/v1/jobs")

    assert code(answer) == (405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD"


def test_head_is_get_without_a_body(http: Asking) -> None:
    full, bare = http.get("/v1/jobs"), http.head("/v1/jobs")

    assert (bare.status_code, bare.content) == (200, b"")
    assert bare.headers["content-length"] == full.headers["content-length"]


def test_head_of_a_stream_ends_and_takes_no_place(http: Asking, engine: Engine) -> None:
    bare = http.head("/v1/events")
    refused = http.head("/v1/events?after=x")

    assert (bare.status_code, bare.content) == (200, b"")
    assert bare.headers["content-type"].startswith("text/event-stream")
    assert refused.status_code == 400
    assert http.application.services.get(Feed).streams == 0


def test_a_body_where_none_is_taken_is_refused(http: Asking) -> None:
    assert code(http.request("GET", "/v1/jobs", content=b"{}")) == (400, "unexpected-body")


def test_hostile_text_comes_back_as_text_in_json(http: Asking) -> None:
    answer = http.get("/v1/flows/%3Cscript%3Ealert(1)")

    assert code(answer) == (400, "definition")
    assert answer.json()["detail"].startswith("flow name")
