"""Submitting: an id at once, the job once, and bad input changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.acceptance.driving import APP, Holdfast

ABSENT = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


def test_a_submitted_job_runs_and_its_response_can_be_waited_for(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("greet", '{"name": "you", "times": 2}')
    holdfast.run_all()

    assert holdfast.json("job", "wait", job_id)["response"] == "hello you!!"
    assert holdfast.ok("job", "wait", job_id) == '"hello you!!"\n'


def test_submit_answers_in_json(holdfast: Holdfast) -> None:
    answer = holdfast.json("submit", "greet", '{"name": "you"}')

    assert set(answer) == {"job_id", "created", "same_request"}
    assert answer["created"] is True


def test_submit_waits_if_told_to(holdfast: Holdfast) -> None:
    with holdfast.worker():
        answer = holdfast.json("submit", "greet", '{"name": "you"}', "--wait", "--timeout", "20")
        text = holdfast("submit", "greet", '{"name": "me"}', "--wait")

    assert (answer["state"], answer["response"]) == ("succeeded", "hello you!")
    assert text.out.splitlines()[1] == '"hello me!"'


def test_submit_that_waits_fails_with_the_job(holdfast: Holdfast) -> None:
    with holdfast.worker():
        ended = holdfast("submit", "doomed", '{"name": "you"}', "--wait")

    assert ended.code == 1
    assert "is failed: no use" in ended.err


def test_patience_that_runs_out_has_a_code_of_its_own(holdfast: Holdfast) -> None:
    ended = holdfast("submit", "greet", '{"name": "you"}', "--wait", "--timeout", "0.01", "--json")

    assert ended.code == 124
    assert ended.error["type"] == "WaitTimeout"


def test_a_request_may_come_from_stdin(holdfast: Holdfast) -> None:
    job_id = holdfast.ok("submit", "greet", "-", stdin=b'{"name": "stdin"}').strip()

    assert holdfast.json("job", "show", job_id)["request"] == {"name": "stdin", "times": 1}


def test_a_key_in_use_gives_the_job_that_has_it(holdfast: Holdfast) -> None:
    first = holdfast.json("submit", "greet", '{"name": "you"}', "--key", "k")
    second = holdfast("submit", "greet", '{"name": "other"}', "--key", "k")

    assert second.out.strip() == first["job_id"]
    assert "no new job was added" in second.err
    assert holdfast.json("submit", "greet", '{"name": "you"}', "--key", "k")["created"] is False


def test_a_key_that_lasts_gives_the_ended_job_and_tells_of_another_request(tmp_path: Path) -> None:
    once = 'once = Flow("once", request=Greeting, response=str, unique="forever").start("prepare", prepare)\n'
    holdfast = Holdfast(tmp_path, APP + once + "flows.append(once)\n")
    first = holdfast.submit("once", '{"name": "you"}', "--key", "k")
    holdfast.run_all()
    same = holdfast.json("submit", "once", '{"times": 1, "name": "you"}', "--key", "k")
    other = holdfast("submit", "once", '{"name": "other"}', "--key", "k")
    holdfast.ok("prune", "--older-than", "0")
    after = holdfast("submit", "once", '{"name": "you"}', "--key", "k", "--wait", "--timeout", "20", "--json")

    assert same == {"job_id": first, "created": False, "same_request": True}
    assert other.out.strip() == first
    assert f"job {first} has the key 'k' already, with another request; no new job was added" in other.err
    assert (after.code, after.error["type"]) == (4, "JobPrunedError")


def test_the_options_go_with_the_job(holdfast: Holdfast) -> None:
    first = holdfast.submit()
    options = ("--queue", "q", "--priority", "5", "--delay", "3600", "--run-after", first)
    job = holdfast.json("job", "show", holdfast.submit("greet", '{"name": "you"}', *options))["job"]

    assert (job["queue"], job["priority"], job["run_after"], job["hold"]) == ("q", 5, first, "after")
    assert job["not_before"] > job["created_at"] + 3_000_000


BAD_INPUT = {
    "an unknown flow": (("nope", "{}"), 2, "UnknownFlowError"),
    "a field is missing": (("greet", "{}"), 2, "RequestInvalidError"),
    "a field of the wrong type": (("greet", '{"name": 1}'), 2, "RequestInvalidError"),
    "not JSON": (("greet", "{name: you}"), 2, "RequestInvalidError"),
    "not UTF-8": (("greet", '{"name": "\udcff"}'), 2, "RequestInvalidError"),
    "an empty key": (("greet", '{"name": "you"}', "--key", ""), 2, "InvalidKeyError"),
    "an unprintable key": (("greet", '{"name": "you"}', "--key", "a\nb"), 2, "InvalidKeyError"),
    "a key that is too long": (("greet", '{"name": "you"}', "--key", "k" * 513), 2, "InvalidKeyError"),
    "a queue that cannot be": (("greet", '{"name": "you"}', "--queue", "a b"), 2, "DefinitionError"),
    "a priority out of range": (("greet", '{"name": "you"}', "--priority", "9999999"), 2, "BadInput"),
    "run-after of no job id": (("greet", '{"name": "you"}', "--run-after", "x"), 2, "InvalidKeyError"),
    "run-after of a missing job": (("greet", '{"name": "you"}', "--run-after", ABSENT), 4, "JobNotFoundError"),
    "a timeout without wait": (("greet", '{"name": "you"}', "--timeout", "1"), 2, "BadInput"),
    "a delay that is no number": (("greet", '{"name": "you"}', "--delay", "nan"), 2, "BadInput"),
    "an endless delay": (("greet", '{"name": "you"}', "--delay", "inf"), 2, "BadInput"),
    "a negative delay": (("greet", '{"name": "you"}', "--delay", "-1"), 2, "BadParameter"),
}


@pytest.mark.parametrize("words, code, kind", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_changes_nothing(history: Holdfast, words: tuple[str, ...], code: int, kind: str) -> None:
    before = history.content()
    ended = history("submit", "--json", *words)

    assert (ended.code, ended.error["type"]) == (code, kind)
    assert ended.out == ""
    assert history.content() == before


@pytest.mark.parametrize("command", [("submit", "nope", "{}"), ("flows", "graph", "nope")], ids=["submit", "graph"])
def test_who_forgot_the_app_is_told_how_to_name_it(holdfast: Holdfast, command: tuple[str, ...]) -> None:
    # The command of the image manager has flows of its own, so that an app which is missing is not missed.
    ended = holdfast(command=[sys.executable, "-m", "holdfast_images.cli", *command], HOLDFAST_APP=None)

    assert ended.code == 2
    assert "--app module:object" in ended.err


def test_a_request_over_the_limit_changes_nothing(history: Holdfast) -> None:
    before = history.content()
    ended = history("submit", "greet", "-", stdin=b'{"name": "' + b"x" * (1 << 20) + b'"}')

    assert ended.code == 2
    assert "1,048,576" in ended.err
    assert "hint: put large data in a file" in ended.err
    assert history.content() == before


def test_bad_input_does_not_even_make_a_state(holdfast: Holdfast) -> None:
    ended = holdfast("submit", "greet", "{}")

    assert ended.code == 2
    assert not holdfast.state.exists()
