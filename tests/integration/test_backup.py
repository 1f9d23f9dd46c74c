"""Backups and restores: whole under their name or not there, whoever else does the same or is killed meanwhile."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import holdfast.store.open as module
from holdfast import Engine, JobState
from holdfast.core.facts import Severity
from holdfast.errors import SettingsError, StateError, StoreBusy, StoreCorrupt, StoreForeign
from holdfast.guard import check
from holdfast.store.open import restore_store, sync
from holdfast.store.protocol import Store
from tests.support.flows import Ask, flow_of, note
from tests.support.waiting import eventually

FLOW = flow_of(note("x"))


def fill(state: Path, jobs: int = 300) -> list[str]:
    with Engine.open(state, flows=[FLOW], synchronous="NORMAL") as engine:
        return engine.submit_many([engine.prepare(FLOW, Ask("x" * 5000, n)) for n in range(jobs)])


def jobs_in(path: Path) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        count: int = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return count


def partials(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if name.endswith(".partial")]


def sound(store: Store) -> None:
    assert [one for one in check(store, deep=True) if one.severity is Severity.ERROR] == []


# --- backup ----------------------------------------------------------------------------------------------------------


def back_up(state: str, target: str, start: Any, answers: Any) -> None:
    """In a process: one of several that back up to one name in the same moment."""
    with Engine.open(state) as engine:
        start.wait(60)
        try:
            engine.store.backup(Path(target))
            answers.put("made")
        except SettingsError as error:
            answers.put(str(error))


def test_of_processes_that_back_up_to_one_name_one_makes_it_and_the_others_are_told(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    context = multiprocessing.get_context("spawn")
    for turn in range(3):
        target, count = tmp_path / f"copy-{turn}.db", 4
        start, answers = context.Barrier(count), context.Queue()
        processes = [
            context.Process(target=back_up, args=(str(tmp_path / "state"), str(target), start, answers))
            for _ in range(count)
        ]
        for process in processes:
            process.start()
        told = sorted(answers.get(timeout=60) for _ in processes)
        for process in processes:
            process.join(60)

        assert told.count("made") == 1
        assert [one for one in told if one != "made"] == [f"{target} exists already"] * (count - 1)
        assert jobs_in(target) == 300
        assert partials(tmp_path) == []


def test_a_second_backup_does_not_touch_the_first_while_it_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins and fails while the first waits for its disk: what the first then names is its own."""
    fill(tmp_path / "state")
    target = tmp_path / "copy.db"
    inside, go_on = threading.Event(), threading.Event()
    told: list[str] = []

    def slow(path: Path) -> None:
        if threading.current_thread().name == "first":
            inside.set()
            assert go_on.wait(60)
        sync(path)

    monkeypatch.setattr(module, "sync", slow)
    with Engine.open(tmp_path / "state") as engine:

        def back_up_slowly() -> None:
            try:
                engine.store.backup(target)
            except SettingsError as error:
                told.append(str(error))

        first = threading.Thread(target=back_up_slowly, name="first")
        first.start()
        assert inside.wait(60)
        engine.store.backup(target)
        whole = target.read_bytes()
        go_on.set()
        first.join(60)

    assert told == [f"{target} exists already"]
    assert target.read_bytes() == whole
    assert jobs_in(target) == 300
    assert partials(tmp_path) == []


def wait_in_sync(state: str, target: str) -> None:
    """In a process: never gets further than its first sync."""
    vars(module)["sync"] = lambda path: time.sleep(3600)
    with Engine.open(state) as engine:
        engine.store.backup(Path(target))


def test_a_backup_that_is_killed_leaves_nothing_under_its_name_and_its_remains_are_cleared(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    target = tmp_path / "copy.db"
    process = multiprocessing.get_context("spawn").Process(
        target=wait_in_sync, args=(str(tmp_path / "state"), str(target))
    )
    process.start()
    eventually(lambda: partials(tmp_path), "it has begun")
    with Engine.open(tmp_path / "state") as engine:
        engine.store.backup(tmp_path / "other.db")
        assert len(partials(tmp_path)) == 1, "one that is in use is nobody else's to remove"
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join(60)
        assert not target.exists()

        engine.store.backup(target)

    assert jobs_in(target) == 300
    assert partials(tmp_path) == []


@pytest.mark.parametrize("there", ["file", "broken link"])
def test_what_stands_under_the_name_is_not_touched(tmp_path: Path, there: str) -> None:
    fill(tmp_path / "state", 3)
    target = tmp_path / "copy.db"
    if there == "file":
        target.write_text("precious")
    else:
        target.symlink_to(tmp_path / "nowhere")
    with Engine.open(tmp_path / "state") as engine, pytest.raises(SettingsError, match="exists already"):
        engine.store.backup(target)

    assert target.read_text() == "precious" if there == "file" else target.is_symlink()


def test_without_hard_links_a_backup_is_made_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "state", 3)

    def refuse(*_paths: object) -> None:
        raise PermissionError("no hard links here")

    with Engine.open(tmp_path / "state") as engine:
        monkeypatch.setattr(os, "link", refuse)
        engine.store.backup(tmp_path / "copy.db")
        with pytest.raises(SettingsError, match="exists already"):
            engine.store.backup(tmp_path / "copy.db")

    assert jobs_in(tmp_path / "copy.db") == 3
    assert partials(tmp_path) == []


# --- restore ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Path, list[str]]:
    """A state, a backup of it with five jobs, and two more jobs since."""
    state, copy = tmp_path / "state", tmp_path / "copy.db"
    jobs = fill(state, 5)
    with Engine.open(state) as engine:
        engine.store.backup(copy)
    fill(state, 2)
    return state, copy, jobs


def test_a_restore_brings_the_backup_back_and_keeps_what_was_there(saved: tuple[Path, Path, list[str]]) -> None:
    state, copy, jobs = saved

    kept = restore_store(state, copy, verify=sound)

    assert kept is not None
    assert jobs_in(kept) == 7
    with Engine.open(state, flows=[FLOW]) as engine:
        assert sorted(job.job_id for job in engine.store.jobs()) == sorted(jobs)
        assert engine.check(deep=True) == []
        with engine.worker():
            assert engine.wait(jobs[0], timeout=30).state is JobState.SUCCEEDED


def test_who_has_the_database_open_sees_the_restored_one(saved: tuple[Path, Path, list[str]]) -> None:
    """No file is put in the place of one that others go on writing to."""
    state, copy, _ = saved
    with Engine.open(state, flows=[FLOW]) as engine:
        restore_store(state, copy, verify=sound)
        new = engine.submit(FLOW, Ask())

        assert len(engine.store.jobs()) == 6
    with Engine.open(state) as engine:
        assert engine.store.job(new).state is JobState.PENDING
        assert engine.check(deep=True) == []


def test_a_restore_is_refused_while_a_worker_is_alive(saved: tuple[Path, Path, list[str]]) -> None:
    state, copy, _ = saved
    with Engine.open(state, flows=[FLOW]) as engine:
        engine.store.pause_queue("", actor="alice", reason="nothing is to run")
        with engine.worker(), pytest.raises(StateError, match=f"workers are alive: pid {os.getpid()} on "):
            restore_store(state, copy, verify=sound)

        assert len(engine.store.jobs()) == 7


def damage_header(path: Path) -> None:
    path.write_bytes(b"not a database at all" + path.read_bytes()[21:])


def damage_pages(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + os.urandom(len(content) - 4096))


def forge(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("DROP TRIGGER journal_is_append_only")
        shell.execute("UPDATE journal SET reason = 'somebody else'")


def other_application(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")


@pytest.mark.parametrize(
    "spoil, error",
    [
        (damage_header, StoreForeign),
        (damage_pages, StoreCorrupt),
        (other_application, StoreForeign),
        (forge, AssertionError),
        (Path.unlink, SettingsError),
    ],
    ids=["header", "pages", "other application", "forged", "missing"],
)
def test_what_is_no_sound_backup_is_refused_and_changes_nothing(
    saved: tuple[Path, Path, list[str]], spoil: Callable[[Path], object], error: type[Exception]
) -> None:
    state, copy, _ = saved
    spoil(copy)

    with pytest.raises(error):
        restore_store(state, copy, verify=sound)

    with Engine.open(state) as engine:
        assert len(engine.store.jobs()) == 7
    assert [name for name in os.listdir(state) if "restore" in name] == []


@pytest.mark.parametrize("damage", [damage_header, damage_pages])
def test_a_database_that_cannot_be_read_is_moved_aside(
    saved: tuple[Path, Path, list[str]], damage: Callable[[Path], None]
) -> None:
    state, copy, _ = saved
    database = state / "holdfast.db"
    damage(database)
    damaged = database.read_bytes()

    kept = restore_store(state, copy, verify=sound)

    assert kept is not None
    assert kept.read_bytes() == damaged
    with Engine.open(state) as engine:
        assert len(engine.store.jobs()) == 5
        assert engine.check(deep=True) == []


def test_a_restore_into_an_empty_place_makes_the_state(saved: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    _, copy, _ = saved

    kept = restore_store(tmp_path / "elsewhere" / "state", copy, verify=sound)

    assert kept is None
    assert (tmp_path / "elsewhere" / "state" / "holdfast.db").stat().st_mode & 0o777 == 0o600
    with Engine.open(tmp_path / "elsewhere" / "state") as engine:
        assert len(engine.store.jobs()) == 5


def test_another_applications_database_is_not_replaced(saved: tuple[Path, Path, list[str]], tmp_path: Path) -> None:
    _, copy, _ = saved
    place = tmp_path / "bookmarks.db"
    place.touch()
    other_application(place)
    before = place.read_bytes()

    with pytest.raises(StoreForeign):
        restore_store(place, copy, verify=sound)

    assert place.read_bytes() == before


def test_two_restores_at_once_do_not_mix(saved: tuple[Path, Path, list[str]]) -> None:
    state, copy, _ = saved

    def meanwhile(_store: Store) -> None:
        with pytest.raises(StoreBusy, match="another restore"):
            restore_store(state, copy, verify=sound)

    restore_store(state, copy, verify=meanwhile)

    with Engine.open(state) as engine:
        assert len(engine.store.jobs()) == 5


def test_a_restore_that_is_killed_leaves_the_old_database_and_its_remains_are_cleared(
    saved: tuple[Path, Path, list[str]],
) -> None:
    state, copy, _ = saved

    def die(_store: Store) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if not child:
        restore_store(state, copy, verify=die)
        os._exit(1)
    _, status = os.waitpid(child, 0)

    assert os.WTERMSIG(status) == signal.SIGKILL
    with Engine.open(state) as engine:
        assert len(engine.store.jobs()) == 7
    restore_store(state, copy, verify=sound)
    with Engine.open(state) as engine:
        assert len(engine.store.jobs()) == 5
    assert [name for name in os.listdir(state) if name.startswith(".holdfast.db.restore-")] == []
