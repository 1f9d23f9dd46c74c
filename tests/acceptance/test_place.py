"""Where the state is: never made by looking, never touched when it is somebody else's, never in an unsafe place."""

from __future__ import annotations

import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnsafe
from holdfast.store.sqlite import database as place
from tests.acceptance.driving import Ended, Holdfast

READING = [
    ("jobs",),
    ("job", "show", "X"),
    ("job", "retry", "X", "--reason", "r"),
    ("queues", "list"),
    ("queues", "pause", "q", "--reason", "r"),
    ("flows", "plan"),
    ("journal", "verify"),
    ("journal", "export"),
    ("check",),
    ("repair",),
    ("stalled",),
    ("backup", "copy.db"),
    ("prune", "--older-than", "1"),
    ("stats",),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_a_state_that_is_not_there_is_not_made(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    ended = holdfast(*words)

    assert ended.code == 6
    assert f"there is no Holdfast database at {holdfast.database}" in ended.err
    assert "hint: point --state" in ended.err
    assert not holdfast.state.exists()


def test_the_state_is_private(holdfast: Holdfast) -> None:
    holdfast.submit()

    assert holdfast.database.stat().st_mode & 0o777 == 0o600
    assert holdfast.state.stat().st_mode & 0o777 == 0o700


def test_the_default_state_is_the_same_from_every_directory(holdfast: Holdfast, tmp_path: Path) -> None:
    holdfast.ok("submit", "greet", '{"name": "you"}', HOLDFAST_STATE=None, XDG_STATE_HOME=str(tmp_path / "x"))
    holdfast.ok("submit", "greet", '{"name": "you"}', HOLDFAST_STATE=None, HOME=str(tmp_path / "home"))

    assert (tmp_path / "x/holdfast/holdfast.db").exists()
    assert (tmp_path / "home/.local/state/holdfast/holdfast.db").exists()


def test_the_command_line_is_stronger_than_the_environment(holdfast: Holdfast, tmp_path: Path) -> None:
    holdfast.submit()
    other = ("--state", tmp_path / "other")
    by_store = f"sqlite:///{tmp_path}/other/holdfast.db"
    holdfast.ok("submit", "greet", '{"name": "other"}', *other)

    def names(*words: str | Path, **environment: str) -> list[str]:
        listed = holdfast.json(*words, "jobs", **environment)["jobs"]
        return [holdfast.json(*words, "job", "show", job["job_id"])["request"]["name"] for job in listed]

    assert names() == ["you"]
    assert names(*other) == ["other"]
    assert names("--store", by_store) == ["other"]
    assert holdfast.json(*other, "stats", HOLDFAST_STATE=None, HOLDFAST_STORE="sqlite:///nowhere")["jobs"]
    assert holdfast("--state", "a", "--store", "b", "jobs").code == 2


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "ftp://"])
def test_a_store_that_cannot_be_is_refused(holdfast: Holdfast, url: str) -> None:
    ended = holdfast("--store", url, "submit", "greet", '{"name": "you"}')

    assert ended.code == 2
    assert ended.err.startswith("error: ")


def test_a_file_that_is_no_database_is_left_as_it_is(holdfast: Holdfast) -> None:
    holdfast.state.mkdir()
    holdfast.database.write_bytes(b"my diary\n" * 1000)
    for words in (("jobs",), ("submit", "greet", '{"name": "you"}'), ("worker", "--exit-when-idle")):
        ended = holdfast(*words, "--json") if words[0] != "jobs" else holdfast("--json", *words)

        assert (ended.code, ended.error["type"]) == (6, "StoreForeign")
    assert holdfast.database.read_bytes() == b"my diary\n" * 1000


def test_a_database_of_another_application_is_left_as_it_is(holdfast: Holdfast) -> None:
    holdfast.state.mkdir()
    with closing(sqlite3.connect(holdfast.database)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = holdfast.database.read_bytes()
    for words in (("stats",), ("submit", "greet", '{"name": "you"}')):
        ended = holdfast(*words, "--json")

        assert (ended.code, ended.error["type"]) == (6, "StoreForeign")
    assert holdfast.database.read_bytes() == before
    assert os.listdir(holdfast.state) == ["holdfast.db"]


def test_a_damaged_database_is_told_without_a_traceback(history: Holdfast, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    history.ok("backup", copy)
    content = bytearray(copy.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    copy.write_bytes(content)
    for words in (("jobs",), ("journal", "verify"), ("stats",), ("queues", "list")):
        ended = history("--store", f"sqlite:///{copy}", "--json", *words)

        assert (ended.code, ended.error["type"]) == (6, "StoreCorrupt"), words


def test_a_row_that_cannot_be_understood_is_listed_as_such(holdfast: Holdfast) -> None:
    job_id = holdfast.submit()
    with closing(sqlite3.connect(holdfast.database)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = 1")
        connection.execute("DROP TRIGGER jobs_state_is_projection")
        connection.execute("DROP TRIGGER jobs_transition_is_legal")
        connection.execute("UPDATE jobs SET state = 'confused'")
    readable = holdfast.submit()
    listed = {job["job_id"]: job for job in holdfast.json("jobs")["jobs"]}

    assert "confused" in listed[job_id]["unreadable"]
    assert "unreadable" not in listed[readable]
    found = holdfast("check", "--json")
    assert found.code == 7
    assert f"job {job_id}" in {finding["subject"] for finding in found.data["findings"]}


@pytest.mark.parametrize("words", [("jobs",), ("submit", "greet", '{"name": "you"}')], ids=["jobs", "submit"])
def test_a_database_of_a_newer_holdfast_is_left_as_it_is(holdfast: Holdfast, words: tuple[str, ...]) -> None:
    holdfast.submit()
    holdfast.tamper("INSERT INTO holdfast_migrations VALUES (99, 'future', 0)")
    before = holdfast.content()
    ended = holdfast("--json", *words)

    assert (ended.code, ended.error["type"]) == (6, "StoreTooNew")
    assert holdfast.content() == before


# Run once somewhere else before the rights are given up, so that everything is imported: the interpreter itself may be
# where strangers cannot look.
STRANGER = """
import contextlib, io, os, sys, tempfile, traceback
from holdfast.cli.main import main
with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
    with contextlib.redirect_stderr(io.StringIO()):
        main(["--state", scratch, "submit", "greet", '{"name": "you"}'])
        main(["--state", scratch, *sys.argv[1:]])
        main(["--json", "--state", scratch + "/absent", "jobs"])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def public() -> Iterator[Holdfast]:
    """The command in a directory where strangers may look."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        yield Holdfast(Path(directory))
        os.chmod(directory, 0o755)


def as_stranger(holdfast: Holdfast, *words: str) -> Ended:
    """Run a command as somebody who owns nothing here; who is not root has to do without the rights anyway."""
    return holdfast(*words, command=[sys.executable, "-c", STRANGER])


def test_a_directory_that_cannot_be_written_is_told(public: Holdfast) -> None:
    public.directory.chmod(0o555)
    ended = as_stranger(public, "--json", "submit", "greet", '{"name": "you"}')

    assert (ended.code, ended.error["type"]) == (6, "StoreReadOnly")
    assert not public.state.exists()


@pytest.mark.parametrize("mode", [0o000, 0o555], ids=["hidden", "read-only"])
@pytest.mark.parametrize("words", [("jobs",), ("submit", "greet", '{"name": "you"}')], ids=["jobs", "submit"])
def test_a_state_without_rights_is_told(public: Holdfast, mode: int, words: tuple[str, ...]) -> None:
    public.submit()
    public.database.chmod(0o444)
    public.state.chmod(mode)
    ended = as_stranger(public, "--json", *words)
    public.state.chmod(0o755)

    assert (ended.code, ended.error["type"]) == (6, "StoreReadOnly")
    assert len(public.json("jobs")["jobs"]) == 1


@pytest.mark.parametrize("kind", sorted(place.NETWORK_FILE_SYSTEMS))
def test_a_network_file_system_is_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"1 0 0:1 / / rw - ext4 /dev/sda rw\n2 1 0:2 / {os.path.realpath(tmp_path)} rw - {kind} server:/x rw\n"
    read_text = Path.read_text

    def pretend(path: Path, *arguments: str) -> str:
        return mounts if str(path) == "/proc/self/mountinfo" else read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", pretend)

    with pytest.raises(StoreUnsafe, match=kind):
        place.prepare_file(tmp_path / "state" / "holdfast.db")
    assert not (tmp_path / "state" / "holdfast.db").exists()
