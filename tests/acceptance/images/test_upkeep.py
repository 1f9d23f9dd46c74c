"""gc and verify-system: leftovers go, what is needed stays, and nothing that is wrong is kept quiet."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Engine
from tests.acceptance.driving import PATIENCE
from tests.acceptance.images.driving import HOSTILE, Gate, ImageHoldfast, ended
from tests.support.waiting import eventually


def litter(holdfast: ImageHoldfast) -> None:
    """What crashes, and careless hands, may leave."""
    images, devices = holdfast.state / "images", holdfast.state / "devices"
    (images / "lost.tar").write_bytes(b"lost")
    (images / ".demo.tar.0123.partial").write_bytes(b"part")
    (images / "notes.txt").write_text("an operator's own")
    (devices / "thin-77").mkdir()
    (holdfast.state / "devices" / ".making-thin-98").mkdir()
    with closing(sqlite3.connect(holdfast.database)) as connection, connection:
        connection.execute("INSERT INTO image_locks (image_id, locked_at, locked_by) VALUES ('demo', 0, 'somebody')")
        connection.execute(
            "INSERT INTO device_reservations (device_id, image_id, snapshot_name) VALUES (99, 'old', '')"
        )


KINDS = ["device", "file", "lock", "partial", "remains", "reservation"]


def test_gc_has_nothing_to_do_after_a_clean_run(processed: ImageHoldfast) -> None:
    assert processed.json("gc")["actions"] == []


def test_a_dry_run_shows_the_plan_and_changes_nothing(processed: ImageHoldfast) -> None:
    litter(processed)
    before, content = processed.left(), processed.content()
    data = processed.json("gc", "--dry-run")

    assert sorted(action["kind"] for action in data["actions"]) == KINDS
    assert data["dry_run"]
    assert processed.left() == before
    assert processed.content() == content


@pytest.mark.parametrize("command", ["check", "repair"])
def test_with_another_app_it_is_said_that_the_rows_of_images_are_left_out(
    processed: ImageHoldfast, command: str
) -> None:
    said = processed("--app", "examples.orders:app", command)

    assert said.code == 0
    assert "the rows of images are left out" in said.err
    assert "left out" not in processed(command).err


def test_check_finds_what_breaks_a_rule_of_the_catalog_and_repair_puts_it_right(processed: ImageHoldfast) -> None:
    with closing(sqlite3.connect(processed.database)) as connection, connection:
        connection.execute("UPDATE images SET activation_status = 'inactive'")
    found = json.loads(processed("check", "--json").out)["findings"]
    planned = json.loads(processed("repair", "--dry-run", "--json").out)["rows"]
    still = json.loads(processed("check", "--json").out)["findings"]
    repaired = processed.json("repair")["rows"]

    assert [(each["code"], each["subject"]) for each in found] == [("catalog-rule", "image demo")]
    assert [(row["subject"], row["is_done"]) for row in planned] == [("image demo", False)]
    assert still == found
    assert [(row["subject"], row["is_done"]) for row in repaired] == [("image demo", True)]
    assert processed.json("check")["findings"] == []
    assert processed.json("repair")["rows"] == []


def test_the_guard_of_a_worker_tells_of_a_row_that_breaks_a_rule(processed: ImageHoldfast) -> None:
    with closing(sqlite3.connect(processed.database)) as connection, connection:
        connection.execute("UPDATE images SET activation_status = 'inactive'")
    with processed.worker("--check-interval", "0.1") as worker:
        assert "image demo" in worker.wait_for("rule 4")


def test_a_catalog_that_cannot_be_looked_at_hides_nothing_of_the_engine(processed: ImageHoldfast) -> None:
    with closing(sqlite3.connect(processed.database)) as connection, connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("ALTER TABLE images RENAME TO lost")
        connection.execute("DROP TRIGGER journal_is_kept")
    checked, repaired = processed("check", "--json"), processed("repair", "--json")
    codes = {finding["code"] for finding in json.loads(checked.out)["findings"]}

    assert (checked.code, repaired.code) == (7, 7)
    assert "not-checked" in codes
    assert len(codes) > 1
    assert [row["is_done"] for row in json.loads(repaired.out)["rows"]] == [False]


def test_check_makes_no_catalog_where_no_image_was_ever_processed(holdfast: ImageHoldfast) -> None:
    Engine.open(holdfast.state).close()
    tables = "SELECT name FROM sqlite_master WHERE name = 'images'"

    assert holdfast.json("check")["findings"] == []
    assert holdfast.json("repair")["rows"] == []
    with closing(sqlite3.connect(holdfast.database)) as connection:
        assert connection.execute(tables).fetchall() == []


def test_gc_removes_leftovers_and_nothing_else(processed: ImageHoldfast) -> None:
    before = processed.left()
    litter(processed)
    data = processed.json("gc")

    assert data["removed"] == len(KINDS)
    assert data["kept"] == []
    assert processed.left() == sorted([*before, "notes.txt"])
    assert processed.json("gc")["actions"] == []
    assert processed.json("verify-system", "--deep")["findings"] == []


def test_gc_leaves_what_an_unfinished_job_needs(holdfast: ImageHoldfast, gate: Gate) -> None:
    command = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo")
    assert gate.asked.wait(PATIENCE)
    (holdfast.state / "images" / "demo.tar").write_bytes(b"as if the job had just put it there")
    during = holdfast.json("gc")
    gate.open()
    done = ended(command)

    assert during["actions"] == []
    assert done.code == 0, done


def test_gc_removes_the_partial_file_of_a_killed_download_once_its_job_is_given_up(
    holdfast: ImageHoldfast, gate: Gate
) -> None:
    command = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo")
    assert gate.asked.wait(PATIENCE)
    partial = eventually(holdfast.left, "the partial file")
    command.send_signal(signal.SIGKILL)
    ended(command)
    kept = holdfast.json("gc")
    for job in holdfast.json("jobs")["jobs"]:
        holdfast("job", "force", job["job_id"], "failed", "--reason", "nobody wants it any more")
    removed = holdfast.json("gc")

    assert len(partial) == 1
    assert kept["actions"] == [], "the job would go on with it"
    assert partial[0] in [action["subject"] for action in removed["actions"]]
    assert holdfast.left() == []


def test_old_refusals_are_forgotten_when_asked_for(holdfast: ImageHoldfast) -> None:
    holdfast("process-image", "--source", holdfast.source(HOSTILE))

    assert holdfast.json("gc")["actions"] == []
    assert holdfast.json("gc", "--refusals-older-than", "1")["actions"] == []
    with closing(sqlite3.connect(holdfast.database)) as connection, connection:
        connection.execute("UPDATE image_refusals SET refused_at = datetime('now', '-3 days')")
    assert [each["kind"] for each in holdfast.json("gc", "--refusals-older-than", "1")["actions"]] == ["refusal"]


# --- verify-system --------------------------------------------------------------------------------------------


def codes(holdfast: ImageHoldfast, *words: str) -> list[str]:
    done = holdfast("verify-system", *words, "--json")
    findings = done.data["findings"]
    assert done.code == (7 if findings else 0)
    assert all(set(each) == {"code", "severity", "subject", "message"} for each in findings)
    return sorted(each["code"] for each in findings)


def test_nothing_is_wrong_after_a_clean_run(processed: ImageHoldfast) -> None:
    assert codes(processed) == codes(processed, "--deep") == []


def test_every_leftover_and_every_loss_is_told(processed: ImageHoldfast) -> None:
    device = processed.json("image", "show", "demo")["device"]["device_name"]
    litter(processed)
    (processed.state / "images" / "demo.tar").unlink()
    shutil.rmtree(processed.state / "devices" / device)
    shutil.rmtree(processed.state / "devices" / "snap-demo")

    assert codes(processed) == sorted(
        ["file-missing", "device-lost", "snapshot-lost", *(f"left-over-{kind}" for kind in KINDS)]
    )
    assert processed("image", "verify", "demo").code == 7


def test_a_changed_file_is_suspected_at_once_and_proven_by_reading(processed: ImageHoldfast) -> None:
    path = processed.state / "images" / "demo.tar"
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)

    assert codes(processed) == ["file-touched"]
    assert codes(processed, "--deep") == ["file-changed"]


def test_a_changed_device_is_proven_by_reading(processed: ImageHoldfast) -> None:
    device = processed.json("image", "show", "demo")["device"]
    Path(device["device_path"], "rootfs/etc/intruder").write_text("x")

    assert codes(processed) == []
    assert codes(processed, "--deep") == ["device-lost"]
    assert processed("image", "verify", "demo").code == 0
    assert processed("image", "verify", "demo", "--deep").code == 7


def test_what_was_written_to_a_snapshot_is_its_owners_business(processed: ImageHoldfast) -> None:
    snapshot = processed.json("snapshots")["snapshots"][0]
    Path(snapshot["device_path"], "rootfs/etc/mine").write_text("x")

    assert codes(processed, "--deep") == []


@pytest.mark.parametrize(
    "statement, code",
    [
        ("UPDATE images SET activation_status = 'inactive'", "catalog-rule"),
        ("UPDATE jobs SET state = 'failed' WHERE flow = 'process-image'", "projection-mismatch"),
    ],
)
def test_a_row_that_was_tampered_with_is_told(processed: ImageHoldfast, statement: str, code: str) -> None:
    processed.tamper(statement)

    assert code in codes(processed)


BREAKING = {
    "a download that is said to have failed": "UPDATE images SET download_status = 'failed'",
    "a device that is said not to be verified": "UPDATE unpacked_images SET layout_verified = 0",
    "an active image that is said not to be": "UPDATE images SET activation_status = 'inactive'",
}


@pytest.mark.parametrize("statement", BREAKING.values(), ids=BREAKING)
def test_a_row_that_breaks_a_rule_is_put_right_by_what_is_there(processed: ImageHoldfast, statement: str) -> None:
    before = processed.json("image", "show", "demo")
    processed.tamper(statement)
    dry = processed.json("gc", "--dry-run")
    untouched = codes(processed)
    done = processed.json("gc")
    after = processed.json("image", "show", "demo")

    assert [each["kind"] for each in dry["actions"]] == ["row"]
    assert "catalog-rule" in untouched
    assert (done["removed"], done["kept"]) == (1, [])
    assert codes(processed, "--deep") == []
    varying = {"updated_at", "activated_at"}
    assert {k: v for k, v in before["image"].items() if k not in varying} == {
        k: v for k, v in after["image"].items() if k not in varying
    }
    assert (before["device"]["layout_verified"], before["snapshots"][0]["active"]) == (
        after["device"]["layout_verified"],
        after["snapshots"][0]["active"],
    )


def test_a_row_that_only_a_person_can_put_right_stays_and_is_told(processed: ImageHoldfast) -> None:
    """The device is not what was sealed, and snapshots refer to its row."""
    device = processed.json("image", "show", "demo")["device"]
    Path(device["device_path"], "rootfs/etc/intruder").write_text("x")
    processed.tamper("UPDATE images SET download_status = 'failed'")
    done = processed.json("gc")

    assert done["actions"] == []
    assert "catalog-rule" in codes(processed)
    assert [each["snapshot_name"] for each in processed.json("snapshots")["snapshots"]] == ["snap-demo"]


def test_a_row_of_a_device_that_is_not_whole_is_forgotten_if_nothing_hangs_on_it(processed: ImageHoldfast) -> None:
    processed.ok("snapshot", "deactivate", "snap-demo", "--delete")
    processed.tamper("DELETE FROM snapshots")
    device = processed.json("image", "show", "demo")["device"]
    Path(device["device_path"], "rootfs/etc/intruder").write_text("x")
    processed.tamper("UPDATE images SET download_status = 'failed'")
    done = processed.json("gc")

    assert [each["kind"] for each in done["actions"]] == ["row", "device", "file"]
    assert done["kept"] == []
    assert codes(processed) == []
    assert processed.left() == []


def test_the_paths_of_a_state_that_was_moved_are_recorded_again(processed: ImageHoldfast) -> None:
    processed.tamper("UPDATE images SET local_path = '/old/images/demo.tar'")
    processed.tamper("UPDATE unpacked_images SET device_path = '/old/devices/x/content'")
    processed.tamper("UPDATE snapshots SET device_path = '/old/devices/y/content'")
    told = codes(processed)
    done = processed.json("gc")

    assert told == ["path-moved"] * 3
    assert [each["kind"] for each in done["actions"]] == ["row"] * 3
    assert codes(processed, "--deep") == []
