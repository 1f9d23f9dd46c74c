"""Steering: only through legal transitions, only with a reason, and all of it in the journal."""

from __future__ import annotations

import pytest

from tests.acceptance.driving import Holdfast


def last_entry(holdfast: Holdfast, job_id: str) -> tuple[str, str, str]:
    entry = holdfast.json("journal", "show", job_id)["entries"][-1]
    return entry["actor"], entry["job_to"], entry["reason"]


def test_a_job_that_never_ran_is_cancelled_at_once(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()

    assert holdfast.json("job", "cancel", job_id, "--reason", "a mistake", "--actor", "alice")["state"] == "failed"
    assert last_entry(holdfast, job_id) == ("alice", "failed", "a mistake")
    assert holdfast.json("job", "explain", job_id)["code"] == "cancelled"


def test_a_running_job_is_cancelled_by_its_worker(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as worker:
        worker.wait_for("waiting")
        asked = holdfast("job", "cancel", job_id, "--reason", "changed my mind")
        ended = holdfast("job", "wait", job_id)

    assert asked.out == "running\n"
    assert ended.code == 1
    assert "is failed: changed my mind" in ended.err


@pytest.mark.parametrize("keep", [False, True], ids=["with its children", "alone"])
def test_a_job_is_cancelled_with_its_children_or_alone(holdfast: Holdfast, keep: bool) -> None:
    parent = holdfast.submit("both", '{"name": "you"}', "--queue", "parents")
    holdfast.submit()
    holdfast.ok("queues", "pause", "-", "--reason", "so that the child waits")
    with holdfast.worker():
        holdfast.until(lambda shown: shown["children"] != [], "job", "show", parent)
        holdfast.ok("job", "cancel", parent, "--reason", "a mistake", *(["--keep-children"] if keep else []))
        holdfast.until(lambda shown: shown["job"]["state"] == "failed", "job", "show", parent)
    [child] = holdfast.json("job", "show", parent)["children"]

    assert child["state"] == ("pending" if keep else "failed")


def test_a_failed_job_is_retried(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("doomed")
    holdfast.run_all()

    assert holdfast.ok("job", "retry", job_id, "--reason", "try again") == "pending\n"
    assert last_entry(holdfast, job_id)[1:] == ("pending", "try again")
    holdfast.run_all()
    assert holdfast.json("job", "show", job_id)["job"]["attempt"] == 2


def test_a_quarantined_job_is_released(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("broken")
    holdfast.run_all()

    assert holdfast.json("job", "release", job_id, "--reason", "fixed")["state"] == "pending"


def test_a_job_is_forced_through_legal_states_only(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()
    before = holdfast.content()
    planned = holdfast("job", "force", job_id, "quarantined", "--reason", "poison", "--dry-run")

    assert planned.out == "pending → running → failed → quarantined\n"
    assert "nothing was changed" in planned.err
    assert holdfast.content() == before
    forced = holdfast.json("job", "force", job_id, "quarantined", "--reason", "poison")
    assert forced["path"] == ["pending", "running", "failed", "quarantined"]
    assert holdfast.json("job", "show", job_id)["job"]["state"] == "quarantined"


DRY = {
    "cancel": ("gate", "pending", "failed"),
    "retry": ("doomed", "failed", "pending"),
    "release": ("broken", "quarantined", "pending"),
}


@pytest.mark.parametrize("command", DRY)
def test_a_dry_run_says_where_a_job_would_be_and_changes_nothing(holdfast: Holdfast, command: str) -> None:
    flow, is_now, would_be = DRY[command]
    job_id = holdfast.submit(flow)
    if is_now != "pending":
        holdfast.run_all()
    before = holdfast.content()
    planned = holdfast("job", command, job_id, "--reason", "perhaps", "--dry-run")

    assert (planned.code, planned.out) == (0, f"{would_be}\n")
    assert "nothing was changed" in planned.err
    assert holdfast.content() == before
    assert holdfast.json("job", command, job_id, "--reason", "yes")["state"] == would_be


def test_a_dry_run_is_refused_where_the_action_would_be(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    ended = history("job", "retry", jobs_of_history["greet"], "--reason", "because", "--dry-run", "--json")

    assert (ended.code, ended.error["type"]) == (5, "InvalidStateTransitionError")


def test_a_pending_job_gets_another_place(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("greet", '{"name": "you"}', "--delay", "3600")
    given = ("--priority", "7", "--queue", "errands", "--delay", "0")
    moved = holdfast.json("job", "reschedule", job_id[:-2], "--reason", "the boss", *given, "--actor", "alice")["job"]

    assert (moved["priority"], moved["queue"], moved["not_before"]) == (7, "errands", 0)
    assert last_entry(holdfast, job_id) == ("alice", "pending", "rescheduled: the boss")
    holdfast.run_all()
    assert holdfast.json("job", "wait", job_id)["state"] == "succeeded"


def test_a_job_goes_back_to_the_queue_without_a_name(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("later", '{"name": "later"}', "--delay", "3600")

    assert "queue       -" in holdfast.ok("job", "reschedule", job_id, "--reason", "why not", "--queue", "-")


@pytest.mark.parametrize("given", [(), ("--delay", "-1"), ("--delay", "nan"), ("--queue", "a b"), ("--priority", "x")])
def test_another_place_has_to_be_one(holdfast: Holdfast, given: tuple[str, ...]) -> None:
    job_id = holdfast.submit()
    before = holdfast.content()

    assert holdfast("job", "reschedule", job_id, "--reason", "because", *given).code == 2
    assert holdfast.content() == before


CONFLICTS = {
    "retry of a succeeded job": ("retry", "greet"),
    "retry of a quarantined job": ("retry", "broken"),
    "release of a failed job": ("release", "doomed"),
    "cancel of a succeeded job": ("cancel", "greet"),
}


@pytest.mark.parametrize("command, flow", CONFLICTS.values(), ids=CONFLICTS)
def test_what_the_state_does_not_allow_is_a_conflict(
    history: Holdfast, jobs_of_history: dict[str, str], command: str, flow: str
) -> None:
    before = history.content()
    ended = history("job", command, jobs_of_history[flow], "--reason", "because", "--json")

    assert (ended.code, ended.error["type"]) == (5, "InvalidStateTransitionError")
    assert history.content() == before


def test_to_cancel_what_has_failed_is_done_already(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    before = history.content()
    ended = history("job", "cancel", jobs_of_history["doomed"], "--reason", "because", "--json")

    assert (ended.code, ended.err) == (0, "")
    assert history.content() == before


@pytest.mark.parametrize("state", ["succeeded", "running"])
def test_success_cannot_be_forced(history: Holdfast, jobs_of_history: dict[str, str], state: str) -> None:
    ended = history("job", "force", jobs_of_history["doomed"], state, "--reason", "please")

    assert ended.code == 5
    assert "hint: only a worker" in ended.err


@pytest.mark.parametrize("command", ["retry", "cancel", "release", "force", "reschedule"])
@pytest.mark.parametrize("reason", [(), ("--reason", ""), ("--reason", "  ")], ids=["none", "empty", "blank"])
def test_an_override_needs_a_reason(
    history: Holdfast, jobs_of_history: dict[str, str], command: str, reason: tuple[str, ...]
) -> None:
    before = history.content()
    target = {"force": ("failed",), "reschedule": ("--delay", "1")}.get(command, ())
    ended = history("job", command, jobs_of_history["doomed"], *target, *reason)

    assert ended.code == 2
    assert "reason" in ended.err
    assert history.content() == before


def test_a_key_that_another_job_has_taken_is_a_conflict(holdfast: Holdfast) -> None:
    failed = holdfast.submit("doomed", '{"name": "you"}', "--key", "k")
    holdfast.run_all()
    holdfast.submit("doomed", '{"name": "you"}', "--key", "k")
    ended = holdfast("job", "retry", failed, "--reason", "again", "--json")

    assert (ended.code, ended.error["type"]) == (5, "KeyInUseError")


def test_a_paused_queue_starts_nothing_until_it_is_resumed(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("later")
    holdfast.ok("queues", "pause", "errands", "--reason", "the van broke down", "--actor", "bob")
    holdfast.run_all()

    explained = holdfast.json("job", "explain", job_id)
    assert explained["code"] == "queue-paused"
    assert "paused by bob" in explained["sentence"]
    assert "the van broke down" in explained["sentence"]
    assert holdfast.json("queues", "resume", "errands")["queue"]["paused_at"] is None
    holdfast.run_all()
    assert holdfast.json("job", "wait", job_id)["response"] == "later"


def test_who_has_changed_a_queue_is_on_record(holdfast: Holdfast) -> None:
    holdfast.submit("later")
    holdfast.ok("queues", "pause", "errands", "--reason", "lunch", "--actor", "bob")
    holdfast.ok("queues", "resume", "errands", "--actor", "carol")
    holdfast.ok("queues", "limit", "errands", "3", "--actor", "dave")

    events = holdfast.json("queues", "history", "errands")["events"]
    assert [(e["actor"], e["action"]) for e in events] == [("dave", "limit"), ("carol", "resume"), ("bob", "pause")]
    assert "lunch" in holdfast.ok("queues", "history", "errands")


def test_resuming_a_queue_wakes_an_idle_worker(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("later")
    holdfast.ok("queues", "pause", "errands", "--reason", "lunch")
    with holdfast.worker():
        holdfast.ok("queues", "resume", "errands")

        assert holdfast.json("job", "wait", job_id, "--timeout", "4")["state"] == "succeeded"


def test_a_limit_of_an_operator_stays_above_that_of_the_code(holdfast: Holdfast) -> None:
    holdfast.submit("later")
    holdfast.ok("queues", "limit", "errands", "0")
    holdfast.ok("worker", "--exit-when-idle", "--queue-limit", "errands=5")

    [queue] = [queue for queue in holdfast.json("queues", "list")["queues"] if queue["name"] == "errands"]
    assert (queue["max_running"], queue["pending"]) == (0, 1)
    assert holdfast.json("queues", "limit", "errands", "none")["queue"]["max_running"] is None


def test_a_full_queue_is_explained_by_who_holds_it(holdfast: Holdfast) -> None:
    holder = holdfast.submit("gate", '{"name": "never"}', "--queue", "narrow")
    with holdfast.worker("--queue-limit", "narrow=1") as worker:
        worker.wait_for("waiting")
        explained = holdfast.json("job", "explain", holdfast.submit("greet", '{"name": "you"}', "--queue", "narrow"))

    assert explained["code"] == "queue-full"
    assert holder in explained["sentence"]


def test_the_queue_without_a_name_is_given_as_a_dash(holdfast: Holdfast) -> None:
    holdfast.submit()
    paused = holdfast.json("queues", "pause", "-", "--reason", "why not")["queue"]

    assert (paused["name"], paused["paused_reason"]) == ("", "why not")
    assert holdfast.ok("queues", "list").splitlines()[1].startswith("-  ")


@pytest.mark.parametrize("limit", ["-1", "many", "1.5", ""])
def test_a_limit_is_a_number_or_none(history: Holdfast, limit: str) -> None:
    assert history("queues", "limit", "--", "errands", limit).code == 2


def test_pausing_needs_a_reason(history: Holdfast) -> None:
    assert history("queues", "pause", "errands").code == 2
    assert history("queues", "pause", "errands", "--reason", " ").code == 2
