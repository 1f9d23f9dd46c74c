"""A request with an Idempotency-Key makes one job, however often it is sent; on both stores."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import Engine
from holdfast.store.liveness import new_worker_id
from holdfast.web import idempotency
from holdfast.web.idempotency import Keys
from tests.support.backends import Backend
from tests.support.web import FLOW, Asking, a_flow, served

JOBS = f"/v1/flows/{FLOW}/jobs"


@pytest.fixture
def engine(backend: Backend) -> Iterator[Engine]:
    with Engine.open(backend.place, flows=[a_flow()]) as engine:
        yield engine


@pytest.fixture
def http(engine: Engine) -> Iterator[Asking]:
    with served(engine) as client:
        yield client


def submit(http: Asking, key: str = "k", **wish: Any) -> Any:
    return http.post(JOBS, json={"request": {}} | wish, headers={"Idempotency-Key": f'"{key}"'})


def count(engine: Engine) -> int:
    return len(engine.store.jobs())


def rows(http: Asking) -> Any:
    return http.application.services.get(Keys)._tables


def test_the_same_request_again_gets_the_first_answer(http: Asking, engine: Engine) -> None:
    first, again = submit(http), submit(http)

    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.content, again.headers["location"]) == (first.content, first.headers["location"])
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert count(engine) == 1


def test_the_first_answer_stays_when_the_job_has_ended(http: Asking, engine: Engine) -> None:
    first = submit(http, key="a")
    engine.cancel(first.json()["job_id"], reason="why")

    assert submit(http, key="a").content == first.content
    assert count(engine) == 1


def test_an_answer_that_found_a_job_is_remembered_as_such(http: Asking, engine: Engine) -> None:
    made = http.post(JOBS, json={"request": {}, "key": "order"}).json()["job_id"]
    found = http.post(JOBS, json={"request": {}, "key": "order"}, headers={"Idempotency-Key": "k"})
    engine.cancel(made, reason="its key is free now")
    again = http.post(JOBS, json={"request": {}, "key": "order"}, headers={"Idempotency-Key": "k"})

    assert (found.status_code, again.status_code) == (200, 200)
    assert again.content == found.content
    assert count(engine) == 1


def test_another_request_with_the_same_key_is_refused(http: Asking, engine: Engine) -> None:
    submit(http)
    answer = submit(http, priority=1)

    assert (answer.status_code, answer.json()["code"]) == (422, "idempotency-key-reused")
    assert count(engine) == 1


def test_keys_of_different_people_have_nothing_to_do_with_each_other(http: Asking, engine: Engine) -> None:
    submit(http)
    other = submit(http.who_may("submit"), priority=1)

    assert other.status_code == 201
    assert count(engine) == 2


def test_a_request_that_is_refused_leaves_the_key_free(http: Asking, engine: Engine) -> None:
    answers = [
        submit(http, unknown=1),
        submit(http, request={"number": "x"}),
        submit(http, key_prefix="x"),
        submit(http),
    ]

    assert [one.status_code for one in answers] == [422, 422, 422, 201]
    assert count(engine) == 1


@pytest.mark.parametrize("key", [b"", b'""', b'a"b', "ä".encode(), b"x" * 256, b'"' + b"x" * 256 + b'"'], ids=repr)
def test_a_key_that_is_none_is_refused(http: Asking, engine: Engine, key: bytes) -> None:
    answer = http.post(JOBS, json={"request": {}}, headers=[(b"Idempotency-Key", key)])

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-idempotency-key")
    assert count(engine) == 0


def test_a_key_may_be_sent_with_quotes_or_without(http: Asking) -> None:
    quoted = submit(http, "abc")
    bare = http.post(JOBS, json={"request": {}}, headers={"Idempotency-Key": "abc"})

    assert bare.content == quoted.content


def test_of_many_at_once_one_makes_the_job_and_the_others_come_again(http: Asking, engine: Engine) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(submit(http))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {one.status_code for one in answers} <= {201, 409}
    assert {one.json()["code"] for one in answers if one.status_code == 409} <= {"idempotency-key-in-progress"}
    assert len({one.content for one in answers if one.status_code == 201}) == 1
    assert count(engine) == 1


# --- whoever sent it first has died ---


class Killed(BaseException):
    """What a SIGKILL is to the code that it hits: nothing behind it is done."""


def a_dead_worker() -> str:
    """This process, had it begun at another time."""
    host, pid, start, *rest = new_worker_id().rsplit(":", 5)
    return ":".join([host, pid, str(int(start) + 1), *rest])


def interrupted(http: Asking, monkeypatch: pytest.MonkeyPatch, owner: str, *, before_submit: bool) -> str:
    """A request whose server died before, or right behind, the submit; returns the id it was to have."""
    made: list[str] = []
    keys = http.application.services.get(Keys)

    def die(job_id: str, make: Any, _there: Any) -> Any:
        made.append(job_id)
        if not before_submit:
            make(job_id)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(keys, "_owner", owner)
        patch.setattr(keys, "_made", die)
        assert submit(http).status_code == 500
    return made[0]


@pytest.mark.parametrize("before_submit", [True, False])
def test_after_a_crash_the_same_request_finds_or_makes_just_that_job(
    http: Asking, engine: Engine, monkeypatch: pytest.MonkeyPatch, before_submit: bool
) -> None:
    job_id = interrupted(http, monkeypatch, a_dead_worker(), before_submit=before_submit)
    answer = submit(http)

    assert (answer.status_code, answer.json()) == (201, {"job_id": job_id, "created": True, "same_request": True})
    assert submit(http).content == answer.content
    assert count(engine) == 1


def test_a_request_of_a_server_that_lives_is_left_to_it(
    http: Asking, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(http, monkeypatch, new_worker_id(), before_submit=True)
    answer = submit(http)

    assert (answer.status_code, answer.json()["code"]) == (409, "idempotency-key-in-progress")
    assert count(engine) == 0


def test_a_server_that_cannot_be_seen_is_waited_for_no_longer_than_a_minute(
    http: Asking, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = ":".join(["another-host", *new_worker_id().rsplit(":", 5)[1:]])
    job_id = interrupted(http, monkeypatch, elsewhere, before_submit=True)
    early = submit(http)
    later = engine.store.now() + idempotency.BUSY_MS + 1
    monkeypatch.setattr(engine.store, "now", lambda: later)
    late = submit(http)

    assert (early.status_code, late.status_code) == (409, 201)
    assert late.json()["job_id"] == job_id


# --- how long a key lasts ---


def test_keys_expire_and_are_pruned_some_at_a_time(
    http: Asking, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "PRUNED_AT_ONCE", 3)
    monkeypatch.setattr(idempotency, "PRUNE_EVERY", 0.0)
    first = submit(http, "old").json()["job_id"]
    for number in range(6):
        submit(http, f"k{number}")
    later = engine.store.now() + idempotency.KEPT_MS + 1000
    monkeypatch.setattr(engine.store, "now", lambda: later)
    second = submit(http, "old").json()["job_id"]
    left = rows(http).run("SELECT count(*) FROM holdfast_idempotency")[0][0]

    assert first != second
    assert left in (4, 5)  # seven less three, and `old` anew
    submit(http, "new")
    submit(http, "newer")
    assert rows(http).run("SELECT count(*) FROM holdfast_idempotency")[0][0] == 3


def test_check_finds_nothing_wrong_with_the_table(http: Asking, engine: Engine) -> None:
    submit(http)

    assert engine.check(deep=True) == []
