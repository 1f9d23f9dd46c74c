"""Backups of a PostgreSQL store by the server's own programs, and restores into an empty schema."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Engine, JobState
from holdfast.core.facts import Severity
from holdfast.errors import SettingsError, StateError, StoreError, StoreForeign
from holdfast.guard import check
from holdfast.store.open import open_store, restore_store
from holdfast.store.postgres import backup as programs
from holdfast.store.protocol import Store
from tests.integration.conftest import QUICK
from tests.support.backends import PostgresBackend
from tests.support.flows import EFFECTS, Ask, flow_of, note
from tests.support.postgres_server import binaries

FLOW = flow_of(note("x"))
PASSWORD = "s3cret-word"


def sound(store: Store) -> None:
    assert [one for one in check(store, deep=True) if one.severity is Severity.ERROR] == []


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """The server's own programs, which note the command lines they are called with."""
    place, log = tmp_path / "bin", tmp_path / "called"
    place.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (place / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\nexec {binaries() / name} "$@"\n')
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    return log.read_text


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[PostgresBackend]:
    backend = PostgresBackend(tmp_path)
    backend.execute(f"SET search_path TO {backend.user_schema}; {EFFECTS}")
    yield backend
    backend.close()


@pytest.fixture
def jobs(backend: PostgresBackend) -> list[str]:
    """A job that has succeeded and one that waits."""
    with Engine.open(backend.place, flows=[FLOW]) as engine:
        done = engine.submit(FLOW, Ask())
        with engine.worker(**QUICK):
            engine.wait(done, timeout=30)
        return [done, engine.submit(FLOW, Ask())]


def test_a_backup_is_restored_with_its_effects_and_the_work_goes_on(
    backend: PostgresBackend, jobs: list[str], tmp_path: Path, recorded: Callable[[], str]
) -> None:
    target = tmp_path / "store.dump"
    place = backend.place.replace("postgres@", f"postgres:{PASSWORD}@")
    with Engine.open(place) as engine:
        before = list(engine.store.journal())
        engine.store.backup(target, schemas=[backend.user_schema])
        with pytest.raises(SettingsError, match="exists already"):
            engine.store.backup(target)
    with pytest.raises(StateError, match="is not empty"):
        restore_store(place, target, verify=sound)
    backend.execute(f"DROP SCHEMA {backend.schema} CASCADE", f"DROP SCHEMA {backend.user_schema} CASCADE")
    backend.execute(f"CREATE SCHEMA {backend.schema}")  # one that is empty is as good as none

    restore_store(place, target, verify=sound)

    with Engine.open(backend.place, flows=[FLOW]) as engine:
        assert list(engine.store.journal()) == before
        with engine.worker(**QUICK):
            assert engine.wait(jobs[1], timeout=30).state is JobState.SUCCEEDED
        sound(engine.store)
    assert sorted(backend.query("SELECT job_id FROM effects")) == sorted((job,) for job in jobs)
    assert "pg_dump --dbname=" in recorded()
    assert PASSWORD not in recorded()
    assert (target.stat().st_mode & 0o777, [*tmp_path.glob(".store*")]) == (0o600, [])


def test_what_is_no_sound_backup_of_this_store_is_refused_and_leaves_nothing(
    backend: PostgresBackend, jobs: list[str], tmp_path: Path
) -> None:
    target, other = tmp_path / "store.dump", tmp_path / "other.dump"
    spoilt = backend.place.replace("/postgres?", "/nowhere?").replace("postgres@", f"postgres:{PASSWORD}@")
    backend.execute(f"ALTER TABLE {backend.schema}.journal DISABLE TRIGGER USER")
    backend.execute("UPDATE journal SET reason = 'forged'")
    with Engine.open(backend.place) as engine:
        engine.store.backup(target)
    backend.execute(f"DROP SCHEMA {backend.schema} CASCADE")
    other.write_text("not a dump")

    with pytest.raises(AssertionError):
        restore_store(backend.place, target, verify=sound)
    with pytest.raises(SettingsError, match=f"of the schema {backend.schema}, and the store is in elsewhere"):
        restore_store(backend.place.replace(backend.schema, "elsewhere", 1), target, verify=sound)
    with pytest.raises(StoreError, match="pg_restore failed"):
        restore_store(backend.place, other, verify=sound)
    with pytest.raises(SettingsError, match="no file"):
        restore_store(backend.place, tmp_path / "missing", verify=sound)
    with pytest.raises(StoreError) as told:
        restore_store(spoilt, target, verify=sound)
    assert PASSWORD not in f"{told.value} {told.value.hint}"
    assert backend.query(f"SELECT 1 FROM pg_namespace WHERE nspname = '{backend.schema}'") == []


def test_a_dump_of_something_else_is_no_backup(backend: PostgresBackend, tmp_path: Path) -> None:
    target = tmp_path / "shop.dump"
    [[version]] = backend.server.execute("SELECT current_setting('server_version_num')::int / 10000")
    words = ("pg_dump", "--format=custom", f"--schema={backend.user_schema}", f"--file={target}")
    programs.run(*words, server=int(str(version)), url=backend.server.url)

    with pytest.raises(StoreForeign):
        restore_store(backend.place, target, verify=sound)


def test_programs_that_are_missing_or_too_old_are_named_with_their_package(
    backend: PostgresBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "pg_dump").write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.24'\n")
    (old / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", str(old))
    monkeypatch.setattr(programs, "ELSEWHERE", ())

    with closing(open_store(backend.place)) as store, pytest.raises(SettingsError, match="of version 9") as told:
        store.backup(tmp_path / "store.dump")

    assert "postgresql-client-" in (told.value.hint or "")
    assert list(tmp_path.glob("*.dump")) == []
