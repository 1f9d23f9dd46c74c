"""The guard on command: check reports everything, repair does only what is legal, stalls are found and recovered."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.driving import Holdfast

EXPIRE = "UPDATE executions SET lease_expires_at = 1 WHERE status = 'in_progress'"


@pytest.fixture
def failed(holdfast: Holdfast) -> str:
    """A job that has failed."""
    job_id = holdfast.submit("doomed")
    holdfast.run_all()
    return job_id


def test_a_healthy_state_has_no_findings(history: Holdfast) -> None:
    ended = history("check", "--deep")

    assert (ended.code, ended.out) == (0, "")
    assert "nothing is wrong" in ended.err
    assert history.json("check") == {"findings": []}
    assert history.json("repair")["actions"] == []


def test_every_finding_is_reported(holdfast: Holdfast, failed: str) -> None:
    holdfast.tamper("UPDATE jobs SET attempt = -1", "UPDATE journal SET reason = 'x' WHERE seq = 1")
    found = holdfast("check", "--json")

    assert found.code == 7
    assert {"negative-count", "journal-broken"} <= {finding["code"] for finding in found.data["findings"]}
    assert {f"job {failed}"} == {finding["subject"] for finding in found.data["findings"]}
    assert "negative-count" in holdfast("check").out


def test_a_dropped_rule_is_found(holdfast: Holdfast, failed: str) -> None:
    holdfast.drop_trigger("journal_is_append_only")
    found = holdfast("check", "--json")

    assert found.code == 7
    assert [finding["code"] for finding in found.data["findings"]] == ["rule-missing"]


def test_what_a_legal_transition_cannot_mend_is_said(holdfast: Holdfast, failed: str) -> None:
    holdfast.tamper("UPDATE journal SET reason = 'x' WHERE seq = 1")
    ended = holdfast("repair")

    assert ended.code == 7
    assert "not repaired" in ended.out
    assert "compare with an exported journal or a backup" in ended.out


def test_an_abandoned_lease_is_given_back(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("gate", '{"name": "never"}')
    with holdfast.worker() as worker:
        worker.wait_for("waiting")
        worker.process.kill()
        worker.process.wait()
    holdfast.tamper(EXPIRE)
    before = holdfast.content()
    planned = holdfast("repair", "--dry-run", "--json")

    assert holdfast("check", "--json").data["findings"][0]["code"] == "lease-expired"
    assert planned.code == 7
    assert [(a["kind"], a["to_state"]) for a in planned.data["actions"]] == [("give-back", "pending")]
    assert holdfast.content() == before
    assert "give-back" in holdfast.ok("repair")
    assert holdfast("check").code == 0
    assert holdfast.json("job", "show", job_id)["job"]["state"] == "pending"


def test_a_stalled_job_is_listed_and_recovered_with_a_reason(holdfast: Holdfast, tmp_path: Path) -> None:
    job_id = holdfast.submit("deaf", '{"name": "open"}')
    with holdfast.worker("--stall", "approval", "--check-interval", "0.2") as worker:
        worker.wait_for("waits for approval")
        listed = holdfast("stalled")
        recovered = holdfast("stalled", "--recover", "--reason", "it hangs", "--json")

    assert listed.code == 7
    assert f"{job_id}  stalled" in listed.out
    assert recovered.code == 0
    assert recovered.data["recovered"] == [job_id]
    story = holdfast.json("journal", "show", job_id)["entries"]
    assert any("it hangs" in entry["reason"] + entry["actor"] for entry in story)
    assert holdfast.json("job", "show", job_id)["executions"][0]["code"] == "stalled"


def test_a_stalled_job_is_recovered_automatically(holdfast: Holdfast) -> None:
    job_id = holdfast.submit("deaf", '{"name": "never"}')
    with holdfast.worker("--check-interval", "0.1") as worker:
        worker.wait_for(f"recovered stalled job {job_id}")
        explained = holdfast.json("job", "explain", job_id)

    assert explained["code"] == "backing-off"
    assert "no progress for" in explained["sentence"]


def test_nothing_is_stalled_when_nothing_runs(history: Holdfast) -> None:
    assert history.json("stalled") == {"stalled": [], "recovered": []}


@pytest.mark.parametrize(
    "words",
    [("--recover",), ("--reason", "r"), ("--recover", "--reason", " ")],
    ids=["no reason", "no recover", "blank"],
)
def test_recovering_needs_a_reason(history: Holdfast, words: tuple[str, ...]) -> None:
    assert history("stalled", *words).code == 2


def test_a_worker_refuses_a_database_whose_rules_are_gone(holdfast: Holdfast, failed: str) -> None:
    holdfast.drop_trigger("jobs_succeeded_is_final")
    ended = holdfast("worker", "--exit-when-idle")

    assert ended.code == 6
    assert "jobs_succeeded_is_final is gone" in ended.err
    assert "hint: see everything that is wrong: holdfast check" in ended.err


def test_the_worker_reports_what_its_guard_finds(holdfast: Holdfast, failed: str) -> None:
    with holdfast.worker("--check-interval", "0.1") as worker:
        holdfast.drop_trigger("jobs_succeeded_is_final")
        line = worker.wait_for("jobs_succeeded_is_final")

    assert "error" in line
