"""The journal: shown, proved, and taken where nobody can change it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from subprocess import PIPE

import pytest

from tests.acceptance.driving import Holdfast
from tests.support.waiting import eventually

EDIT = "UPDATE journal SET reason = 'nothing to see here' WHERE seq = 2"
CUT = "DELETE FROM journal WHERE seq > 2"


@pytest.fixture
def done(holdfast: Holdfast) -> str:
    """A job that has succeeded."""
    job_id = holdfast.submit()
    holdfast.run_all()
    return job_id


def test_the_journal_of_a_job_tells_its_whole_story(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    entries = history.json("journal", "show", jobs_of_history["greet"])["entries"]

    assert [entry["seq"] for entry in entries] == list(range(1, len(entries) + 1))
    assert [entry["job_to"] for entry in entries] == ["pending", "running", "running", "running", "succeeded"]
    assert entries[0]["actor"].startswith("operator:")
    assert "pending → running" in history.ok("journal", "show", jobs_of_history["greet"])


def test_the_journal_of_all_jobs_is_shown_by_time_actor_and_flow(
    history: Holdfast, jobs_of_history: dict[str, str]
) -> None:
    everything = history.json("journal", "show")["entries"]
    first = min(entry["at"] for entry in everything)

    assert len({entry["job_id"] for entry in everything}) == 6
    assert len(history.json("journal", "show", "--since", "1h")["entries"]) == len(everything)
    assert history.json("journal", "show", "--since", "2999-01-01")["entries"] == []
    assert {
        e["job_id"] for e in history.json("journal", "show", "--flow", "doomed", "--since", str(first))["entries"]
    } == {jobs_of_history["doomed"]}
    assert {e["seq"] for e in history.json("journal", "show", "--actor", everything[0]["actor"])["entries"]} == {1}
    assert history("journal", "show", "--since", "yesterday").code == 2


def test_who_follows_is_shown_what_is_new_until_interrupted(holdfast: Holdfast) -> None:
    before = holdfast.submit()
    words = holdfast.command("journal", "show", "--follow", "--json")
    environment = holdfast.environment
    with subprocess.Popen(
        words, cwd=holdfast.directory, env=environment, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            eventually(lambda: any((holdfast.state / "holdfast.db.wake").glob("*")), "it listens")
            after = holdfast.submit("later")
            entry = json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read()

    assert (entry["job_id"], entry["seq"]) == (after, 1)
    assert after != before
    assert (process.returncode, rest, errors) == (0, "", "")


def test_an_untouched_journal_verifies(history: Holdfast, jobs_of_history: dict[str, str]) -> None:
    verified = history.json("journal", "verify")

    assert verified["faults"] == []
    assert verified["jobs"] == 6
    assert history.json("journal", "verify", jobs_of_history["greet"])["entries"] == 5


def test_an_edit_is_found(holdfast: Holdfast, done: str) -> None:
    holdfast.tamper(EDIT)
    ended = holdfast("journal", "verify")

    assert ended.code == 7
    assert f"job {done} entry 2: its content was changed" in ended.out
    assert len(holdfast("journal", "verify", done, "--json").data["faults"]) == 1


def test_a_gap_is_found(holdfast: Holdfast, done: str) -> None:
    holdfast.tamper("DELETE FROM journal WHERE seq = 3")
    ended = holdfast("journal", "verify")

    assert ended.code == 7
    assert "entries are missing" in ended.out


def test_exported_heads_prove_that_nothing_was_removed(holdfast: Holdfast, done: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    holdfast.ok("journal", "export", "--heads", "--output", heads)
    later = holdfast.submit()

    assert [json.loads(line)["job_id"] for line in heads.read_text().splitlines()] == [done]
    assert heads.stat().st_mode & 0o777 == 0o600
    assert holdfast.json("journal", "verify", "--heads", heads)["faults"] == []
    assert later != done


def test_a_cut_off_end_is_found_by_the_heads_alone(holdfast: Holdfast, done: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.write_text(holdfast.ok("journal", "export", "--heads"))
    holdfast.tamper(CUT)
    ended = holdfast("journal", "verify", "--heads", heads)

    assert holdfast("journal", "verify").code == 0
    assert ended.code == 7
    assert f"job {done}: entry 5 was exported and is gone; 2 entries are left" in ended.out


def test_a_journal_that_is_gone_whole_is_found_by_the_heads(holdfast: Holdfast, done: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.write_text(holdfast.ok("journal", "export", "--heads"))
    holdfast.tamper("DELETE FROM journal")
    ended = holdfast("journal", "verify", "--heads", heads)

    assert ended.code == 7
    assert f"job {done}: its journal of 5 entries is gone" in ended.out


def test_pruned_jobs_keep_their_heads(holdfast: Holdfast, done: str, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.write_text(holdfast.ok("journal", "export", "--heads"))
    before = json.loads(heads.read_text())
    holdfast.ok("prune", "--older-than", "0")
    after = json.loads(holdfast.ok("journal", "export", "--heads"))

    assert after == {"job_id": done, "hash": before["hash"], "pruned": True}
    assert holdfast.json("journal", "verify", "--heads", heads)["faults"] == []


def test_the_export_is_the_journal_line_by_line(history: Holdfast, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in history.ok("journal", "export").splitlines()]
    target = tmp_path / "journal.jsonl"
    answer = history.json("journal", "export", "--output", target)

    assert answer == {"output": str(target), "lines": len(lines)}
    assert [json.loads(line) for line in target.read_text().splitlines()] == lines
    assert {"job_id", "seq", "at", "actor", "reason", "prev_hash", "hash"} <= set(lines[0])


def test_a_file_that_is_not_of_heads_is_refused(history: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "heads").write_text('{"job_id": 1}\n')
    ended = history("journal", "verify", "--heads", tmp_path / "heads")

    assert ended.code == 2
    assert "line 1: not an exported head" in ended.err


def test_an_export_that_cannot_be_written_leaves_nothing(history: Holdfast, tmp_path: Path) -> None:
    ended = history("journal", "export", "--output", tmp_path / "absent" / "file")

    assert ended.code == 1
    assert "No such file or directory" in ended.err
    assert list(tmp_path.iterdir()) == []
