"""A data directory belongs to one state; a state that is moved or copied answers with its own paths."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.acceptance.images.driving import ImageHoldfast
from tests.support.backends import PostgresBackend


def tree(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.fixture
def shared(holdfast: ImageHoldfast, tmp_path: Path) -> tuple[ImageHoldfast, Path]:
    """A state whose data is elsewhere, with an image in it."""
    data = tmp_path / "data"
    holdfast.environment |= {"HOLDFAST_DATA": str(data)}
    holdfast.process(holdfast.source(), "--image-id", "demo")
    return holdfast, data


COMMANDS = [
    ["gc"],
    ["gc", "--dry-run"],
    ["verify-system"],
    ["process-image", "--source", "file:///dev/null"],
    ["worker", "--exit-when-idle"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_another_state_is_refused_and_touches_nothing(shared: tuple[ImageHoldfast, Path], command: list[str]) -> None:
    holdfast, data = shared
    before = tree(data)
    other = str(holdfast.directory / "other")
    if command[0] != "process-image":
        holdfast.process(holdfast.source(), HOLDFAST_STATE=other, HOLDFAST_DATA=str(holdfast.directory / "own"))
    ended = holdfast(*command, HOLDFAST_STATE=other)

    assert ended.code == 1, ended
    assert f"{data} holds the files and devices of another state" in ended.err
    assert tree(data) == before
    assert holdfast.json("verify-system", "--deep")["findings"] == []


def test_a_copy_of_the_database_alone_does_not_share_the_data(shared: tuple[ImageHoldfast, Path]) -> None:
    holdfast, data = shared
    before = tree(data)
    shutil.copytree(holdfast.state, holdfast.directory / "copy")
    ended = holdfast("gc", HOLDFAST_STATE=str(holdfast.directory / "copy"))

    assert ended.code == 1
    assert str(holdfast.state) in ended.err
    assert tree(data) == before


def test_a_state_that_was_moved_keeps_its_data(shared: tuple[ImageHoldfast, Path]) -> None:
    holdfast, data = shared
    moved = holdfast.state.rename(holdfast.directory / "moved")
    holdfast.environment["HOLDFAST_STATE"] = str(moved)
    holdfast.ok("gc")

    assert json.loads((data / "owner.json").read_text())["database"] == str(moved / "holdfast.db")
    assert holdfast.json("verify-system", "--deep")["findings"] == []


def test_a_database_made_anew_in_its_place_takes_the_data_over(processed: ImageHoldfast) -> None:
    for name in ("holdfast.db", "holdfast.db-wal", "holdfast.db-shm"):
        (processed.state / name).unlink(missing_ok=True)
    processed.process(processed.source(), "--image-id", "other")

    assert {each["kind"] for each in processed.json("gc")["actions"]} == {"file", "device", "snapshot"}


def test_a_mark_that_cannot_be_read_is_nobodys_to_ignore(processed: ImageHoldfast) -> None:
    (processed.state / "owner.json").write_text("{")
    ended = processed("gc")

    assert ended.code == 1
    assert "owner.json" in ended.err


@pytest.mark.parametrize(
    "closed, commands",
    [
        (".", (["pool", "status"], ["process-image", "--source", "{source}"], ["images"])),
        ("devices", (["gc", "--dry-run"], ["image", "remove", "demo", "--force"])),
        ("devices/snap-demo", (["gc"], ["snapshot", "deactivate", "snap-demo"])),
        ("owner.json", (["verify-system"], ["host", "show"])),
    ],
)
def test_what_another_user_owns_is_one_error_with_a_way_out(
    processed: ImageHoldfast, closed: str, commands: Sequence[list[str]]
) -> None:
    (processed.state / closed).chmod(0)
    # Root may do everything, but for what it has given up.
    may_not = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    for words in commands:
        command = processed.command(*(word.format(source=processed.source(name="other.tar")) for word in words))
        done = subprocess.run(
            [*may_not, *command], env=processed.environment, capture_output=True, text=True, check=False, timeout=60
        )
        told = done.stderr.splitlines()

        assert done.returncode in {1, 6}
        assert [line for line in told if "ermission denied" in line] == [told[-2]]
        assert told[-2].startswith("error: ")
        assert told[-1].startswith("hint: ")
        assert "owner" in told[-1]
    (processed.state / closed).chmod(0o700)


def test_two_stores_on_a_server_do_not_share_data(holdfast: ImageHoldfast, tmp_path: Path) -> None:
    one, two = PostgresBackend(tmp_path / "one"), PostgresBackend(tmp_path / "two")
    holdfast.environment |= {"HOLDFAST_DATA": str(tmp_path / "data")}
    del holdfast.environment["HOLDFAST_STATE"]
    try:
        holdfast.process(holdfast.source(), "--image-id", "demo", HOLDFAST_STORE=one.place)
        processed = holdfast("process-image", "--source", holdfast.source(), HOLDFAST_STORE=two.place)
        ended = holdfast("gc", HOLDFAST_STORE=two.place)

        assert (processed.code, ended.code) == (1, 1)
        assert "another state" in processed.err
        assert "another state" in ended.err
        assert holdfast.json("verify-system", "--deep", HOLDFAST_STORE=one.place)["findings"] == []
    finally:
        one.close()
        two.close()
