"""Looking: the same facts for people and for programs, and looking changes nothing."""

from __future__ import annotations

import pytest

from tests.acceptance.driving import Holdfast

ABSENT = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


def test_jobs_are_listed_newest_first(history: Holdfast) -> None:
    listed = history.json("jobs")

    ids = [job["job_id"] for job in listed["jobs"]]
    assert ids == sorted(ids, reverse=True)
    assert listed["more"] is False


def test_the_list_says_when_there_is_more(history: Holdfast) -> None:
    ended = history("jobs", "--limit", "2")

    assert history.json("jobs", "--limit", "2")["more"] is True
    assert len(ended.out.splitlines()) == 3
    assert "more than 2" in ended.err


@pytest.mark.parametrize(
    "words, flows",
    [
        (("--state", "failed"), {"doomed"}),
        (("--state", "quarantined"), {"broken"}),
        (("--flow", "both"), {"both"}),
        (("--queue", "errands"), {"later"}),
        (("--key", "key-greet"), {"greet"}),
        (("--queue", "-", "--state", "succeeded"), {"greet", "both"}),
    ],
)
def test_jobs_are_filtered(history: Holdfast, words: tuple[str, ...], flows: set[str]) -> None:
    assert {job["flow"] for job in history.json("jobs", *words)["jobs"]} == flows


def test_text_is_aligned_and_has_no_colours(history: Holdfast) -> None:
    header, *rows = history.ok("jobs").splitlines()

    assert header.split()[:3] == ["JOB", "FLOW", "STATE"]
    assert {row.index(row.split()[1]) for row in rows} == {header.index("FLOW")}
    assert "\x1b" not in "".join(rows)


def test_a_job_is_shown_whole(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    shown = history.json("job", "show", jobs_of_history["both"])

    assert set(shown) == {
        *("job", "request", "result", "steps", "executions", "children", "journal", "journal_entries")
    }  # fmt: skip
    assert shown["request"] == {"name": "you", "times": 1}
    assert shown["result"]["response"]["stages"]["greet"]["response"] == "hello you!"
    assert shown["children"][0]["flow"] == "greet"
    assert shown["executions"][-1]["status"] == "done"
    assert shown["journal"][-1]["job_to"] == "succeeded"


def test_a_job_is_shown_to_people(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    text = history.ok("job", "show", jobs_of_history["both"], "--journal", "2")

    for part in ('request   {"name":"you","times":1}', "steps", "executions", "children", "journal (the last 2 of "):
        assert part in text


def test_what_an_error_says_cannot_steer_the_terminal(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    text = history.ok("job", "show", jobs_of_history["broken"])

    assert "broken [red]\\x1b[31m" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    "flow, code", [("greet", "succeeded"), ("doomed", "failed"), ("broken", "quarantined"), ("both", "succeeded")]
)
def test_an_ended_job_is_explained(history: Holdfast, jobs_of_history: dict[str, str], flow: str, code: str) -> None:
    explained = history.json("job", "explain", jobs_of_history[flow])

    assert explained["code"] == code
    assert history.ok("job", "explain", jobs_of_history[flow]).startswith(f"{code}: ")


def test_a_waiting_job_is_explained(holdfast: Holdfast) -> None:
    first = holdfast.submit()
    after = holdfast.submit("greet", '{"name": "you"}', "--run-after", first)
    scheduled = holdfast.submit("greet", '{"name": "you"}', "--delay", "3600")

    assert holdfast.json("job", "explain", first)["code"] == "no-worker"
    assert holdfast.json("job", "explain", after)["code"] == "waiting-for-job"
    assert holdfast.json("job", "explain", scheduled)["code"] == "scheduled"


def test_a_job_that_backs_off_is_explained_with_its_tries(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("shaky")
    with holdfast.worker():
        holdfast.until(lambda data: data["code"] == "backing-off", "job", "explain", job_id)
        explained = holdfast.json("job", "explain", job_id)

    assert explained["details"]["tries"] == 1
    assert explained["details"]["tries_allowed"] == 4
    assert "Try 1 of 4" in explained["sentence"]


@pytest.mark.parametrize(
    "words",
    [
        ("job", "show", ABSENT),
        ("job", "explain", ABSENT),
        ("job", "wait", ABSENT),
        ("job", "retry", ABSENT, "--reason", "r"),
        ("job", "cancel", ABSENT, "--reason", "r"),
        ("job", "release", ABSENT, "--reason", "r"),
        ("job", "force", ABSENT, "failed", "--reason", "r"),
        ("journal", "show", ABSENT),
        ("journal", "verify", ABSENT),
        ("queues", "pause", "absent", "--reason", "r"),
        ("queues", "resume", "absent"),
        ("queues", "limit", "absent", "3"),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_not_found(history: Holdfast, words: tuple[str, ...]) -> None:
    ended = history(*words)

    assert ended.code == 4
    assert ended.err.startswith("error: ")
    assert "not found" in ended.err
    assert "\nhint: list what is there: holdfast " in ended.err


def test_stats_count_everything(history: Holdfast) -> None:
    stats = history.json("stats")

    assert stats["jobs"]["greet"] == {"succeeded": 2}
    assert stats["jobs"]["broken"] == {"quarantined": 1}
    assert stats["bytes"] > 0
    assert (stats["under_way"], stats["workers"], stats["pruned"]) == (0, [], 0)
    assert "greet" in history.ok("stats")


def test_looking_changes_nothing(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    before = history.content()
    for words in (("jobs",), ("stats",), ("queues", "list"), ("check",), ("job", "show", jobs_of_history["greet"])):
        history.ok(*words)

    assert history.content() == before
