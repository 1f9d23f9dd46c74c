"""Looking after a database: backups that can be used, and forgetting that leaves a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.driving import Holdfast


def test_a_backup_is_a_whole_state_of_its_own(history: Holdfast, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    answer = history.json("backup", copy)

    assert answer == {"file": str(copy), "bytes": copy.stat().st_size}
    assert copy.stat().st_mode & 0o777 == 0o600
    assert history.json("--store", f"sqlite:///{copy}", "jobs") == history.json("jobs")
    assert history.json("--store", f"sqlite:///{copy}", "check") == {"findings": []}


def test_a_backup_is_taken_while_a_worker_runs(holdfast: Holdfast, tmp_path: Path) -> None:
    job_id = holdfast.submit("gate", '{"name": "open"}')
    with holdfast.worker() as worker:
        worker.wait_for("waiting")
        holdfast.ok("backup", tmp_path / "copy.db")
        (tmp_path / "open").touch()
        ended = holdfast("job", "wait", job_id)

    assert ended.code == 0
    assert "running" in holdfast.ok("--store", f"sqlite:///{tmp_path / 'copy.db'}", "jobs")


def test_a_backup_never_overwrites(history: Holdfast, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    ended = history("backup", target)

    assert ended.code == 2
    assert "exists already" in ended.err
    assert target.read_text() == "precious"


def test_a_backup_into_a_missing_directory_is_told(history: Holdfast, tmp_path: Path) -> None:
    ended = history("backup", tmp_path / "absent" / "copy.db")

    assert ended.code == 2
    assert "there is no directory" in ended.err


def test_pruning_forgets_what_has_ended_and_nothing_else(holdfast: Holdfast) -> None:
    done = holdfast.submit()
    holdfast.run_all()
    kept = holdfast.submit("greet", '{"name": "you"}', "--delay", "3600")
    before = holdfast.content()
    planned = holdfast.json("prune", "--older-than", "0", "--dry-run")

    assert planned == {"jobs": [done], "dry_run": True}
    assert holdfast.content() == before
    assert holdfast.json("prune", "--older-than", "1")["jobs"] == []
    assert holdfast.ok("prune", "--older-than", "0") == f"{done}\n"
    assert [job["job_id"] for job in holdfast.json("jobs")["jobs"]] == [kept]
    assert holdfast("job", "show", done).code == 4
    assert holdfast.json("stats")["pruned"] == 1
    assert holdfast("check").code == 0


def test_a_worker_forgets_what_has_ended_if_it_is_told_how_long_to_keep_it(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()
    holdfast.run_all()
    with holdfast.worker("--keep", "1"):
        kept = holdfast.json("job", "show", job_id)["job"]["state"]
    with holdfast.worker("--keep", "0"):
        holdfast.until(lambda stats: stats["pruned"] == 1, "stats")

    assert kept == "succeeded"
    assert holdfast("job", "show", job_id).code == 4
    assert holdfast("check").code == 0


def test_what_ran_after_a_pruned_job_can_still_be_explained(holdfast: Holdfast) -> None:
    first = holdfast.submit()
    holdfast.run_all()
    second = holdfast.submit("greet", '{"name": "you"}', "--run-after", first)
    holdfast.run_all()
    holdfast.tamper(f"UPDATE jobs SET updated_at = 1 WHERE job_id = '{first}'")
    holdfast.ok("prune", "--older-than", "1")

    assert holdfast.json("job", "explain", second)["code"] == "succeeded"


NO_AGES = ["-1", "soon", "nan", "inf", "1e18"]


def test_pruning_needs_an_age(history: Holdfast) -> None:
    assert history("prune").code == 2


@pytest.mark.parametrize("days", NO_AGES)
def test_what_is_no_age_prunes_nothing(history: Holdfast, days: str) -> None:
    before = history.content()

    assert history("prune", "--older-than", days).code == 2
    assert history("prune", "--older-than", days, "--dry-run").code == 2
    assert history("worker", "--exit-when-idle", "--keep", days).code == 2
    assert history.content() == before
