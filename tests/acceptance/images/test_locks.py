"""`holdfast locks`: who works on which image, and what was left."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.acceptance.driving import PATIENCE
from tests.acceptance.images.driving import Gate, ImageHoldfast, ended


def lock(holdfast: ImageHoldfast, image_id: str, owner: str, *, age: int) -> None:
    statement = "INSERT INTO image_locks VALUES (?, CAST(strftime('%s', 'now') AS INTEGER) - ?, ?)"
    with closing(sqlite3.connect(holdfast.database)) as connection, connection:
        connection.execute(statement, (image_id, age, owner))


def names(data: dict[str, list[dict[str, str]]], field: str = "locks") -> list[str]:
    return [each["image_id"] for each in data[field]]


@pytest.fixture
def locked(processed: ImageHoldfast) -> ImageHoldfast:
    """A lock of nobody that is old, one that is young, and one of a job that is gone."""
    lock(processed, "old", "somebody", age=4000)
    lock(processed, "young", "somebody", age=10)
    lock(processed, "dead", "job:01ARZ3NDEKTSV4RRFFQ69G5FAV", age=10)
    return processed


def test_locks_are_listed_with_their_holders(locked: ImageHoldfast) -> None:
    data = {each["image_id"]: each for each in locked.json("locks", "list")["locks"]}

    assert set(data) == {"old", "young", "dead"}
    assert data["dead"]["state"] == "gone"
    assert data["old"]["state"] is None
    assert data["old"]["age"] >= 4000


def test_stale_ones_are_found(locked: ImageHoldfast) -> None:
    found = locked("locks", "stale", "--json")

    assert found.code == 7
    assert set(names(found.data)) == {"old", "dead"}
    assert names(locked("locks", "stale", "--older-than", "9999", "--json").data) == ["dead"]


def test_stale_ones_are_released_and_others_stay(locked: ImageHoldfast) -> None:
    released = locked.json("locks", "release", "--stale")

    assert sorted(names(released, "released")) == ["dead", "old"]
    assert names(locked.json("locks", "list")) == ["young"]


def test_one_is_released_by_name(locked: ImageHoldfast) -> None:
    assert names(locked.json("locks", "release", "young"), "released") == ["young"]
    assert locked("locks", "release", "young").code == 4
    assert locked("locks", "release").code == 2


def test_a_job_that_is_not_finished_keeps_its_lock(holdfast: ImageHoldfast, gate: Gate) -> None:
    command = holdfast.start("process-image", "--source", gate.url, "--image-id", "demo", "--json")
    assert gate.asked.wait(PATIENCE)
    [held] = holdfast.json("locks", "list")["locks"]
    refused = holdfast("locks", "release", "demo")
    gate.open()

    assert held["state"] in {"running", "pending"}
    assert refused.code == 1
    assert "job cancel" in refused.err
    assert ended(command).code == 0
    assert holdfast.json("locks", "list")["locks"] == []
