"""Looking: the same facts for people and for programs, and looking changes nothing."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.driving import Holdfast
from tests.support.waiting import eventually

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
        *("job", "request", "result", "steps", "current", "executions", "children", "journal", "journal_entries")
    }  # fmt: skip
    assert shown["request"] == {"name": "you", "times": 1}
    assert shown["result"]["response"]["stages"]["greet"]["response"] == "hello you!"
    assert shown["children"][0]["flow"] == "greet"
    assert shown["executions"][-1]["status"] == "done"
    assert (shown["job"]["attempt"], shown["job"]["executions"]) == (1, 2)
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


def test_a_failed_job_shows_where_it_failed(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    job_id = jobs_of_history["broken"]
    shown, text = history.json("job", "show", job_id), history.ok("job", "show", job_id)
    explained = history.ok("job", "explain", job_id)

    assert "in break_down" in shown["executions"][-1]["traceback"]
    assert "traceback (of execution 1)" in text
    assert "in break_down" in text
    assert "\x1b" not in text
    assert f"holdfast job show {job_id}" in explained


def test_a_job_that_did_not_fail_shows_no_traceback(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    assert "traceback" not in history.ok("job", "show", jobs_of_history["greet"])


def test_it_is_seen_which_step_a_running_job_is_in(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("meter", '{"name": "never"}')
    with holdfast.worker() as worker:
        worker.wait_for("measuring")
        eventually(lambda: holdfast.json("job", "show", job_id)["current"]["progress"], "the step has reported")
        [listed] = holdfast.json("jobs")["jobs"]
        shown = holdfast.json("job", "show", job_id)
        row = holdfast.ok("jobs").splitlines()[1]
        text = holdfast.ok("job", "show", job_id)
        explained = holdfast.json("job", "explain", job_id)
        worker.process.kill()
        worker.process.wait()
        gone = holdfast.json("job", "explain", job_id)

    current = listed["current"]
    assert (current["step"], current["number"], current["steps"], current["tries"]) == ("measure", 2, 3, 0)
    assert current["progress"] == {"step": "measure", "done": 9, "total": 20, "note": "metres"}
    assert shown["current"] | {"progressed_at": 0} == current | {"progressed_at": 0}
    assert shown["executions"][-1]["progress"]["done"] == 9
    assert "measure 45 % (9 of 20), metres" in row
    assert f"pid {worker.process.pid} on" in row
    assert "measure 45 %" in text
    assert explained["code"] == "running"
    assert "step measure (2 of 3)" in explained["sentence"]
    assert (explained["details"]["step"], explained["details"]["progress"]["total"]) == ("measure", 20)
    assert gone["code"] == "worker-gone"
    assert f"pid {worker.process.pid}" in gone["sentence"]
    assert gone["details"]["step"] == "measure"


def test_the_journal_of_a_crash_names_the_step(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as first:
        first.wait_for("waiting")
        first.process.kill()
        first.process.wait()
    with holdfast.worker() as second:
        second.wait_for("waiting")
        journal = holdfast.json("journal", "show", job_id)["entries"]

    [crash] = [entry for entry in journal if '"crashed"' in entry["metadata"]]
    assert crash["step"] == "wait"


def test_times_are_told_to_the_millisecond(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    lists = history.ok("jobs") + history.ok("journal", "show", jobs_of_history["greet"])

    assert len(re.findall(r"T\d\d:\d\d:\d\d\.\d{3}Z", lists)) == len(re.findall(r"T\d\d:\d\d:\d\d", lists)) > 10
